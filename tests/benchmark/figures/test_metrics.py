import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from raylab.benchmark.figures.metrics import (
    compute_benchmark_consistency,
    compute_benchmark_difficulty,
    compute_benchmark_novelty,
    compute_benchmark_separability,
)

FIVE = {"a": 0.1, "b": 0.3, "c": 0.5, "d": 0.6, "e": 0.9}


def exactly(value: float) -> object:
    return pytest.approx(value, rel=0, abs=1e-12)


@pytest.mark.parametrize(
    ("compute", "accuracies", "expected"),
    [
        (compute_benchmark_difficulty, [0.5, 0.75, 0.2], 0.25),
        (compute_benchmark_difficulty, {"a": 0.5, "b": 0.75}, 0.25),
        (compute_benchmark_difficulty, iter([1.0]), 0.0),
        # Mean .5; distances .3 .1 .4.
        (compute_benchmark_separability, [0.2, 0.4, 0.9], 0.8 / 3),
        (compute_benchmark_separability, {"a": 0.7, "b": 0.8}, 0.05),
        (compute_benchmark_separability, [0.6], 0.0),
        # a: deviations -.1 0 .1, variance .02 / 2, deviation .1; b is constant.
        (compute_benchmark_consistency, {"a": [0.4, 0.5, 0.6], "b": [0.3, 0.3, 0.3]}, 0.95),
        # Two generations: |x - y| / sqrt 2.
        (compute_benchmark_consistency, {"a": [0.2, 0.6]}, 1 - 0.4 / math.sqrt(2)),
    ],
)
def test_figures_follow_their_formulas(
    compute: Callable[[Any], float], accuracies: Any, expected: float
):
    assert compute(accuracies) == exactly(expected)


@pytest.mark.parametrize(
    ("current", "prior"),
    [
        (FIVE, dict.fromkeys(FIVE, 0.7)),
        (dict.fromkeys(FIVE, 0.1), FIVE),
        # .1 + .2 is not .3 in floating point; a prior that is constant but for it predicts nothing.
        (FIVE, {**dict.fromkeys(FIVE, 0.3), "a": 0.1 + 0.2}),
    ],
)
def test_novelty_is_1_if_a_side_is_constant(
    current: Mapping[str, float], prior: Mapping[str, float]
):
    assert compute_benchmark_novelty(current, [prior]) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_novelty_is_spearmans_correlation_with_the_least_squares_prediction(seed: int):
    draw = np.random.default_rng(seed)
    # One decimal makes ties; priors may be on any scale, and one may repeat another.
    actual, prior, other = draw.random((3, 8)).round(1)
    scaled = [prior, -1e9 * prior, 1e-3 * other]
    design = np.stack([np.ones(8), prior, other], axis=1)
    predicted = design @ np.linalg.lstsq(design, actual, rcond=None)[0]
    correlation: Any = spearmanr(predicted.round(9), actual)
    expected = min(1.0, 1 - correlation.statistic)
    current, *priors = (dict(zip("abcdefgh", row, strict=True)) for row in (actual, *scaled))
    assert compute_benchmark_novelty(current, priors) == exactly(expected)


def test_a_novelty_that_says_nothing_is_warned_of(caplog: pytest.LogCaptureFixture):
    six = {**FIVE, "f": 0.4}
    with caplog.at_level(logging.WARNING):
        compute_benchmark_novelty(six, [six] * 4)
        assert not caplog.records
        compute_benchmark_novelty(six, [six] * 5)
        compute_benchmark_novelty(FIVE, [FIVE])
    exact, few = caplog.messages
    assert "5 prior benchmarks" in exact and "7 models or more" in exact
    assert "novelty of 5 models" in few and "6 models or more" in few


@pytest.mark.parametrize(
    ("compute", "arguments", "message"),
    [
        (compute_benchmark_difficulty, ([],), "no accuracies"),
        (compute_benchmark_consistency, ({},), "no models"),
        (compute_benchmark_novelty, (FIVE, []), "no prior"),
        (compute_benchmark_difficulty, ([0.5, 1.5],), "accuracy of 1 is 1.5, not in"),
        (compute_benchmark_difficulty, ({"x": math.nan},), "'x' is nan"),
        (compute_benchmark_consistency, ({"x": [0.5, 2.0]},), "'x', generation 1 is 2.0"),
        (compute_benchmark_consistency, ({"x": [0.5]},), "'x' has 1 gen"),
        (compute_benchmark_consistency, ({"x": [0.5, 0.5], "y": [0.1] * 3},), "'y' has 3 gen"),
        (
            compute_benchmark_novelty,
            ({"a": 0.5}, [{"a": math.inf}]),
            "prior 1, 'a' is inf, not fin",
        ),
        (compute_benchmark_novelty, ({"a": 0.5}, [{"z": 0.2}]), "missing a; extra z"),
    ],
)
def test_unusable_input_is_named(
    compute: Callable[..., float], arguments: tuple[Any, ...], message: str
):
    with pytest.raises(ValueError, match=message):
        compute(*arguments)
