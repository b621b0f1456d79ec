"""Estimates from cases, with intervals: proportions, means and agreement."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

from raylab.core.runs.records import Figure

DRAWS = 1000
"""Draws from a posterior."""
QUANTILES = (0.025, 0.975)
LEAST_CASES = 20
"""Cases below which agreement and means have no interval."""
PRIOR = 0.5
"""Cases that Jeffreys' prior adds to each of two ends."""
CHUNK = 1 << 20
"""Numbers of a posterior held at once."""

Array = NDArray[np.float64]
Cells = tuple[tuple[int, ...], float]
"""The cells of a flat table of pairs of answers to which a case adds the same weight, and that."""


class Estimate(Figure):
    """An estimate from cases; missing values are left out and do not count as zero.

    Proportions have Wilson intervals, agreement and means in [0, 1] those of a posterior.
    """

    count: int
    """Number of cases."""

    @property
    def cases(self) -> int:
        """The number of cases that an estimated share stands for."""
        return round((self.value or 0.0) * self.count)


def estimate(
    value: float | None, count: int, interval: tuple[float, float] | None = None, reason: str = ""
) -> Estimate:
    """Returns an estimate; without cases it has no value."""
    return Estimate(
        value=value if count else None, interval=interval, count=count, reason=reason or None
    )


def proportion(successes: int, trials: int) -> Estimate:
    """Returns a proportion with its Wilson score interval (1927).

    Args:
        successes: 0 to `trials`.
        trials: Number of trials; with 0 the proportion is undefined.

    Raises:
        ValueError: The successes are negative or more than the trials.
    """
    if not trials and not successes:
        return estimate(None, 0, reason="no cases")
    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return estimate(successes / trials, trials, (float(interval.low), float(interval.high)))


def share_of(rows: Any) -> Estimate:
    """Returns the proportion of rows that are true, of a column of truths."""
    return proportion(int(rows.sum()), len(rows))


def share_mean(counts: Mapping[float, int], seed: int) -> Estimate:
    """Returns the mean of counted values in [0, 1] with the 95 % interval of its posterior.

    The shares of the values have a Dirichlet posterior, whose prior is half a case at 0 and half at
    1. Where nothing lies between, this is Jeffreys' interval of a proportion.

    Args:
        counts: Cases by value.
        seed: Seed of the draws.
    """
    values = np.array(sorted(counts), float)
    cases = np.array([counts[value] for value in values], float)
    total = int(cases.sum())
    mean = float(values @ cases / total) if total else None
    if missing := _too_few(total):
        return estimate(mean, total, reason=missing)
    values, weights = np.append(values, (0.0, 1.0)), np.append(cases, (PRIOR, PRIOR))
    gammas = _gammas(weights, seed)
    drawn = np.concatenate([chunk @ values / chunk.sum(-1) for chunk in gammas])
    return estimate(mean, total, _percentiles(drawn))


def agreement(
    cases: Mapping[Cells, int],
    size: int,
    statistic: Callable[[Array], Array],
    seed: int,
) -> Estimate:
    """Returns a statistic of pairs of answers with the 95 % interval of its posterior.

    The shares of the cases, by their pairs of answers, have a Dirichlet posterior. Its prior is
    half a case of two different answers, as chance would pair them, and one of two equal answers,
    spread over the answers as they enter the disagreement that chance expects: where one answer
    dominates, agreement on the others decides, and too few of them are seen. The quantiles are
    widened as Student's distribution is for so many cases, and the upper end is 1 where all answers
    agree. `tests/coverage` has how often these intervals hold the truth.

    Args:
        cases: Numbers of cases by what they add to a (size, size) table of pairs of answers.
        size: Number of different answers.
        statistic: Takes (..., size, size) tables, returns (...) values; NaN is undefined.
        seed: Seed of the draws.
    """
    total = sum(cases.values())
    if not total:
        return estimate(None, 0, reason="no case with two answers")
    table = (np.array([*cases.values()], float) @ _cell_weights(cases, size)).reshape(size, size)
    value = float(statistic(table))
    if math.isnan(value):
        reason = "no disagreement is expected: all answers are the same"
        return estimate(None, total, reason=reason)
    if missing := _too_few(total):
        return estimate(value, total, reason=missing)
    tail = float(stats.norm.cdf(stats.t.ppf(QUANTILES[0], total - 1)))
    values = _posterior(cases, table, statistic, seed)
    low, high = _percentiles(values, (tail, 1 - tail))
    all_agree = np.count_nonzero(table) == np.count_nonzero(table.diagonal())
    return estimate(value, total, (low, 1.0 if all_agree else high))


def _posterior(
    cases: Mapping[Cells, int],
    table: Array,
    statistic: Callable[[Array], Array],
    seed: int,
) -> Array:
    """Returns (DRAWS,) values of the statistic for tables of as many cases."""
    margin = (table.sum(0) + table.sum(1)) / (2 * table.sum())
    chance = np.outer(table.sum(1), table.sum(0))
    np.fill_diagonal(chance, 0.0)
    equal = np.diag(margin * (1 - margin))
    prior = 2 * PRIOR * equal / equal.sum() + PRIOR * chance / (chance.sum() or 1.0)
    weights = Counter[Cells](cases)
    for cell in np.flatnonzero(prior).tolist():
        weights[(cell,), 1.0] += prior.flat[cell]
    ordered, total = sorted(weights), sum(cases.values())
    added, values = _cell_weights(ordered, len(table)), list[Array]()
    shapes = np.array([weights[cells] for cells in ordered])
    for gammas in _gammas(shapes, seed, table.size):
        tables = np.ascontiguousarray(gammas / gammas.sum(-1, keepdims=True) * total @ added)
        values.append(statistic(tables.reshape(-1, *table.shape)))
    drawn = np.concatenate(values)
    return drawn[~np.isnan(drawn)]


def _cell_weights(cases: Iterable[Cells], size: int) -> Any:
    """Returns the sparse (cases, size * size) weights that cases add to the cells of a table."""
    entries = [(weight, row, cell) for row, (cells, weight) in enumerate(cases) for cell in cells]
    weights, rows, cells = zip(*entries, strict=True)
    return sparse.csr_array((weights, (rows, cells)), shape=(rows[-1] + 1, size * size))


def _gammas(weights: Array, seed: int, size: int = 0) -> Iterator[Array]:
    """Yields (some, weights) gamma variates, which make a Dirichlet posterior, `DRAWS` in all."""
    generator = np.random.default_rng(seed)
    at_once = max(1, CHUNK // (size or len(weights)))
    for start in range(0, DRAWS, at_once):
        yield generator.standard_gamma(weights, (min(at_once, DRAWS - start), len(weights)))


def _too_few(total: int) -> str:
    """Returns the reason why so many cases give no interval; empty if they do."""
    if total >= LEAST_CASES:
        return ""
    return f"{total} cases: an interval needs {LEAST_CASES}" if total else "no cases"


def _percentiles(values: Array, quantiles: tuple[float, float] = QUANTILES) -> tuple[float, float]:
    low, high = np.quantile(values, quantiles).tolist()
    return low, high
