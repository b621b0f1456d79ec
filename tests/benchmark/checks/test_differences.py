"""Differences between models: paired, clustered and Holm-corrected."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from raylab.benchmark.checks.differences import (
    ALIKE,
    CONSTANT,
    DISJOINT,
    FEW,
    ONE_GROUP,
    compare_models,
    compare_pairs,
)
from raylab.benchmark.pages.sentences import describe_differences
from tests.benchmark.checks.simulation import Array, as_matrix


def answers(*counts: tuple[int, int, int]) -> Array:
    """Scores of two models from (first, second, number of items) triples."""
    return np.array([[a, b] for a, b, number in counts for _ in range(number)], float).T


def test_scores_of_items_are_compared_by_students_paired_test() -> None:
    scores = np.random.default_rng(0).random((2, 30))
    row = compare_pairs(as_matrix(scores)).iloc[0]
    expected = stats.ttest_rel(*scores)
    low, high = expected.confidence_interval()
    assert row["p"] == pytest.approx(expected.pvalue)
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    assert row["freedom"] == pytest.approx(29)


def test_right_and_wrong_answers_are_compared_by_mcnemars_exact_test() -> None:
    row = compare_pairs(as_matrix(answers((1, 0, 14), (0, 1, 4), (1, 1, 60), (0, 0, 22)))).iloc[0]
    assert row["p"] == pytest.approx(stats.binomtest(4, 18).pvalue)
    # Bonett and Price: 15 and 5 of 102 differ.
    up, down = 15 / 102, 5 / 102
    error = np.sqrt((up + down - (up - down) ** 2) / 102)
    assert row["error"] == pytest.approx(error)
    assert row["low"] == pytest.approx(up - down - stats.norm.ppf(0.975) * error)


def test_groups_that_are_equally_large_count_as_observations() -> None:
    scores, groups = np.random.default_rng(1).random((2, 60)), np.repeat(np.arange(12), 5)
    row = compare_pairs(as_matrix(scores, groups)).iloc[0]
    means = scores.reshape(2, 12, 5).mean(axis=2)
    assert row["p"] == pytest.approx(stats.ttest_rel(*means).pvalue)
    assert row["freedom"] == pytest.approx(11)


def test_a_group_that_dominates_leaves_one_degree_of_freedom() -> None:
    scores = np.random.default_rng(2).random((2, 100))
    row = compare_pairs(as_matrix(scores, np.maximum(np.arange(100) - 90, 0))).iloc[0]
    assert row["freedom"] == pytest.approx(1.0, abs=0.01)
    two = compare_pairs(as_matrix(scores, np.arange(100) % 2)).iloc[0]
    assert two["freedom"] == 1.0
    assert two["low"] < two["difference"] < two["high"]


def test_missing_cells_leave_the_items_that_both_have() -> None:
    draw = np.random.default_rng(3)
    scores, groups, weights = draw.random((3, 40)), draw.integers(0, 15, 40), draw.random(40) + 0.5
    scores[draw.random((3, 40)) < 0.3] = np.nan
    table: Any = compare_pairs(as_matrix(scores, groups, weights))
    for row in table.itertuples():
        pair = scores[[row.first, row.second]]
        both = ~np.isnan(pair).any(axis=0)
        alone = compare_pairs(as_matrix(pair[:, both], groups[both], weights[both])).iloc[0]
        assert row.difference == pytest.approx(
            np.average(pair[0, both] - pair[1, both], weights=weights[both])
        )
        assert (row.p, row.error, row.groups) == pytest.approx(
            (alone["p"], alone["error"], alone["groups"])
        )


@pytest.mark.parametrize(
    ("scores", "groups", "reason"),
    [
        (answers((1, 1, 5), (0, 0, 5)), None, ALIKE),
        (answers((1, 0, 4), (1, 1, 96)), None, FEW),
        (np.array([[1.0, np.nan], [np.nan, 0.0]]), None, DISJOINT),
        (answers((1, 0, 9), (1, 1, 9)), np.zeros(18), ONE_GROUP),
        (answers((1, 0, 6), (1, 1, 6)), np.array([0] * 2 + [1] * 4 + [0] * 2 + [1] * 4), CONSTANT),
    ],
)
def test_a_pair_that_cannot_be_decided_has_a_reason(
    scores: Array, groups: Array | None, reason: str
) -> None:
    differences = compare_models(as_matrix(scores, groups))
    (pair,) = differences.shown
    assert (pair.reason, pair.apart, differences.apart) == (reason, False, 0)


def test_a_certain_difference_separates_the_ranks() -> None:
    ranks = compare_models(as_matrix(answers((1, 0, 20)))).ranks
    assert [(rank.rank, rank.low, rank.high) for rank in ranks] == [(1, 1, 1), (2, 2, 2)]


def test_the_smallest_difference_needs_items_that_differ() -> None:
    # 2^(1 - n) is 0.05 at n = 1 - log2(0.05) = 5.32 items of 100.
    differences = compare_models(as_matrix(answers((1, 0, 1), (1, 1, 99))))
    assert differences.smallest.value == pytest.approx(0.0532, abs=5e-5)
    assert describe_differences(differences) == (
        "0 of 1 pair of models differ at the 5 % level (Holm). "
        "No difference below 5.3 points can be detected."
    )


def test_the_smallest_difference_has_its_power() -> None:
    draw, apart = np.random.default_rng(4), 0
    scores = draw.normal(0.5, 0.1, (2, 50))
    smallest = compare_models(as_matrix(scores)).smallest.value
    assert smallest is not None
    error = np.sqrt(2) * 0.1 / np.sqrt(50)
    assert smallest == pytest.approx((stats.t.ppf(0.975, 49) + stats.t.ppf(0.8, 49)) * error, 0.3)
    for _ in range(100):
        scores = draw.normal(0.5, 0.1, (2, 50))
        scores[0] += 2.85 * error
        apart += compare_models(as_matrix(scores)).apart
    assert 0.68 < apart / 100 < 0.92


def test_one_model_has_no_pairs_but_a_rank() -> None:
    differences = compare_models(as_matrix(np.ones((1, 3))))
    assert differences.share_apart.reason and differences.smallest.reason
    assert (differences.ranks[0].low, differences.ranks[0].high, differences.shown) == (1, 1, ())
