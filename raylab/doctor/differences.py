"""Paired comparisons of all models: the differences that are real.

Two models are compared on the items that both have, whose scores are subtracted item by item
(Miller, arXiv 2411.00640). Items of one group vary together, so a group counts as one observation.

- Where groups differ by one amount or not at all, as single items that are right or wrong do, the
  test is McNemar's exact one, and the interval that of Bonett and Price (J. Educ. Behav. Stat. 37,
  2012). A t-test would take few differing items for more than they are.
- Elsewhere the standard error is the jackknife's over groups, and t has the degrees of freedom
  (sum p^2)^2 / sum p^4 * (1 - 1/G) of G groups with shares p of the weight: Satterthwaite's for
  groups whose items move as one, G - 1 where they are equally large. No p-value is below
  2^(1 - n), the least that n differing items can show.

Decisions hold together (Holm, Scand. J. Stat. 6, 1979): among models that are equal, at most 5 % of
benchmarks show any difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from raylab.doctor.figures import Finding, make_figure, missing_figure, points
from raylab.doctor.responses import Array, Matrix
from raylab.printable import pluralize
from raylab.runs.records import Part

LEVEL = 0.05
POWER = 0.8
LEAST_DIFFERING = 6
"""Differing items below which even 5 % is out of reach."""
SHOWN_MODELS = 30
"""Models whose pairs a record holds: the best ones."""
TINY = 1e-9
DISJOINT = "no item has a score of both models"
ONE_GROUP = "all common items are in one group, so nothing says how far chance moves it"
ALIKE = "the models answer all common items alike"
FEW = f"the models differ on fewer than {LEAST_DIFFERING} items, which chance may do"
CONSTANT = "the difference is the same in every group, so nothing says how far chance moves it"


class Difference(Part):
    """The difference of two models on the items that both have."""

    first: str
    second: str
    difference: float | None
    """Weighted mean of the first model's scores less the second's; None without common items."""
    error: float | None
    """Its standard error; None where nothing shows it."""
    interval: tuple[float, float] | None
    """Ends of its 95 % interval, of this pair alone."""
    adjusted: float
    """Its p-value adjusted for the number of pairs (Holm)."""
    apart: bool
    """True if the difference is real at the 5 % level of all pairs together."""
    reason: str | None
    """The reason why the pair has no interval or cannot be told apart, where it is not chance."""

    @property
    def sentence(self) -> str:
        """The difference in words."""
        if self.difference is None:
            return f"{self.first} and {self.second} cannot be compared: {self.reason}."
        better = (self.first, self.second)[:: 1 if self.difference >= 0 else -1]
        verdict = "for sure" if self.apart else "which may be chance"
        gap = points(abs(self.difference))
        return f"{better[0]} is {gap} above {better[1]}, {verdict}."


class Rank(Part):
    """The rank of a model, 1 for the best."""

    model: str
    mean: float
    """Weighted mean of its scores, in [0, 1]."""
    rank: int
    """By its mean difference from the other models; ties share the least rank."""
    low: int
    """One more than the number of models that are better for sure."""
    high: int
    """The number of models less those that are worse for sure. The ranks from `low` to `high`
    hold the true ones of all models together for 95 % of benchmarks."""

    @property
    def sentence(self) -> str:
        """The rank in words."""
        if self.low == self.high:
            return f"{self.model} has rank {self.rank} for sure."
        return f"{self.model} has rank {self.rank}; {self.low} to {self.high} are possible."


class Differences(Part):
    """The decisions about all pairs of models."""

    pairs: int
    """Number of pairs of models."""
    apart: int
    """Number of pairs whose difference is real."""
    share_apart: Finding
    smallest: Finding
    """The smallest difference that has a power of 80 % at `level`, with the median of the pairs'
    standard errors: (t(1 - level / 2) + t(0.8)) * error."""
    level: float
    """0.05 over the number of pairs not told apart, at which Holm's procedure stops."""
    ranks: tuple[Rank, ...]
    """Of all models, the best first."""
    shown: tuple[Difference, ...]
    """The pairs of the 30 best models, of which the better ranks first."""

    @property
    def sentence(self) -> str:
        """The differences in words."""
        return f"{self.share_apart.sentence} {self.smallest.sentence}"


def compare_models(matrix: Matrix) -> Differences:
    """Decides which differences between models are real, from their scores on items."""
    table = compare_pairs(matrix)
    pairs, apart = len(table), int(table["apart"].to_numpy(bool).sum())
    level = LEVEL / max(1, pairs - apart)
    ranks, order = _rank(matrix, table)
    return Differences(
        pairs=pairs,
        apart=apart,
        share_apart=_share(pairs, apart),
        smallest=_smallest(table, level),
        level=level,
        ranks=ranks,
        shown=tuple(_differences(matrix, table, order[:SHOWN_MODELS])),
    )


def compare_pairs(matrix: Matrix) -> pd.DataFrame:
    """Returns a row for each pair of models, those of the first model first.

    Columns: `first` and `second` are numbers of models; `difference`, `error`, `low`, `high` (NaN
    where there is none) are in [-1, 1]; `freedom` is that of t; `groups` and `differing` are
    numbers of common groups and of items with different scores; `p` is that of the pair, `adjusted`
    Holm's; `apart` is the decision; `reason` is empty where only chance is against it.
    """
    blocks = [_test(sums) for sums in _pair_sums(matrix)]
    if not blocks:
        columns = (*_Sums.columns, "p", "adjusted", "apart", "reason")
        return pd.DataFrame({name: [] for name in columns})
    table = pd.concat(blocks, ignore_index=True)
    table["reason"] = table["reason"].astype("category")
    table["adjusted"] = adjust(table["p"].to_numpy())
    table["apart"] = table["adjusted"] <= LEVEL
    return table


def adjust(p: Array) -> Array:
    """Returns Holm's adjusted p-values of (tests,) p-values."""
    order = np.argsort(p, kind="stable")
    stepwise = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepwise, 1.0)
    return adjusted


@dataclass(frozen=True)
class _Sums:
    """Sums over the groups of the common items of one model and the (pairs,) models after it."""

    columns = ("first", "second", "difference", "error", "low", "high", "freedom", "groups")

    first: int
    differences: Array
    """(pairs, groups) sums of weight times difference; tiny ones are 0."""
    weights: Array
    """(pairs or 1, groups) sums of weights."""
    differing: Array
    """(pairs,) numbers of items with different scores."""


def _pair_sums(matrix: Matrix) -> Iterator[_Sums]:
    order = np.argsort(matrix.groups, kind="stable")
    groups = matrix.groups[order]
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))
    scores, weights = matrix.scores[:, order], matrix.weights[order]
    single = len(starts) == len(order)

    def total(values: Array) -> Array:
        return values if single else np.add.reduceat(values, starts, axis=1)

    present = ~np.isnan(scores)
    complete, filled = bool(present.all()), np.nan_to_num(scores)
    of_groups, whole = total(filled * weights), total(weights[None])
    for first in range(len(scores) - 1):
        others = slice(first + 1, None)
        apart = filled[first] - filled[others]
        if complete:
            sums, own = of_groups[first] - of_groups[others], whole
        else:
            common = present[first] & present[others]
            apart, both = apart * common, weights * common
            sums, own = total(weights * apart), total(both)
        sums[np.abs(sums) <= TINY * whole.max()] = 0.0
        yield _Sums(first, sums, own, np.count_nonzero(apart, axis=1))


def _test(sums: _Sums) -> pd.DataFrame:
    """Tests the pairs of one model, each alone."""
    total, groups = sums.weights.sum(axis=1), (sums.weights > 0).sum(axis=1)
    signed = [(sums.differences > 0).sum(axis=1), (sums.differences < 0).sum(axis=1)]
    sizes = np.abs(sums.differences)
    largest, moved = sizes.max(axis=1), signed[0] + signed[1]
    equal = np.abs(sizes.sum(axis=1) - moved * largest) <= TINY * moved * largest
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.differences.sum(axis=1) / total
        size = np.where(moved > 0, largest, total / groups)
        estimates = np.array(_exact(sums, size, total / groups, groups))
        if not equal.all():
            estimates = np.where(equal, estimates, _clustered(sums, mean, total, groups))
    error, low, high, freedom = estimates
    with np.errstate(invalid="ignore", divide="ignore"):
        student = 2 * stats.t.sf(np.abs(mean) / error, freedom)
    constant = ~equal & (error <= TINY)
    least = np.where(constant, moved, sums.differing).astype(float)
    p = np.where(equal, _mcnemar(*signed), np.maximum(student, 2.0 ** (1 - least)))
    bare = constant | (~equal & (sums.differing < LEAST_DIFFERING)) | (groups < 2)
    none = np.where(bare, np.nan, 0.0)
    reasons = {
        DISJOINT: groups == 0,
        ONE_GROUP: groups == 1,
        ALIKE: sums.differing == 0,
        FEW: sums.differing < LEAST_DIFFERING,
        CONSTANT: constant,
    }
    return pd.DataFrame(
        {
            "first": sums.first,
            "second": sums.first + 1 + np.arange(len(mean)),
            "difference": mean,
            "error": error + none,
            "low": np.maximum(low, -1.0) + none,
            "high": np.minimum(high, 1.0) + none,
            "freedom": freedom,
            "groups": groups + 0 * moved,
            "differing": sums.differing,
            "p": np.where(groups < 2, 1.0, np.nan_to_num(np.minimum(p, 1.0), nan=1.0)),
            "reason": np.select(list(reasons.values()), list(reasons), ""),
        }
    )


def _clustered(
    sums: _Sums, mean: Array, total: Array, groups: Array
) -> tuple[Array, Array, Array, Array]:
    """Returns standard errors, ends of intervals and degrees of freedom of weighted means.

    The jackknife leaves out one group at a time.
    """
    shares = sums.weights / total[:, None]
    left = (sums.differences - mean[:, None] * sums.weights) / (1 - shares)
    factor = (groups - 1) / groups
    error = np.sqrt(factor * np.einsum("pg,pg->p", left, left)) / total
    squares = shares**2
    freedom = np.maximum(1.0, squares.sum(axis=1) ** 2 / (squares**2).sum(axis=1) * factor)
    half = stats.t.ppf(1 - LEVEL / 2, freedom) * error
    return error, mean - half, mean + half, np.broadcast_to(freedom, mean.shape)


def _exact(
    sums: _Sums, size: Array, weight: Array, groups: Array
) -> tuple[Array, Array, Array, Array]:
    """Returns the same of groups that differ by one size or not, with two more that differ.

    Args:
        sums: Sums of the pairs.
        size: (pairs,) amount that the groups of a pair differ by.
        weight: (pairs or 1,) mean weight of a group.
        groups: (pairs or 1,) numbers of groups.
    """
    more = groups + 2
    centre = sums.differences.sum(axis=1) / more
    squares = np.einsum("pg,pg->p", sums.differences, sums.differences) + 2 * size**2
    error = np.sqrt((squares / more - centre**2) / more) / weight
    half, centre = stats.norm.ppf(1 - LEVEL / 2) * error, centre / weight
    return error, centre - half, centre + half, np.broadcast_to(groups - 1.0, centre.shape)


def _mcnemar(above: Array, below: Array) -> Array:
    """Returns exact two-sided p-values of (pairs,) numbers of groups in either direction."""
    return np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(above, below), above + below, 0.5))


def _share(pairs: int, apart: int) -> Finding:
    if not pairs:
        return missing_figure("The share of pairs told apart", "it needs two models")
    return make_figure(
        apart / pairs,
        None,
        f"Of {pluralize(pairs, 'pair')} of models {apart:,} differ for sure.",
        "it counts decisions, of which at most 5 % of benchmarks have a wrong one",
    )


def _smallest(table: pd.DataFrame, level: float) -> Finding:
    usable = table.dropna(subset=["error"])
    if usable.empty:
        return missing_figure(
            "The smallest difference that can be told", "no pair has a standard error"
        )
    columns = ("error", "freedom", "groups", "differing")
    error, freedom, groups, differing = (
        float(np.median(usable[name].to_numpy(float))) for name in columns
    )
    value = float(stats.t.ppf(1 - level / 2, freedom) + stats.t.ppf(POWER, freedom)) * error
    # So many items must differ, by 1 at most, for 2^(1 - n) to be as low as the level.
    needed = 1 - np.log2(level)
    if differing < needed:
        value = max(value, needed / groups)
    if value > 1:
        reason = "these items cannot tell any difference of two models"
        return missing_figure("The smallest difference that can be told", reason)
    sentence = f"A difference below {points(value)} is mostly missed by these items."
    reason = "it is a property of the items and of the number of models, not an estimate"
    return make_figure(value, None, sentence, reason)


def _rank(matrix: Matrix, table: pd.DataFrame) -> tuple[tuple[Rank, ...], list[int]]:
    """Returns the ranks, and the numbers of the models in their order."""
    number = len(matrix.models)
    gaps, wins = np.full((number, number), np.nan), np.zeros((number, number), bool)
    ends = table["first"].to_numpy(int), table["second"].to_numpy(int)
    gaps[ends] = table["difference"].to_numpy(float)
    gaps[ends[::-1]] = -gaps[ends]
    wins[ends] = wins[ends[::-1]] = table["apart"].to_numpy(bool)
    above, below = (wins & (gaps > 0)).sum(axis=1), (wins & (gaps < 0)).sum(axis=1)
    compared = ~np.isnan(gaps)
    mean_gaps = np.nansum(gaps, axis=1) / np.maximum(compared.sum(axis=1), 1)
    ranks = stats.rankdata(-np.round(mean_gaps, 12), method="min")
    order = np.lexsort((-matrix.means, ranks)).tolist()
    means = matrix.means
    return tuple(
        Rank(
            model=matrix.models[m],
            mean=float(means[m]),
            rank=int(ranks[m]),
            low=min(int(below[m]) + 1, int(ranks[m])),
            high=max(number - int(above[m]), int(ranks[m])),
        )
        for m in order
    ), order


def _differences(matrix: Matrix, table: pd.DataFrame, order: list[int]) -> Iterator[Difference]:
    """Yields the pairs of some models, each with the better first."""
    place = {model: n for n, model in enumerate(order)}
    chosen: Any = table[table["first"].isin(order) & table["second"].isin(order)]
    for row in chosen.to_dict("records"):
        sign = 1 if place[row["first"]] < place[row["second"]] else -1
        first, second = (row["first"], row["second"])[::sign]
        low, high = sorted((sign * row["low"], sign * row["high"]))
        yield Difference(
            first=matrix.models[first],
            second=matrix.models[second],
            difference=_number(sign * row["difference"]),
            error=_number(row["error"]),
            interval=None if np.isnan(low) else (low, high),
            adjusted=row["adjusted"],
            apart=row["apart"],
            reason=row["reason"] or None,
        )


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
