"""95 % intervals of a benchmark's figures over the tasks that could have been drawn.

Bootstrap replicates show how much accuracies move when the tasks are drawn anew; what they move by
is the noise. Plain percentiles fail here: the best of near-equal models, their spread and the
spread between generations all grow with the noise. So an interval holds the true values under
which the measured figure is an ordinary one (Neyman's construction). The generations are those
that were measured. `jobs/benchmark.py part=coverage` measures how often the intervals are right.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
TIED = 2.5
"""Standard deviations of their difference within which a model may be as good as the best."""
STEPS = 12
"""Halvings that find an end of an interval."""
MOST_DOUBLINGS = 30

Array = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimated:
    """An interval, and the figure without what the noise adds to it.

    Attributes:
        interval: Ends of the 95 % interval.
        corrected: The median-unbiased figure; None where the published one needs none.
    """

    interval: Interval
    corrected: float | None = None


def deviations(weighted: Array, weights: Array, counts: Array) -> Array:
    """Returns the (replicates, models, generations) deviations of replicates from their mean.

    Their variance is that of n - 1. Replicates that draw no file of a unit are left out.

    Args:
        weighted: (replicates, models, generations) sums of weight times accuracy.
        weights: The sums of the weights.
        counts: (models, generations) numbers of files.
    """
    kept = (weights > 0).all(axis=(1, 2))
    drawn = weighted[kept] / weights[kept]
    if not len(drawn):
        return drawn
    return (drawn - drawn.mean(axis=0)) * np.sqrt(counts / np.maximum(counts - 1, 1))


def maximum(values: Array, noise: Array) -> Interval:
    """Returns the interval of the largest true value.

    The upper end is that of the best alone. The lower end takes every model that may be as good as
    the best for as good as it, as moment selection does (Andrews and Soares, Econometrica 78,
    2010), and has what the upper end leaves of the level.

    Args:
        values: (models,) measured values.
        noise: (replicates, models) deviations of the replicates from them.
    """
    best = int(values.argmax())
    gaps = values[best] - values
    gaps[gaps <= TIED * (noise - noise[:, [best]]).std(axis=0)] = 0.0
    above = -float(np.quantile(noise[:, best], LEVEL / 2))
    excess = (noise - gaps).max(axis=1)
    left = max(0.0, LEVEL - float((excess + above < 0).mean()))
    below = float(np.quantile(excess, 1 - left))
    return float(values[best]) - below, float(values[best]) + above


def mean_distance(values: Array, noise: Array) -> Estimated:
    """Estimates the mean distance of true values from their mean.

    Args:
        values: (models,) measured values.
        noise: (replicates, models) deviations of the replicates from them.
    """
    pattern = values - values.mean()
    moved = noise - noise.mean(axis=1, keepdims=True)
    distance = float(np.abs(pattern).mean())
    return _scaled(
        distance,
        distance,
        lambda scale: np.abs(scale * pattern + moved).mean(axis=1),
    )


def mean_deviation(values: Array, noise: Array) -> Estimated:
    """Estimates the models' mean sample standard deviation of true values over generations.

    What moves all models alike from generation to generation is known better than what moves one.
    So the pattern is the common part, plus the models' own parts shrunk by the share of their
    variance that is noise.

    Args:
        values: (models, generations) measured values.
        noise: (replicates, models, generations) deviations of the replicates from them.
    """
    measured = values - values.mean(axis=-1, keepdims=True)
    moved = noise - noise.mean(axis=-1, keepdims=True)
    pattern = _shrunk(measured, moved)
    degrees = values.shape[-1] - 1
    # The variance at any scale, from the sums of squares and products.
    squares = (pattern**2).sum(axis=-1) / degrees
    products = np.einsum("mg,bmg->bm", pattern, moved) / degrees
    noises = np.einsum("bmg,bmg->bm", moved, moved) / degrees

    def deviations(scale: float) -> Array:
        variances = scale**2 * squares + 2 * scale * products + noises
        return np.sqrt(np.maximum(variances, 0.0)).mean(axis=-1)

    deviation = float(measured.std(axis=-1, ddof=1).mean())
    return _scaled(deviation, float(np.sqrt(squares).mean()), deviations)


def _shrunk(pattern: Array, noise: Array) -> Array:
    """Returns a (models, generations) pattern with each model's own part shrunk."""
    common, own = pattern.mean(axis=0), pattern - pattern.mean(axis=0)
    own_noise = noise - noise.mean(axis=1, keepdims=True)
    total = float((own**2).sum())
    if not total:
        return pattern
    expected = float((own_noise**2).sum(axis=(1, 2)).mean())
    shrunk = common + np.sqrt(max(0.0, 1 - expected / total)) * own
    return shrunk if shrunk.any() else pattern


def _scaled(measured: float, one: float, replicates: Callable[[float], Array]) -> Estimated:
    """Estimates a spread >= 0 from the true patterns that are multiples of one pattern.

    The tails are even far from 0; at 0, which nothing can lie below, the whole level is on the one
    side, and between them they change smoothly (after Feldman and Cousins, Phys. Rev. D 57, 1998).

    Args:
        measured: The measured spread.
        one: The spread of the pattern itself.
        replicates: Takes a multiple, returns the (replicates,) spreads of that pattern with noise.
    """
    unit = float(replicates(0.0).std())
    if not (measured and one and unit):
        return Estimated((measured, measured), measured)

    def upper_tail(scale: float) -> float:
        return LEVEL / 2 * (1 + float(np.exp(-((scale * one / unit) ** 2) / 2)))

    def share_above(scale: float) -> float:
        return float((replicates(scale) >= measured).mean())

    low = _first(lambda scale: share_above(scale) > upper_tail(scale))
    high = _first(lambda scale: 1 - share_above(scale) <= LEVEL - upper_tail(scale))
    middle = _first(lambda scale: share_above(scale) >= 0.5)
    ends = sorted((low * one, high * one))
    return Estimated((ends[0], ends[1]), min(max(middle * one, ends[0]), ends[1]))


def _first(holds: Callable[[float], bool]) -> float:
    """Returns the least multiple from 0 on at which a condition that stays true holds."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(MOST_DOUBLINGS):
        if holds(high):
            break
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
