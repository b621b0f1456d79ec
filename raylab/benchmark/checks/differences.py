"""Paired comparisons of all models: the differences that are real.

Two models are compared on their common items, by the difference of their scores on each (Miller,
arXiv 2411.00640). Items of one group vary together, so a group counts as one observation.

- If groups differ by one amount or not at all, as single items that are right or wrong do, the test
  is McNemar's exact test and the interval is that of Bonett and Price (J. Educ. Behav. Stat. 37,
  2012). A t-test would overrate few differing items.
- Otherwise the standard error is the jackknife's over groups, and t has
  (sum p^2)^2 / sum p^4 * (1 - 1/G) degrees of freedom, for G groups with shares p of the weight:
  Satterthwaite's for groups whose items move as one, G - 1 for groups of equal size. No p-value is
  below 2^(1 - n), the smallest that n differing items can give.

Holm's correction (Scand. J. Stat. 6, 1979) covers all pairs: with equal models, at most 5 % of
benchmarks show any difference.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from raylab.benchmark.checks.items import center_items
from raylab.benchmark.responses import Matrix
from raylab.core.runs.records import Figure, Part
from raylab.core.stats import LEVEL, Array, holm

POWER = 0.8
LEAST_DIFFERING = 6
"""Fewest differing items that can give a p-value of 5 %."""
SHOWN_MODELS = 30
"""Number of the best models whose pairs a record holds."""
TINY = 1e-9
REASONS = DISJOINT, ONE_GROUP, ALIKE, FEW, CONSTANT = (
    "no item has a score of both models",
    "all common items are in one group, so chance cannot be estimated",
    "the models answer all common items alike",
    f"the models differ on fewer than {LEAST_DIFFERING} items, which may be chance",
    "the difference is the same in every group, so chance cannot be estimated",
)


class Difference(Part):
    """The difference between two models on their common items."""

    first: str
    second: str
    difference: float | None
    """Weighted mean of the first model's scores minus the second's; None without common items."""
    error: float | None
    """Its standard error; None if it cannot be estimated."""
    interval: tuple[float, float] | None
    """Ends of the 95 % interval for this pair alone."""
    adjusted: float
    """Its p-value adjusted for the number of pairs (Holm)."""
    apart: bool
    """True if the difference is real at the 5 % level of all pairs together."""
    reason: str | None
    """Why the pair has no interval or cannot be told apart, if chance is not the reason."""


class Rank(Part):
    """The rank of a model, 1 for the best."""

    model: str
    mean: float
    """Weighted mean of its scores, in [0, 1]."""
    rank: int
    """By the mean of its scores minus those of all models on the same items; ties share the best
    rank."""
    low: int
    """One plus the number of models that are certainly better."""
    high: int
    """The number of models minus those that are certainly worse. For 95 % of benchmarks the ranges
    from `low` to `high` contain the true ranks of all models."""


class Differences(Part):
    """The decisions about all pairs of models."""

    pairs: int
    """Number of pairs of models."""
    apart: int
    """Number of pairs whose difference is real."""
    share_apart: Figure
    smallest: Figure
    """The difference that is detected with a power of 80 % at `level`, at the median standard error
    of the pairs: (t(1 - level / 2) + t(0.8)) * error."""
    differ_too_little: bool
    """True if `smallest` is larger than that, because too few items differ for a smaller difference
    to be real at `level`."""
    level: float
    """0.05 over the number of pairs not told apart, where Holm's procedure stops."""
    ranks: tuple[Rank, ...]
    """Of all models, the best first."""
    shown: tuple[Difference, ...]
    """The pairs of the 30 best models; the first of a pair ranks above the second."""


def compare_models(matrix: Matrix) -> Differences:
    """Decides which differences between models are real, by their scores on items."""
    weights = ~np.isnan(matrix.scores) * matrix.weights
    skills = (center_items(matrix.scores) * weights).sum(axis=1) / weights.sum(axis=1)
    ranks = stats.rankdata(-np.round(skills, 12), method="min")
    order = np.argsort(ranks, kind="stable")
    models = tuple(matrix.models[model] for model in order)
    best_first = replace(matrix, scores=matrix.scores[order], models=models)
    table = compare_pairs(best_first)
    pairs, apart = len(table), int(table["apart"].to_numpy(bool).sum())
    level = LEVEL / max(1, pairs - apart)
    smallest, differ_too_little = _smallest(table, level)
    return Differences(
        pairs=pairs,
        apart=apart,
        share_apart=Figure(
            value=apart / pairs,
            reason="it counts decisions; at most 5 % of benchmarks have a wrong one",
        )
        if pairs
        else Figure(reason="it needs two models"),
        smallest=smallest,
        differ_too_little=differ_too_little,
        level=level,
        ranks=tuple(_rank(best_first, table, ranks[order])),
        shown=tuple(_differences(models, table)),
    )


def compare_pairs(matrix: Matrix) -> pd.DataFrame:
    """Returns a row for each pair of models, those of the first model first.

    Columns: `first` and `second` number the models; `difference`, `error`, `low`, `high` (NaN if
    missing) are in [-1, 1]; `freedom` is the degrees of freedom of t; `groups` and `differing`
    count common groups and items with different scores; `p` is the pair's own p-value, `adjusted`
    Holm's; `apart` is the decision; `reason` says what prevents one, if it is not chance.
    """
    if len(matrix.models) < 2:
        # The columns of a pair, without a row.
        pair = replace(matrix, scores=matrix.scores[[0, 0]], models=matrix.models * 2)
        return compare_pairs(pair).iloc[:0]
    blocks = list(_compare(matrix))
    table = pd.DataFrame({name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]})
    table["reason"] = pd.Categorical.from_codes(table["reason"].to_numpy(), list(REASONS))
    table["adjusted"] = holm(table["p"].to_numpy())
    return table.assign(apart=table["adjusted"] <= LEVEL)


def _compare(matrix: Matrix) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields the pairs of each model with those after it."""
    order = np.argsort(matrix.clusters, kind="stable")
    starts = np.flatnonzero(np.diff(matrix.clusters[order], prepend=-1))
    present, scores = ~np.isnan(matrix.scores[:, order]), np.nan_to_num(matrix.scores[:, order])
    weights, complete = matrix.weights[order], bool(present.all())

    def total(values: Array) -> Array:
        return values if len(starts) == len(order) else np.add.reduceat(values, starts, axis=1)

    whole = total(weights[None])
    for first in range(len(scores) - 1):
        others, own = np.arange(first + 1, len(scores)), whole
        apart = scores[first] - scores[first + 1 :]
        if not complete:
            common = present[first] & present[first + 1 :]
            apart *= common
            own = total(weights * common)
        sums = total(weights * apart)
        sums[np.abs(sums) <= TINY * whole.max()] = 0.0
        tests = _test(sums, own, np.count_nonzero(apart, axis=1))
        yield {"first": np.full_like(others, first), "second": others, **tests}


def _test(sums: Array, weights: Array, differing: Array) -> dict[str, NDArray[Any]]:
    """Tests each pair of models on its own; returns columns of `compare_pairs`.

    Args:
        sums: (pairs, groups) sums of weight times difference.
        weights: (pairs or 1, groups) sums of the weights of common items.
        differing: (pairs,) numbers of items with different scores.
    """
    total, groups = weights.sum(axis=1), (weights > 0).sum(axis=1) + 0 * differing
    above, below = (sums > 0).sum(axis=1), (sums < 0).sum(axis=1)
    largest, moved = np.abs(sums).max(axis=1), above + below
    equal = np.abs(np.abs(sums).sum(axis=1) - moved * largest) <= TINY * moved * largest
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.sum(axis=1) / total
        centre, error, freedom, quantile = _exact(sums, total / groups, groups, largest)
        if not equal.all():
            clustered = _cluster(sums, weights, mean, groups)
            centre, error, freedom, quantile = np.where(
                equal, (centre, error, freedom, quantile), clustered
            )
        student = 2 * stats.t.sf(np.abs(mean) / error, freedom)
        mcnemar = np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(above, below), moved, 0.5))
    constant = ~equal & (error <= TINY)
    least = 2.0 ** (1 - np.where(constant, moved, differing))
    p = np.where(equal, mcnemar, np.fmax(student, least))
    few = differing < LEAST_DIFFERING
    bare = constant | (~equal & few) | (groups < 2)
    reasons = [groups == 0, groups == 1, differing == 0, few, constant]
    return {
        "difference": mean,
        "error": np.where(bare, np.nan, error),
        "low": np.where(bare, np.nan, np.maximum(centre - quantile * error, -1.0)),
        "high": np.where(bare, np.nan, np.minimum(centre + quantile * error, 1.0)),
        "freedom": freedom,
        "groups": groups,
        "differing": differing,
        "p": np.where(groups < 2, 1.0, np.minimum(p, 1.0)),
        "reason": np.select(reasons, range(len(reasons)), -1),
    }


def _exact(sums: Array, weight: Array, groups: Array, size: Array) -> tuple[Array, ...]:
    """Returns centres, standard errors, degrees of freedom and quantiles of pairs (Bonett, Price).

    Groups differ by one size or not at all; one more group is added in each direction.
    """
    size = np.where(size > 0, size, weight)
    centre = sums.sum(axis=1) / (groups + 2)
    squares = np.einsum("pg,pg->p", sums, sums) + 2 * size**2
    error = np.sqrt((squares / (groups + 2) - centre**2) / (groups + 2)) / weight
    return centre / weight, error, groups - 1.0, np.full(len(sums), stats.norm.ppf(1 - LEVEL / 2))


def _cluster(sums: Array, weights: Array, mean: Array, groups: Array) -> tuple[Array, ...]:
    """Returns the same for differences of any size, by the jackknife over groups."""
    total = weights.sum(axis=1, keepdims=True)
    shares, factor = weights / total, (groups - 1) / groups
    left = (sums - mean[:, None] * weights) / (total * (1 - shares))
    error = np.sqrt(factor * np.einsum("pg,pg->p", left, left))
    squares = shares**2
    freedom = np.maximum(1.0, squares.sum(axis=1) ** 2 / (squares**2).sum(axis=1) * factor)
    return mean, error, freedom, stats.t.ppf(1 - LEVEL / 2, freedom)


def _smallest(table: pd.DataFrame, level: float) -> tuple[Figure, bool]:
    """Returns the smallest difference that is detected, and if too few differing items set it."""
    usable = table.dropna(subset=["error"])
    if usable.empty:
        return Figure(reason="no pair has a standard error"), False
    columns = ["error", "freedom", "groups", "differing"]
    error, freedom, groups, differing = usable[columns].median().tolist()
    value = float(stats.t.ppf(1 - level / 2, freedom) + stats.t.ppf(POWER, freedom)) * error
    # This many items must differ, each by 1 at most, for 2^(1 - n) to reach the level.
    needed = 1 - np.log2(level)
    if differ_too_little := differing < needed and value < needed / groups:
        value = needed / groups
    if value > 1:
        return Figure(reason="these items cannot tell any two models apart"), differ_too_little
    reason = "it is a property of the items and the number of models, not an estimate"
    return Figure(value=value, reason=reason), differ_too_little


def _rank(matrix: Matrix, table: pd.DataFrame, ranks: Array) -> Iterator[Rank]:
    number, means = len(matrix.models), matrix.means
    wins = np.zeros((number, number))
    wins[table["first"], table["second"]] = np.sign(table["difference"]) * table["apart"]
    wins -= wins.T
    worse, better = (wins > 0).sum(axis=1), (wins < 0).sum(axis=1)
    for place, model in enumerate(matrix.models):
        rank = int(ranks[place])
        low, high = int(better[place]) + 1, number - int(worse[place])
        yield Rank(
            model=model,
            mean=float(means[place]),
            rank=rank,
            low=min(low, rank),
            high=max(high, rank),
        )


def _differences(models: tuple[str, ...], table: pd.DataFrame) -> Iterator[Difference]:
    """Yields the pairs of the first models."""
    chosen: Any = table[table["second"] < SHOWN_MODELS].astype(object).replace(np.nan, None)
    for row in chosen.itertuples():
        yield Difference(
            first=models[row.first],
            second=models[row.second],
            difference=row.difference,
            error=row.error,
            interval=None if row.low is None else (row.low, row.high),
            adjusted=row.adjusted,
            apart=row.apart,
            reason=row.reason,
        )
