"""Figures from cases with 95 % intervals, and corrections for many tests.

Missing values are left out and do not count as zero.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import betainc, ndtr, ndtri, stdtrit

from raylab.core.runs.records import Figure

LEVEL = 0.05
"""1 minus the confidence of intervals, and the level of tests."""
QUANTILES = (LEVEL / 2, 1 - LEVEL / 2)
Z = float(ndtri(QUANTILES[1]))
DRAWS = 1000
"""Draws from a posterior."""
MIN_CASES = 20
"""Cases below which agreement and means have no interval."""
PRIOR = 0.5
"""Cases that Jeffreys' prior adds to each of two ends."""
CHUNK = 1 << 20
"""Numbers of a posterior held at once."""

Array = NDArray[np.float64]
Interval = tuple[float, float]
Cells = tuple[tuple[int, ...], float]
"""The cells of a flat table of pairs of answers to which a case adds the same weight, and that."""


def holm(p_values: Array) -> Array:
    """Returns the adjusted p-values of (tests,) p-values (Holm, Scand. J. Stat. 6, 1979).

    The chance that any of those at most `LEVEL` is a false alarm is at most `LEVEL`.
    """
    order = np.argsort(p_values, kind="stable")
    # No test is adjusted less than one with a lower p-value.
    steps = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1))
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def binomial(most: Any, size: Any, share: Any) -> Any:
    """Returns the probability of at most this many of `size` draws that each have this chance."""
    # Its parameters must be above 0, also where the ends below decide.
    inside = betainc(np.maximum(size - most, 1), np.maximum(most + 1, 1), 1 - share)
    return np.where(most < 0, 0.0, np.where(most >= size, 1.0, inside))


def wilson(share: float, size: float) -> Interval:
    """Returns Wilson's score interval (J. Am. Stat. Assoc. 22, 1927) of a share in [0, 1].

    The share is of `size` > 0 cases, a number that need not be whole.
    """
    scale = 2 * (size + Z**2)
    centre = (2 * size * share + Z**2) / scale
    half = Z / scale * math.sqrt(4 * size * share * (1 - share) + Z**2)
    # The ends of the scale are exact; the formula would round.
    return centre - half if share > 0 else 0.0, centre + half if share < 1 else 1.0


def interval_of(draws: Any, quantiles: tuple[float, float] = QUANTILES) -> Interval:
    """Returns the quantiles of draws from a posterior, or of a bootstrap."""
    low, high = np.quantile(draws, quantiles).tolist()
    return low, high


def proportion(successes: int, trials: int) -> Figure:
    """Returns a proportion with its interval by `wilson`; it is undefined without trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
    if not trials:
        return Figure(count=0, reason="no cases")
    share = successes / trials
    return Figure(value=share, interval=wilson(share, trials), count=trials)


def share_of(rows: Any) -> Figure:
    """Returns the proportion of rows that are true, of a column of truths."""
    return proportion(int(rows.sum()), len(rows))


def share_mean(counts: Mapping[float, int], seed: int) -> Figure:
    """Returns the mean of values in [0, 1] with the 95 % interval of its posterior.

    `counts` has the cases of each value. The shares of the values have a Dirichlet posterior, whose
    prior is half a case at 0 and half at 1. Where nothing lies between, this is Jeffreys' interval
    of a proportion.
    """
    values = np.array(sorted(counts), float)
    cases = np.array([counts[value] for value in values], float)
    total = int(cases.sum())
    mean = float(values @ cases / total) if total else None
    if missing := _too_few(total):
        return Figure(value=mean, count=total, reason=missing)
    values, weights = np.append(values, (0.0, 1.0)), np.append(cases, (PRIOR, PRIOR))
    gammas = _gammas(weights, seed)
    drawn = np.concatenate([chunk @ values / chunk.sum(-1) for chunk in gammas])
    return Figure(value=mean, interval=interval_of(drawn), count=total)


def agreement(
    cases: Mapping[Cells, int],
    size: int,
    statistic: Callable[[Array], Array],
    seed: int,
) -> Figure:
    """Returns a statistic of pairs of answers with the 95 % interval of its posterior.

    The shares of the cases, by their pairs of answers, have a Dirichlet posterior. Its prior adds
    one agreeing case and half a disagreeing one. Agreement is spread over labels by their weight in
    the expected disagreement, so that a dominant label does not make a rare one look certain. The
    quantiles are widened as Student's distribution is for so many cases, and the upper end is 1
    where all answers agree. `tests/coverage` has how often these intervals hold the truth.

    Args:
        cases: Numbers of cases by what they add to a (size, size) table of pairs of answers.
        size: Number of different answers.
        statistic: Takes (..., size, size) tables, returns (...) values; NaN is undefined.
        seed: Seed of the draws.
    """
    total = sum(cases.values())
    if not total:
        return Figure(count=0, reason="no case with two answers")
    table = (np.array([*cases.values()], float) @ _cell_weights(cases, size)).reshape(size, size)
    value = float(statistic(table))
    if math.isnan(value):
        reason = "no disagreement is expected: all answers are the same"
        return Figure(count=total, reason=reason)
    if missing := _too_few(total):
        return Figure(value=value, count=total, reason=missing)
    margin = (table.sum(0) + table.sum(1)) / (2 * table.sum())
    chance = np.outer(table.sum(1), table.sum(0))
    np.fill_diagonal(chance, 0.0)
    equal = np.diag(margin * (1 - margin))
    prior = 2 * PRIOR * equal / equal.sum() + PRIOR * chance / (chance.sum() or 1.0)
    weights = Counter[Cells](cases)
    for cell in np.flatnonzero(prior).tolist():
        weights[(cell,), 1.0] += prior.flat[cell]
    ordered = sorted(weights)
    added, values = _cell_weights(ordered, size), list[Array]()
    shapes = np.array([weights[cells] for cells in ordered])
    for gammas in _gammas(shapes, seed, table.size):
        tables = np.ascontiguousarray(gammas / gammas.sum(-1, keepdims=True) * total @ added)
        values.append(statistic(tables.reshape(-1, size, size)))
    drawn = np.concatenate(values)
    tail = float(ndtr(stdtrit(total - 1, QUANTILES[0])))
    low, high = interval_of(drawn[~np.isnan(drawn)], (tail, 1 - tail))
    all_agree = np.count_nonzero(table) == np.count_nonzero(table.diagonal())
    return Figure(value=value, interval=(low, 1.0 if all_agree else high), count=total)


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
    if total >= MIN_CASES:
        return ""
    return f"{total} cases: an interval needs {MIN_CASES}" if total else "no cases"
