"""Estimates from cases: proportions and their differences, means, and agreement."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from raylab.runs.records import Part

DRAWS = 1000
"""Draws from a posterior."""
QUANTILES = (0.025, 0.975)
LEAST_CASES = 20
"""Cases below which agreement and means have no interval."""
LEAST_APART = 3
"""Cases apart from the commonest value below which a mean of amounts has no interval."""
PRIOR = 0.5
"""Cases that Jeffreys' prior adds to each of two ends."""
CHUNK = 1 << 20
"""Numbers of a posterior held at once."""

Array = NDArray[np.float64]


class Estimate(Part):
    """An estimate from cases.

    Proportions have Wilson intervals, agreement and means in [0, 1] those of a posterior, means of
    amounts Student's with a correction. Missing values are left out and do not count as zero.
    """

    value: float | None
    """None if it is undefined."""
    interval: tuple[float, float] | None
    """95 % interval; None if there is none."""
    count: int
    """Number of cases."""
    reason: str | None
    """The reason why the value or the interval is undefined; None if both are there."""

    @property
    def cases(self) -> int:
        """The number of cases that an estimated share stands for."""
        return round((self.value or 0.0) * self.count)


def proportion(successes: int, trials: int) -> Estimate:
    """Returns a proportion with its Wilson score interval (1927).

    Args:
        successes: 0 to `trials`.
        trials: Number of trials; with 0 the proportion is undefined.

    Raises:
        ValueError: The successes are negative or more than the trials.
    """
    if not trials and not successes:
        return Estimate(value=None, interval=None, count=0, reason="no cases")
    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    low, high = float(interval.low), float(interval.high)
    return Estimate(value=successes / trials, interval=(low, high), count=trials, reason=None)


def share_mean(counts: Mapping[float, int], seed: int, draws: int = DRAWS) -> Estimate:
    """Returns the mean of counted values in [0, 1] with the 95 % interval of its posterior.

    The shares of the values have a Dirichlet posterior, whose prior is half a case at 0 and half at
    1. Where nothing lies between, this is Jeffreys' interval of a proportion.

    Args:
        counts: Cases by value.
        seed: Seed of the draws.
        draws: Draws from the posterior; 0 leaves the interval out.
    """
    values, cases = _sorted(counts)
    total = int(cases.sum())
    if missing := _too_few(total, draws):
        return _without_interval(values, cases, missing)
    mean = float(values @ cases / total)
    values, weights = np.append(values, (0.0, 1.0)), np.append(cases, (PRIOR, PRIOR))
    generator = np.random.default_rng(seed)
    at_once = max(1, CHUNK // len(values))
    drawn: list[Array] = []
    for start in range(0, draws, at_once):
        gammas = generator.standard_gamma(weights, (min(at_once, draws - start), len(weights)))
        drawn.append(gammas @ values / gammas.sum(-1))
    return Estimate(
        value=mean, interval=_percentiles(np.concatenate(drawn)), count=total, reason=None
    )


def amount_mean(counts: Mapping[float, int]) -> Estimate:
    """Returns the mean of counted amounts >= 0, with Student's interval corrected for skewness.

    The correction is Hall's transformation (J. R. Statist. Soc. B 54, 1992, 221-228): amounts such
    as edits are 0 for most cases and large for a few, where Student's interval falls short.

    Args:
        counts: Cases by value.
    """
    values, cases = _sorted(counts)
    total = int(cases.sum())
    apart = total - int(cases.max(initial=0))
    missing = _too_few(total)
    if not missing and apart < LEAST_APART:
        missing = f"{apart} cases differ from the commonest: an interval needs {LEAST_APART}"
    if missing:
        return _without_interval(values, cases, missing)
    mean = float(values @ cases / total)
    moments = [float((values - mean) ** power @ cases / total) for power in (2, 3)]
    skewness = moments[1] / moments[0] ** 1.5
    error = math.sqrt(moments[0] / (total - 1))
    quantile = float(stats.t.ppf(QUANTILES[1], total - 1))
    low, high = (mean - error * _untransformed(t, skewness, total) for t in (quantile, -quantile))
    return Estimate(value=mean, interval=(max(low, 0.0), high), count=total, reason=None)


def _untransformed(quantile: float, skewness: float, cases: int) -> float:
    """Returns the value of Student's statistic that Hall's transformation takes to a quantile.

    With a = skewness / 3 and b = skewness / 6 the transformation takes x = statistic / root of n to
    (x + a x^2 + a^2 x^3 / 3 + b / n) times the root of n.
    """
    root = math.sqrt(cases)
    shifted = quantile / root - skewness / 6 / cases
    if math.isclose(skewness, 0.0, abs_tol=1e-9):
        return root * shifted
    return root * (float(np.cbrt(1 + skewness * shifted)) - 1) * 3 / skewness


def _sorted(counts: Mapping[float, int]) -> tuple[Array, Array]:
    values = np.array(sorted(counts), float)
    return values, np.array([counts[value] for value in values], float)


def _too_few(total: int, draws: int = DRAWS) -> str:
    """Returns the reason why so many cases give no interval; empty if they do."""
    if not draws:
        return "no replicates"
    return "" if total >= LEAST_CASES else f"{total} cases: an interval needs {LEAST_CASES}"


def _without_interval(values: Array, cases: Array, reason: str) -> Estimate:
    total = int(cases.sum())
    if not total:
        return Estimate(value=None, interval=None, count=0, reason="no cases")
    mean = float(values @ cases / total)
    return Estimate(value=mean, interval=None, count=total, reason=reason)


def agreement(table: Array, statistic: Callable[[Array], Array], draws: int, seed: int) -> Estimate:
    """Returns a statistic of two annotators' answers with the 95 % interval of its posterior.

    The shares of the pairs of answers have a Dirichlet posterior. Its prior is half a case of
    different answers, as chance would pair them, and one of equal answers, spread over the answers
    as they enter the disagreement that chance expects: where one answer dominates, agreement on the
    others decides, and too few of them are seen. The quantiles are widened as Student's
    distribution is for so many cases, and the upper end is 1 where all answers agree.
    `tests/coverage` has how often these intervals hold the truth.

    Args:
        table: (answers, answers) numbers of cases, first annotator by second.
        statistic: Takes (..., answers, answers) numbers, returns (...) values; NaN is undefined.
        draws: Draws from the posterior; 0 leaves the interval out.
        seed: Seed of the draws.
    """
    total = int(table.sum())
    if not total:
        return Estimate(value=None, interval=None, count=0, reason="no case with both answers")
    value = float(statistic(table))
    if math.isnan(value):
        reason = "no disagreement is expected: all answers are the same"
        return Estimate(value=None, interval=None, count=total, reason=reason)
    if missing := _too_few(total, draws):
        return Estimate(value=value, interval=None, count=total, reason=missing)
    tail = float(stats.norm.cdf(stats.t.ppf(QUANTILES[0], total - 1)))
    low, high = _percentiles(_posterior(table, statistic, draws, seed), (tail, 1 - tail))
    agreed = bool(np.trace(table) == total)
    return Estimate(value=value, interval=(low, 1.0 if agreed else high), count=total, reason=None)


def _posterior(table: Array, statistic: Callable[[Array], Array], draws: int, seed: int) -> Array:
    """Returns (draws,) values of the statistic for tables of as many cases."""
    margin = (table.sum(0) + table.sum(1)) / (2 * table.sum())
    chance = np.outer(table.sum(1), table.sum(0))
    np.fill_diagonal(chance, 0.0)
    equal = np.diag(margin * (1 - margin))
    weights = table + 2 * PRIOR * equal / equal.sum() + PRIOR * chance / (chance.sum() or 1.0)
    places = np.nonzero(weights)
    generator = np.random.default_rng(seed)
    at_once = max(1, CHUNK // table.size)
    values: list[Array] = []
    for start in range(0, draws, at_once):
        tables = np.zeros((min(at_once, draws - start), *table.shape))
        gammas = generator.standard_gamma(weights[places], (len(tables), len(places[0])))
        tables[:, *places] = gammas / gammas.sum(-1, keepdims=True) * table.sum()
        values.append(statistic(tables))
    drawn = np.concatenate(values)
    return drawn[~np.isnan(drawn)]


def _percentiles(values: Array, quantiles: tuple[float, float] = QUANTILES) -> tuple[float, float]:
    low, high = np.quantile(values, quantiles).tolist()
    return low, high
