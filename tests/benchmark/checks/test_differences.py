"""Differences between models: paired, in strata and clusters, and Holm-corrected."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raylab.benchmark.checks.differences import (
    ALIKE,
    CONSTANT,
    DISJOINT,
    FEW,
    ONE_CLUSTER,
    compare_models,
    compare_pairs,
)
from raylab.benchmark.checks.models import fit_items
from raylab.benchmark.checks.power import mcnemar_power, typical_power
from raylab.benchmark.pages.sentences import describe_differences
from raylab.core.errors import ConfigError
from tests.benchmark.checks.simulation import Array, as_matrix


def answers(*counts: tuple[int, int, int]) -> Array:
    """Scores of two models from (first, second, number of items) triples."""
    return np.array([[a, b] for a, b, number in counts for _ in range(number)], float).T


def test_right_and_wrong_answers_are_compared_by_mcnemars_exact_test() -> None:
    row = compare_pairs(as_matrix(answers((1, 0, 14), (0, 1, 4), (1, 1, 60), (0, 0, 22)))).iloc[0]
    assert row["p"] == pytest.approx(stats.binomtest(4, 18).pvalue)
    # Bonett and Price: 15 and 5 of 102 differ.
    up, down = 15 / 102, 5 / 102
    error = np.sqrt((up + down - (up - down) ** 2) / 102)
    assert row["error"] == pytest.approx(error)
    assert row["low"] == pytest.approx(up - down - stats.norm.ppf(0.975) * error)


def reference(y: Array, weights: Array, strata: Array, clusters: Array) -> tuple[float, float]:
    """CR2 and Satterthwaite's df of a mean, with the matrices of Pustejovsky and Tipton (2018)."""
    x = (strata[:, None] == np.unique(strata)).astype(float)
    bread = np.linalg.inv(x.T @ (weights[:, None] * x))
    residual_maker = np.eye(len(y)) - x @ bread @ (x.T * weights)
    contrast = x.T @ weights / weights.sum() @ bread
    square, rows = 0.0, list[Array]()
    for cluster in np.unique(clusters):
        own = clusters == cluster
        values, vectors = np.linalg.eigh(residual_maker[own] @ residual_maker[own].T)
        adjust = (vectors / np.sqrt(np.where(values > 1e-10, values, np.inf))) @ vectors.T
        rows.append(contrast @ (x[own].T * weights[own]) @ adjust @ residual_maker[own])
        square += float(rows[-1] @ y) ** 2
    products = np.array(rows) @ np.array(rows).T
    return square**0.5, float(np.trace(products) ** 2 / (products**2).sum())


RNG = np.random.default_rng(1)
THREE, UNEQUAL = np.arange(30) // 10, RNG.integers(0, 7, 30)


@pytest.mark.parametrize(
    ("strata", "clusters", "weights"),
    [
        (None, None, None),
        (None, np.arange(30) // 5, None),
        (None, UNEQUAL, None),
        (None, np.maximum(np.arange(30) - 20, 0), None),
        (THREE, None, None),
        (THREE, THREE * 10 + RNG.integers(0, 4, 30), None),
        (THREE, THREE * 10 + RNG.integers(0, 4, 30), np.array([1.0, 3.0, 2.0])[THREE]),
        (None, None, RNG.random(30) + 0.5),
    ],
)
def test_errors_in_strata_and_clusters_are_cr2(
    strata: Array | None, clusters: Array | None, weights: Array | None
) -> None:
    scores = np.random.default_rng(2).random((2, 30))
    matrix = as_matrix(scores, clusters, weights, strata)
    row = compare_pairs(matrix).iloc[0]
    differences = scores[0] - scores[1]
    error, freedom = reference(differences, matrix.weights, matrix.strata, matrix.clusters)
    assert (row["error"], row["freedom"]) == pytest.approx((error, freedom))
    # Below 20 clusters the test takes the larger error.
    error = np.fmax(error, row["unclustered"])
    expected = 2 * stats.t.sf(abs(row["difference"]) / error, freedom)
    assert row["p"] == pytest.approx(max(expected, 2.0**-29))


def test_strata_of_one_cluster_each_are_compared_with_each_other() -> None:
    scores, clusters = np.random.default_rng(2).random((2, 60)), np.repeat(np.arange(12), 5)
    row = compare_pairs(as_matrix(scores, clusters, strata=clusters)).iloc[0]
    means = scores.reshape(2, 12, 5).mean(axis=2)
    assert row["p"] == pytest.approx(stats.ttest_rel(*means).pvalue)
    assert row["freedom"] == pytest.approx(11)


def test_two_tasks_are_strata_that_tell_models_apart_and_clusters_are_named() -> None:
    scores = np.concatenate([answers((1, 0, 200), (0, 1, 60), (1, 1, 100))] * 2, axis=1)
    tasks = np.repeat([0, 1], 360)
    assert compare_models(as_matrix(scores, strata=tasks)).apart == 1
    clustered = compare_models(as_matrix(scores, np.arange(720) % 12, strata=tasks))
    (pair,) = clustered.shown
    assert (clustered.clusters, pair.clusters, pair.apart) == (12, 12, True)
    apart = compare_pairs(as_matrix(scores * 0.9, strata=tasks)).iloc[0]
    assert pair.unclustered == pytest.approx(apart["error"] / 0.9)
    assert "Items are in 12 clusters; below 20, errors are uncertain." in (
        describe_differences(clustered)
    )


def test_missing_cells_leave_the_items_that_both_have() -> None:
    draw = np.random.default_rng(3)
    scores, clusters = draw.random((3, 40)), draw.integers(0, 15, 40)
    weights = draw.random(40) + 0.5
    scores[draw.random((3, 40)) < 0.3] = np.nan
    table: Any = compare_pairs(as_matrix(scores, clusters, weights))
    for row in table.itertuples():
        pair = scores[[row.first, row.second]]
        both = ~np.isnan(pair).any(axis=0)
        alone = compare_pairs(as_matrix(pair[:, both], clusters[both], weights[both])).iloc[0]
        assert row.difference == pytest.approx(
            np.average(pair[0, both] - pair[1, both], weights=weights[both])
        )
        assert (row.p, row.error, row.clusters) == pytest.approx(
            (alone["p"], alone["error"], alone["clusters"])
        )


@pytest.mark.parametrize(
    ("scores", "clusters", "reason"),
    [
        (answers((1, 1, 5), (0, 0, 5)), None, ALIKE),
        (answers((1, 0, 4), (1, 1, 96)), None, FEW),
        (np.array([[1.0, np.nan], [np.nan, 0.0]]), None, DISJOINT),
        (answers((1, 0, 9), (1, 1, 9)), np.zeros(18), ONE_CLUSTER),
        (answers((1, 0, 6), (1, 1, 6)), np.array([0] * 2 + [1] * 4 + [0] * 2 + [1] * 4), CONSTANT),
    ],
)
def test_a_pair_that_cannot_be_decided_has_a_reason(
    scores: Array, clusters: Array | None, reason: str
) -> None:
    differences = compare_models(as_matrix(scores, clusters))
    (pair,) = differences.shown
    assert (pair.reason, pair.apart, differences.apart) == (reason, False, 0)


def test_a_certain_difference_separates_the_ranks() -> None:
    ranks = compare_models(as_matrix(answers((1, 0, 20)))).ranks
    assert [(rank.rank, rank.low, rank.high) for rank in ranks] == [(1, 1, 1), (2, 2, 2)]


def test_ranks_go_by_shared_items_and_say_so_where_means_do_not() -> None:
    easy, hard = answers((1, 1, 30)), answers((1, 0, 10), (0, 0, 20))
    scores = np.concatenate([easy, hard], axis=1)
    # The second model has only easy items: mean 1, but no better than the first on them.
    scores[1, 30:] = np.nan
    scores = np.vstack([scores, scores[0] - 0.1])
    assert fit_items(as_matrix(scores))[0] == pytest.approx([2 / 3, 2 / 3, 2 / 3 - 0.1])
    ranks = compare_models(as_matrix(scores)).ranks
    assert [(rank.rank, rank.below_lower) for rank in ranks] == [(1, False), (1, False), (3, False)]
    scores[1, :30] = 0.95
    (_, second, _) = (differences := compare_models(as_matrix(scores))).ranks
    assert (second.model, second.below_lower) == ("m0001", True)
    assert "m0001 ranks below a model with a lower mean, which has harder items" in (
        describe_differences(differences)
    )


def test_models_are_compared_with_a_baseline_alone() -> None:
    scores = np.random.default_rng(5).normal(np.linspace(0.4, 0.6, 5)[:, None], 0.1, (5, 80))
    differences = compare_models(as_matrix(scores), baseline="m0002")
    others = {each.first: each for each in differences.against}
    assert list(others) == ["m0004", "m0003", "m0001", "m0000"]
    p = {name: stats.ttest_rel(scores[int(name[1:])], scores[2]).pvalue for name in others}
    assert {name: each.p for name, each in others.items()} == pytest.approx(p)
    ordered = sorted(p.values())
    assert min(each.adjusted for each in others.values()) == pytest.approx(4 * ordered[0])
    for name, each in others.items():
        assert each.difference == pytest.approx(scores[int(name[1:])].mean() - scores[2].mean())
        assert each.interval and each.interval[0] < (each.difference or 0) < each.interval[1]
    with pytest.raises(ConfigError, match="baseline=m9 is no model"):
        compare_models(as_matrix(scores), baseline="m9")


def test_models_are_equivalent_where_both_one_sided_tests_exclude_the_margin() -> None:
    scores = np.random.default_rng(6).normal(0.5, 0.1, (2, 200))
    difference = scores[0] - scores[1]
    error = difference.std(ddof=1) / 200**0.5
    edge = abs(difference.mean()) + stats.t.ppf(0.95, 199) * error
    for margin, expected in ((edge - 1e-6, False), (edge + 1e-6, True), (None, None)):
        (pair,) = compare_models(as_matrix(scores), margin=margin).shown
        assert pair.equivalent is expected


@pytest.mark.parametrize(("items", "differing", "gap"), [(60, 0.3, 0.2), (400, 0.2, 0.06)])
def test_the_power_of_mcnemars_test_is_that_of_simulations(
    items: int, differing: float, gap: float
) -> None:
    shares = ((differing + gap) / 2, (differing - gap) / 2, 1 - differing)
    up, down, _ = np.random.default_rng(7).multinomial(items, shares, 1500).T
    p = 2 * stats.binom.cdf(np.minimum(up, down), up + down, 0.5)
    detected = np.mean((up > down) & (p <= 0.01))
    assert mcnemar_power(items, differing, gap, 0.01) == pytest.approx(detected, abs=0.04)


def test_items_that_differ_are_needed_to_detect_a_difference() -> None:
    differences = compare_models(as_matrix(answers((1, 0, 1), (1, 1, 99))), detect=0.02)
    # At least 6 items must differ, all in one direction: P(Bin(100, .078) >= 6) is .8.
    smallest = differences.smallest.value or 0.0
    assert stats.binom.sf(5, 100, smallest) == pytest.approx(0.8, abs=1e-4)
    needed = int(differences.needed.value or 0)
    assert stats.binom.sf(5, needed, 0.02) == pytest.approx(0.8, abs=3e-3)
    assert [point.items for point in differences.curve] == [12, 25, 50, 100, 200, 400, 800]
    assert differences.curve[3].difference == pytest.approx(smallest)
    assert describe_differences(differences) == (
        "0 of 1 pair of models differ at the 5 % level (Holm). "
        "m0000 leads, not told apart from m0001. "
        "A true difference of 7.8 points is detected 80 % of the time. "
        f"{needed} items detect a difference of 2.0 points."
    )


def test_the_power_of_the_t_test_is_that_of_the_noncentral_t() -> None:
    pair = {"items": 400, "differing": 400, "clusters": 400, "freedom": 399.0, "error": 0.01}
    power = typical_power(pd.DataFrame([pair]), exact=False, level=0.01)
    assert callable(power)
    for gap in np.linspace(0.005, 0.6, 600):
        expected = stats.nct.sf(stats.t.isf(0.005, 399), 399, gap / 0.01)
        assert power(1.0, gap) == pytest.approx(expected, abs=1e-9)


def test_models_with_equal_scores_on_all_common_items_are_named() -> None:
    scores = np.tile(np.arange(30) % 3 == 0, (3, 1)).astype(float)
    scores[1, ::4] = 1.0
    said = "Equal scores on all common items: m0000 and m0002."
    assert said in describe_differences(compare_models(as_matrix(scores)))
    # On few items it may be chance.
    assert "Equal" not in describe_differences(compare_models(as_matrix(scores[:, 5:22])))


def test_one_model_has_no_pairs_but_a_rank() -> None:
    differences = compare_models(as_matrix(np.ones((1, 3))))
    assert (differences.pairs, differences.smallest.reason) == (0, "it needs two models")
    assert (differences.ranks[0].low, differences.ranks[0].high, differences.shown) == (1, 1, ())


def test_pairs_without_common_items_are_not_compared_and_cost_no_other_pair() -> None:
    scores = np.full((4, 60), np.nan)
    scores[0, :40], scores[1, :40] = 1, np.arange(40) % 4 > 0
    scores[2, 40:50], scores[3, 50:] = 0.0, 1.0
    differences = compare_models(as_matrix(scores))
    assert (differences.pairs, differences.disjoint, differences.apart) == (1, 5, 1)
    (pair,) = (pair for pair in differences.shown if pair.apart)
    assert pair.adjusted == pair.p == pytest.approx(stats.binomtest(0, 10).pvalue)
    assert "5 further pairs share no item" in describe_differences(differences)
    assert not any(rank.below_lower for rank in differences.ranks)


@pytest.mark.parametrize("items", [1, 2, 5, 9, 13])
@pytest.mark.parametrize(("differing", "gap"), [(0.02, 0.01), (0.3, 0.1), (0.9, 0.6), (1.0, 0.8)])
def test_the_power_of_few_items_is_the_sum_over_all_outcomes(
    items: int, differing: float, gap: float
) -> None:
    power = sum(
        stats.binom.pmf(changed, items, differing)
        * stats.binom.pmf(worse, changed, (1 - gap / differing) / 2)
        for changed in range(1, items + 1)
        for worse in range((changed + 1) // 2)
        if stats.binomtest(worse, changed).pvalue <= 0.05
    )
    assert mcnemar_power(items, differing, gap, 0.05) == pytest.approx(power, abs=1e-7)
