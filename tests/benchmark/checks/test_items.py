"""Figures of items against hand computation and plain loops."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr

from raylab.benchmark.checks.items import judge_items, rest_scores
from tests.benchmark.checks.simulation import as_matrix

NAN = np.nan


def judge(*columns: list[float]) -> pd.DataFrame:
    return judge_items(as_matrix(np.array(columns).T))


def test_what_is_undefined_is_missing() -> None:
    judged = judge([1, 1, 1, 1], [0, 1, NAN, NAN], [0, 1, 0, 1])
    assert judged.iloc[:2, 2:].isna().all(axis=None)
    assert judged.iloc[2, 2:].isna().sum() == 0
    assert list(judged["models"]) == [4, 2, 4]
    assert list(judged["difficulty"]) == [0, 0.5, 0.5]
    assert judge([0, 1, 1]).iloc[0, 2:].isna().all()  # No other item, so no rest scores.
    for few in (
        judge([1]),
        judge([1], [0], [0.5]),
        judge([0, 1], [1, 0]),
        judge([NAN] * 3, [0, 1, 1]),
    ):
        assert few.iloc[:, 2:].isna().all(axis=None)


@pytest.mark.parametrize("seed", range(5))
def test_figures_agree_with_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chances = 1 / (1 + np.exp(rng.normal(size=6) - rng.normal(size=(7, 1))))
    scores = rng.binomial(1, chances).astype(float)
    scores[:2] = [[0] * 6, [1] * 6]  # No item is answered alike by all.
    judged = judge_items(as_matrix(scores))
    for item in range(6):
        rests = np.delete(scores, item, axis=1).sum(axis=1)
        assert judged["item_rest"].iloc[item] == pytest.approx(pearsonr(scores[:, item], rests)[0])


def test_missing_cells_leave_the_rest_as_it_is() -> None:
    # Two benchmarks of different models, side by side: each item is judged as in its own.
    left, right = np.random.default_rng(3).integers(0, 2, (2, 8, 5)).astype(float)
    gap = np.full((8, 5), NAN)
    judged = judge_items(as_matrix(np.block([[left, gap], [gap, right]])))
    alone = [judge_items(as_matrix(scores)) for scores in (left, right)]
    np.testing.assert_allclose(judged.to_numpy(), pd.concat(alone).to_numpy(), atol=1e-9)


def test_a_model_without_the_easy_items_is_not_weak() -> None:
    scores = np.tile([1.0, 1.0, 0.5, 0.5], (3, 1))
    scores[2, :2] = NAN
    np.testing.assert_array_equal(rest_scores(scores)[:, 2:], np.zeros((3, 2)))
