"""Stability: how well a benchmark ranks models.

Tau is the expected Kendall's tau between the rankings of these models by two halves of the items.
Two models that measure z standard errors apart add 4 Phi(|z|) - 3 to it, without bias: given z,
both halves agree if the difference between them, which is independent of z, is smaller. The
interval contains the true differences under which the measured statistic is not unusual (Neyman's
construction). True differences are the measured ones, shrunk as by Breiman's garrote (Technometrics
37, 1995): small ones vanish first, because noise explains them. Their noise is that of `sampling`,
for scores less the ease of the items. Two halves rank two models with a true difference of z of
their standard errors alike with a net probability of (2 Phi(z) - 1)^2.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from raylab.benchmark.checks.models import fit_items
from raylab.benchmark.checks.sampling import Means, SamplingDesign, present_weights
from raylab.benchmark.figures.intervals import search_ends
from raylab.benchmark.responses import Matrix
from raylab.core.runs.records import Figure
from raylab.core.stats import Array

DRAWS = 400
MAX_PAIRS = 1500
"""Most pairs of models that tau is computed over."""
MIN_ITEMS = 20
MAX_TIES = 0.9
HALVES = 100
"""Random halves of the items that show how many models they leave tied."""
TINY = 1e-9
SEED = 20_261


def measure_stability(matrix: Matrix) -> Figure:
    """Returns the expected Kendall's tau between the rankings by two halves of the items."""
    if len(matrix.models) < 2:
        return Figure(reason="it needs two models")
    # Scores less the ease of the items, by which models compare.
    values = np.nan_to_num(matrix.scores - fit_items(matrix)[1])
    means = SamplingDesign(matrix).estimate(values, present_weights(matrix))
    if (clusters := int(means.clusters.min())) < MIN_ITEMS:
        return Figure(reason=f"there are {clusters} clusters of items, it needs {MIN_ITEMS}")
    first, second, errors = _pairs(means)
    if not len(errors):
        return Figure(reason="the models answer all items alike")
    gaps = (means.values[first] - means.values[second]) / errors
    random, centre = np.random.default_rng((SEED, 0)), np.zeros(len(means.values))
    noise = random.multivariate_normal(centre, means.covariance, DRAWS, method="eigh")
    moves = (noise[:, first] - noise[:, second]) / errors
    # Random halves of the items leave some pairs tied.
    weights = ~np.isnan(matrix.scores) * matrix.weights
    scores, items = np.nan_to_num(matrix.scores) * weights, len(matrix.items)
    orders = np.random.default_rng(SEED).random((items, HALVES)).argsort(axis=0)
    halves = (orders < max(1, round(items / 2))).astype(float)
    totals = weights @ halves
    scored = scores @ halves / np.where(totals > 0, totals, np.inf)
    tied = float((np.abs(scored[first] - scored[second]) < TINY).mean())
    decided = 1 - min(tied, MAX_TIES)

    def expect(multiple: float) -> float:
        """Returns tau for a multiple of the measured differences."""
        net = float(((2 * ndtr(np.sqrt(0.5) * _shrink(gaps, multiple)) - 1) ** 2).mean())
        return min(net / decided, 1.0)

    measured = float(_halves_tau(gaps))
    ends = search_ends(
        measured, expect, lambda multiple: _halves_tau(_shrink(gaps, multiple) + moves)
    )
    value = min(max(measured / decided, 0.0), 1.0)
    low, _, high = map(expect, ends or (0.0,) * 3)
    return Figure(value=value, interval=(min(low, value), max(high, value)))


def _pairs(means: Means) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Returns the models of pairs, and the standard errors > 0 of their differences.

    Of many pairs it takes evenly spaced ones in the order of their differences in standard errors.
    """
    first, second = np.triu_indices(len(means.values), 1)
    own = np.diag(means.covariance)
    variances = own[first] + own[second] - 2 * means.covariance[first, second]
    used = np.flatnonzero(variances > TINY * max(own.max(), TINY))
    first, second, errors = first[used], second[used], np.sqrt(variances[used])
    order = np.argsort(np.abs(means.values[first] - means.values[second]) / errors)
    step = max(1, len(order) // MAX_PAIRS)
    chosen = order[step // 2 :: step]
    return first[chosen], second[chosen], errors[chosen]


def _shrink(gaps: Array, multiple: float) -> Array:
    """Returns (pairs,) true differences: 0 at a multiple of 0, as measured at 1."""
    if multiple > 1:
        return multiple * gaps
    least = 1 / max(multiple, TINY) - 1
    return gaps * np.maximum(0.0, 1 - least / np.maximum(gaps**2, TINY))


def _halves_tau(gaps: Array) -> Array:
    """Returns the unbiased tau of halves from (..., pairs) differences in standard errors."""
    return np.asarray((4 * ndtr(np.abs(gaps)) - 3).mean(axis=-1))
