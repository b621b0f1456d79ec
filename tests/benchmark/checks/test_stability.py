"""Stability of the ranking, and what earlier benchmarks have in common."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from raylab.benchmark.checks.stability import Stability, compare_with_priors, measure_stability
from raylab.benchmark.pages.sentences import describe_prior
from tests.benchmark.checks.simulation import Array, as_matrix, logistic


def answers(seed: int, models: int, items: int, spread: float = 1.0) -> Array:
    draw = np.random.default_rng(seed)
    return logistic(draw, (models, items, 1, 1), (spread, 1, 0, 0))[:, :, 0, 0]


def kendall(first: Array, second: Array) -> float:
    result: Any = stats.kendalltau(first, second)
    return float(result.statistic)


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_tau_and_its_curve_are_those_of_disjoint_sets_of_items(spread: float) -> None:
    scores, draw = answers(3, 8, 200, spread), np.random.default_rng(0)
    stability = measure_stability(as_matrix(scores))
    points = {point.items: point.tau for point in stability.curve}
    assert list(points) == [10, 20, 40, 60, 100, 150, 200, 300, 400]
    tau, (low, high) = stability.tau.value or 0.0, stability.tau.interval or (1.0, 0.0)
    assert low <= tau <= high and points[400] >= points[200] >= points[100]
    for size, measured in ((20, points[20]), (100, points[100]), (100, tau)):
        orders = [draw.permutation(200) for _ in range(100)]
        pairs = [(scores[:, o[:size]], scores[:, o[size : 2 * size]]) for o in orders]
        taus = [kendall(*(side.mean(axis=1) for side in pair)) for pair in pairs]
        assert measured == pytest.approx(max(float(np.nanmean(taus)), 0.0), abs=0.08)


def test_alpha_is_kr_20_with_feldts_interval() -> None:
    scores = answers(3, 10, 60)
    items = scores.shape[1]
    share = scores.mean(axis=0)
    total = scores.sum(axis=1).var()
    expected = items / (items - 1) * (1 - (share * (1 - share)).sum() / total)
    alpha = measure_stability(as_matrix(scores)).alpha
    assert alpha.value == pytest.approx(expected)
    assert alpha.interval is not None
    assert alpha.interval[0] == pytest.approx(1 - (1 - expected) * stats.f.ppf(0.975, 9, 9 * 59))


def test_alpha_hardly_changes_where_cells_are_missing() -> None:
    scores = answers(4, 30, 300)
    whole = measure_stability(as_matrix(scores))
    scores[np.random.default_rng(0).random(scores.shape) < 0.1] = np.nan
    partial = measure_stability(as_matrix(scores))
    assert partial.alpha.value == pytest.approx(whole.alpha.value, abs=0.02)


def test_saturation_and_headroom_are_counted() -> None:
    scores = answers(6, 20, 200)
    scores[:, :30] = 1.0
    scores[0, 0] = 0.0
    stability = measure_stability(as_matrix(scores))
    easy = (scores.mean(axis=0) >= 0.95).mean()
    assert stability.saturated.value == pytest.approx(easy)
    assert stability.headroom.value == pytest.approx(1 - scores.mean(axis=1).max())
    assert stability.headroom.interval is not None
    low, high = stability.headroom.interval
    assert low <= 1 - scores.mean(axis=1).max() <= high


def test_a_model_with_the_easy_items_alone_leaves_no_less_headroom() -> None:
    scores = answers(6, 20, 200)
    best = scores.mean(axis=1).max()
    scores[0, :] = np.where(scores.mean(axis=0) > 0.8, 1.0, np.nan)
    assert measure_stability(as_matrix(scores)).headroom.value == pytest.approx(1 - best)


def test_models_that_answer_alike_have_no_alpha() -> None:
    scores = np.tile(np.random.default_rng(0).integers(0, 4, 90) / 3, (6, 1))
    assert measure_stability(as_matrix(scores)).alpha.value is None


def test_alpha_in_clusters_is_that_of_their_means() -> None:
    scores, passages = answers(8, 10, 120), np.repeat(np.arange(24), 5)
    whole = measure_stability(as_matrix(scores, passages)).alpha
    of_means = measure_stability(as_matrix(scores.reshape(10, 24, 5).mean(axis=2))).alpha
    assert whole.value == pytest.approx(of_means.value)
    assert whole.interval == pytest.approx(of_means.interval)


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (2, 2), (3, 30)])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_figures_that_cannot_be_computed_have_reasons(shape: tuple[int, int], score: float) -> None:
    stability = measure_stability(as_matrix(np.full(shape, score)))
    for figure in (stability.tau, stability.alpha):
        assert figure.value is None and figure.reason
    assert Stability.model_validate_json(stability.model_dump_json()) == stability


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
