"""Stability of the ranking."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from raylab.benchmark.checks.stability import measure_stability
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
