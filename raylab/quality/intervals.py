"""95 % intervals of a benchmark's figures over the tasks that could have been drawn.

Bootstrap replicates show how much accuracies move when the tasks are drawn anew; what they move by
is the noise. Plain percentiles fail here: the best of near-equal models, their spread and the
spread between generations all grow with the noise. So an interval holds the true values under
which the measured figure is an ordinary one (Neyman's construction). The generations are those
that were measured. `make coverage` measures how often the intervals are right.

The bootstrap is Poisson's (Oza and Russell 2001; Chamandy et al. 2012, "Estimating uncertainty for
massive data streams"): in each replicate the weight of an item is a Poisson(1) draw. The draw is a
hash of the item's key, so that items with the same key get the same draw on any machine.

Values are (models,) or (models, generations) measured ones, and their noise the (replicates, ...)
deviations of the replicates from them.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, t

LEVEL = 0.05
TIED = 2.5
"""Standard deviations of their difference within which a model may be as good as the best."""
CHANCE = 0.01
"""Chance of taking noise for a move that all models share between generations."""
STEPS = 12
"""Halvings that find an end of an interval."""
MOST_DOUBLINGS = 30
DRAW_LEVELS = 1 << 16
"""Number of values of the two bytes that draw a weight."""

Array = NDArray[np.float64]
Interval = tuple[float, float]
Path = Callable[[float], Array]
"""Takes a multiple >= 0, returns a (models, generations) pattern of true moves, 0 for 0."""


@dataclass(frozen=True)
class Estimated:
    """An interval, and the figure without what the noise adds to it.

    Attributes:
        interval: Ends of the 95 % interval.
        corrected: The figure that noise raises above the measured one as often as not; None where
            noise does not shift the published one.
    """

    interval: Interval
    corrected: float | None = None


def draw_weights(keys: Sequence[str], replicates: int) -> Array:
    """Returns the (keys, replicates) bootstrap weights of items."""
    digests = b"".join(
        hashlib.shake_128(key.encode(errors="surrogateescape")).digest(2 * replicates)
        for key in keys
    )
    draws = np.frombuffer(digests, "<u2").reshape(len(keys), replicates)
    return _poisson_quantiles()[draws]


@functools.cache
def _poisson_quantiles() -> Array:
    """Returns the (DRAW_LEVELS,) quantiles of Poisson(1) at evenly spaced probabilities."""
    densities = [math.exp(-1) / math.factorial(k) for k in range(12)]
    probabilities = (np.arange(DRAW_LEVELS) + 0.5) / DRAW_LEVELS
    return np.searchsorted(np.cumsum(densities), probabilities).astype(np.float64)


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
    """
    best = int(values.argmax())
    gaps = values[best] - values
    gaps[gaps <= TIED * (noise - noise[:, [best]]).std(axis=0)] = 0.0
    above = -float(np.quantile(noise[:, best], LEVEL / 2))
    excess = (noise - gaps).max(axis=1)
    left = max(0.0, LEVEL - float((excess + above < 0).mean()))
    below = float(np.quantile(excess, 1 - left))
    return float(values[best]) - below, float(values[best]) + above


def mean_distance(values: Array, noise: Array, tasks: int) -> Estimated | None:
    """Estimates the mean distance of true values from their mean.

    The true patterns are multiples of the measured one. The interval of two models is that of
    their difference, without its sign.

    Args:
        values: (models,) measured values.
        noise: That of the values.
        tasks: Number of tasks that the values are means over.

    Returns:
        None if the values are alike or the noise moves nothing.
    """
    pattern = values - values.mean()
    moved = noise - noise.mean(axis=1, keepdims=True)
    distance = float(np.abs(pattern).mean())
    if len(values) == 2 and not distance:
        pattern = np.array([-0.5, 0.5])
    unit = float(np.abs(pattern).mean())
    estimated = _along(
        distance,
        lambda scale: scale * unit,
        lambda scale: np.abs(scale * pattern + moved).mean(axis=1),
    )
    if len(values) != 2 or estimated is None:
        return estimated
    half = float(t.ppf(1 - LEVEL / 2, tasks - 1)) * float(moved[:, 0].std())
    return _clamped(max(0.0, distance - half), distance + half, estimated.corrected or 0.0)


def mean_deviation(values: Array, noise: Array) -> Estimated | None:
    """Estimates the models' mean sample standard deviation of true values over generations.

    The same mean of the measured deviations comes from fewer or smaller true moves where one model
    moves alone than where all move a little, because noise hides small moves. What cannot be told
    from noise is therefore taken both ways: the least true value lets it vanish, the greatest
    spreads it over all models. None if the values are alike or the noise moves nothing.
    """
    measured = values - values.mean(axis=-1, keepdims=True)
    moved = noise - noise.mean(axis=-1, keepdims=True)
    deviation = float(measured.std(axis=-1, ddof=1).mean())

    def estimate(path: Path) -> Estimated | None:
        return _along(
            deviation,
            lambda scale: float(path(scale).std(axis=-1, ddof=1).mean()),
            lambda scale: (path(scale) + moved).std(axis=-1, ddof=1).mean(axis=-1),
        )

    least = estimate(_few_moves(measured, moved))
    most = estimate(_many_moves(measured, moved))
    if least is None or most is None:
        return least or most
    corrected = ((least.corrected or 0.0) + (most.corrected or 0.0)) / 2
    ends = [end for way in (least, most) for end in way.interval]
    return Estimated((min(ends), max(ends)), corrected)


def _few_moves(measured: Array, noise: Array) -> Path:
    """Returns the multiples of the certain moves and of the model's that moves most alone."""
    pattern, others = _certain_moves(measured, noise)
    own, own_noise = _own(measured), _own(noise)
    model = int(_energy(own).argmax())
    if not pattern.any():
        pattern[model] = measured[model]
    elif others[model]:
        expected = _energy(own_noise[:, model]).mean()
        pattern[model] += own[model] * _signal(_energy(own[model]), expected)
    return lambda scale: scale * pattern


def _many_moves(measured: Array, noise: Array) -> Path:
    """Returns the certain moves, then more and more of every other model in its direction."""
    certain, others = _certain_moves(measured, noise)
    own = _own(measured)
    lengths = np.sqrt(_energy(own))[:, None]
    directions = np.divide(own, lengths, out=np.zeros_like(own), where=lengths > 0)
    spread = np.where(others[:, None], noise.std() * directions, 0.0)
    if not certain.any():
        return lambda scale: scale * spread
    if not spread.any():
        return lambda scale: scale * certain
    return lambda scale: min(scale, 1.0) * certain + max(scale - 1.0, 0.0) * spread


def _certain_moves(measured: Array, noise: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Returns the moves that noise does not explain, less what it adds, and the other models.

    These are the moves of each model that moves otherwise than most, and what the others share.
    """
    own, own_noise = _energy(_own(measured)), _energy(_own(noise)).mean(axis=0)
    models, generations = measured.shape
    others = own <= own_noise * _threshold(LEVEL / models, generations)
    signal = _signal(_energy(measured), _energy(noise).mean(axis=0))
    certain = np.where(others[:, None], 0.0, signal[:, None] * measured)
    if others.any():
        common = measured[others].mean(axis=0)
        energy, expected = _energy(common), _energy(noise[:, others].mean(axis=1)).mean()
        if energy > expected * _threshold(CHANCE, generations):
            certain[others] = common * _signal(energy, expected)
    return certain, others


def _own(patterns: Array) -> Array:
    """Returns patterns less their median over the models, which a few of these do not move.

    Of two models neither is the rule, so nothing is taken from these.
    """
    if patterns.shape[-2] <= 2:
        return patterns
    return patterns - np.median(patterns, axis=-2, keepdims=True)


def _energy(patterns: Array) -> Array:
    return np.asarray((patterns**2).sum(axis=-1))


def _signal(energy: Array, expected: Array) -> Array:
    """Returns the factor that takes the expected energy of noise out of a pattern."""
    share = np.divide(expected, energy, out=np.ones_like(energy), where=energy > 0)
    return np.sqrt(np.maximum(0.0, 1 - share))


def _threshold(chance: float, generations: int) -> float:
    """Returns the multiple of its mean that the energy of noise exceeds with this chance."""
    return float(chi2.ppf(1 - chance, generations - 1)) / (generations - 1)


def _along(
    measured: float, true: Callable[[float], float], replicates: Callable[[float], Array]
) -> Estimated | None:
    """Estimates a spread >= 0 from true patterns along a path, as `search_ends` does."""
    if (ends := search_ends(measured, true, replicates)) is None:
        return None
    low, middle, high = (true(scale) for scale in ends)
    return _clamped(min(low, high), max(low, high), middle)


def search_ends(
    measured: float, true: Callable[[float], float], replicates: Callable[[float], Array]
) -> tuple[float, float, float] | None:
    """Returns the ends and the middle of the interval of a spread >= 0, as multiples on a path.

    The tails are even far from 0; at 0, which nothing can lie below, the whole level is on the one
    side, and between them they change smoothly (after Feldman and Cousins, Phys. Rev. D 57, 1998).

    Args:
        measured: The measured spread.
        true: Takes a multiple, returns the spread of that pattern, 0 at 0 and growing.
        replicates: Takes a multiple, returns the (replicates,) spreads of that pattern with noise.

    Returns:
        None if the pattern or the noise is 0 everywhere.
    """
    unit = float(replicates(0.0).std())
    if not (unit and true(1.0)):
        return None

    def upper_tail(scale: float) -> float:
        return LEVEL / 2 * (1 + float(np.exp(-((true(scale) / unit) ** 2) / 2)))

    def share_above(scale: float) -> float:
        return float((replicates(scale) >= measured).mean())

    return (
        _first(lambda scale: share_above(scale) > upper_tail(scale)),
        _first(lambda scale: share_above(scale) >= 0.5),
        _first(lambda scale: 1 - share_above(scale) <= LEVEL - upper_tail(scale)),
    )


def _clamped(low: float, high: float, corrected: float) -> Estimated:
    return Estimated((low, high), min(max(corrected, low), high))


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
