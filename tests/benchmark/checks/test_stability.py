"""Stability of the ranking, and what earlier benchmarks have in common."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from raylab.benchmark.checks.stability import compare_with_priors, measure_stability
from raylab.benchmark.pages.sentences import describe_prior
from tests.benchmark.checks.simulation import Array, as_matrix, logistic


def answers(seed: int, models: int, items: int, spread: float = 1.0) -> Array:
    draw = np.random.default_rng(seed)
    return logistic(draw, (models, items, 1, 1), (spread, 1, 0, 0))[:, :, 0, 0]


def kendall(first: Array, second: Array) -> float:
    result: Any = stats.kendalltau(first, second)
    return float(result.statistic)


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_tau_is_that_of_halves_of_the_items(spread: float) -> None:
    scores, draw = answers(3, 8, 200, spread), np.random.default_rng(0)
    tau = measure_stability(as_matrix(scores))
    value, (low, high) = tau.value or 0.0, tau.interval or (1.0, 0.0)
    orders = [draw.permutation(200) for _ in range(100)]
    halves = [(scores[:, order[:100]], scores[:, order[100:]]) for order in orders]
    taus = [kendall(*(half.mean(axis=1) for half in both)) for both in halves]
    assert low <= value <= high
    assert value == pytest.approx(max(float(np.nanmean(taus)), 0.0), abs=0.08)


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (2, 2), (3, 30)])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_figures_that_cannot_be_computed_have_reasons(shape: tuple[int, int], score: float) -> None:
    tau = measure_stability(as_matrix(np.full(shape, score)))
    assert tau.value is None and tau.reason


def test_an_earlier_benchmark_is_compared_by_the_models_and_items_that_both_have() -> None:
    scores, other = answers(7, 9, 120), answers(7, 9, 120)[:6]
    (same, alone) = compare_with_priors(
        as_matrix(scores), {"same": as_matrix(other[:, :60]), "alone": as_matrix(scores[:1])}
    )
    expected = kendall(scores[:6].mean(axis=1), other[:, :60].mean(axis=1))
    assert same.tau.value == pytest.approx(expected)
    assert same.tau.interval is not None
    assert (same.models, same.common_items, same.overlap) == (6, 60, 0.5)
    assert alone.tau.reason == "1 model in common"
    assert describe_prior(same) == (
        f"same ranks the 6 common models with a tau of {expected:.2f} to this one. "
        "60 items of this benchmark (50 %) are in same too."
    )
    assert describe_prior(alone).startswith(
        "The agreement with alone cannot be computed: 1 model in common."
    )
