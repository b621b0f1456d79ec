"""95 % intervals of a benchmark's figures, for the choice of tasks.

Bootstrap replicates show how much accuracies move when the tasks are drawn again, those of a
declared cluster together; these moves are the noise. Plain percentiles fail here: the best of
near-equal models, their spread and the spread between generations all grow with the noise. So an
interval contains the true values under which the measured figure is not unusual (Neyman's
construction). The generations are taken as given. `make coverage` measures how often the intervals
contain the truth.

The bootstrap is Poisson's (Oza and Russell 2001; Chamandy et al. 2012, "Estimating uncertainty for
massive data streams"): in each replicate the weight of an item is a Poisson(1) draw. The draw is a
hash of the item's key, so that items with the same key get the same draw on any machine.

Values are measured ones, (models,) or (models, generations). Their noise is the (replicates, ...)
deviations of the replicates from them.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import gammaincinv, pdtr, stdtrit

from raylab.core.runs.records import Figure
from raylab.core.stats import LEVEL, Array, Interval

TIED = 2.5
"""Standard deviations of the difference within which a model may be as good as the best."""
CHANCE = 0.01
"""Probability of mistaking noise for a move that all models share between generations."""
STEPS = 12
"""Bisection steps per end of an interval."""
MAX_DOUBLINGS = 30
DRAW_LEVELS = 1 << 16
"""Number of values of the two bytes that draw a weight."""
WEIGHTS = np.searchsorted(
    pdtr(np.arange(20), 1.0), (np.arange(DRAW_LEVELS) + 0.5) / DRAW_LEVELS
).astype(float)
"""(DRAW_LEVELS,) quantiles of Poisson(1) at evenly spaced probabilities."""
ALIKE = Figure(
    reason="no task tells the models or generations apart, so chance cannot be estimated"
)
"""A spread without an interval, because the bootstrap changes nothing."""

Path = Callable[[float], Array]
"""Takes a multiple >= 0 and returns a (models, generations) pattern of true moves, 0 for 0."""


def draw_weights(keys: Sequence[str], replicates: int) -> Array:
    """Returns the (keys, replicates) bootstrap weights of items."""
    digests = b"".join(
        hashlib.shake_128(key.encode(errors="surrogateescape")).digest(2 * replicates)
        for key in keys
    )
    draws = np.frombuffer(digests, "<u2").reshape(len(keys), replicates)
    return WEIGHTS[draws]


def deviations(weighted: Array, weights: Array, counts: Array) -> Array:
    """Returns the (replicates, models, generations) deviations of replicates from their mean.

    Their variance is that of n - 1. Replicates that draw no file of a unit are left out.

    Args:
        weighted: (replicates, models, generations) sums of weight times accuracy.
        weights: The sums of the weights.
        counts: (models, generations) numbers of files or clusters that vary alone.
    """
    # A unit without a drawn file has no accuracy.
    kept = (weights > 0).all(axis=(1, 2))
    drawn = weighted[kept] / weights[kept]
    if not len(drawn):
        return drawn
    return (drawn - drawn.mean(axis=0)) * np.sqrt(counts / np.maximum(counts - 1, 1))


def maximum(values: Array, noise: Array) -> Interval:
    """Returns the interval of the largest true value.

    The upper end is that of the best model alone. The lower end treats every model that may be as
    good as the best as equal to it, like moment selection (Andrews and Soares, Econometrica 78,
    2010), and has the rest of the level.
    """
    best = int(values.argmax())
    gaps = values[best] - values
    # Noise may hide which of near-equal models is the best, so all of them are taken for it.
    gaps[gaps <= TIED * (noise - noise[:, [best]]).std(axis=0)] = 0.0
    above = -float(np.quantile(noise[:, best], LEVEL / 2))
    excess = (noise - gaps).max(axis=1)
    left = max(0.0, LEVEL - float((excess + above < 0).mean()))
    below = float(np.quantile(excess, 1 - left))
    return float(values[best]) - below, float(values[best]) + above


def mean_distance(values: Array, noise: Array, tasks: int) -> Figure:
    """Estimates the mean distance of true values from their mean.

    The true patterns are multiples of the measured one. The interval of two models is that of
    their absolute difference.

    Args:
        values: (models,) measured values.
        noise: Their noise.
        tasks: Number of tasks that the values are means over.
    """
    pattern = values - values.mean()
    moved = noise - noise.mean(axis=1, keepdims=True)
    distance = float(np.abs(pattern).mean())
    # Two equal models give no direction to scale; their difference has one.
    if len(values) == 2 and not distance:
        pattern = np.array([-0.5, 0.5])
    unit = float(np.abs(pattern).mean())
    estimated = _along(
        distance,
        lambda scale: scale * unit,
        lambda scale: np.abs(scale * pattern + moved).mean(axis=1),
    )
    if len(values) != 2 or estimated.interval is None:
        return estimated
    half = float(stdtrit(tasks - 1, 1 - LEVEL / 2)) * float(moved[:, 0].std())
    return _figure(distance, max(0.0, distance - half), distance + half, estimated.corrected or 0.0)


def mean_deviation(values: Array, noise: Array) -> Figure:
    """Estimates the models' mean sample standard deviation of true values over generations.

    One model that moves much and many models that move a little may have the same mean of measured
    deviations but different true ones, because noise hides small moves. So moves that cannot be
    separated from noise are taken both ways: for the least true value they vanish, for the greatest
    they spread over all models.
    """
    measured = values - values.mean(axis=-1, keepdims=True)
    moved = noise - noise.mean(axis=-1, keepdims=True)

    def deviation(patterns: Array) -> Array:
        return np.asarray(patterns.std(axis=-1, ddof=1).mean(axis=-1))

    value = float(deviation(measured))
    ways = [
        _along(
            value,
            lambda scale, path=path: float(deviation(path(scale))),
            lambda scale, path=path: deviation(path(scale) + moved),
        )
        for path in _paths(measured, moved)
    ]
    corrected = [way.corrected for way in ways if way.corrected is not None]
    if not corrected:
        return ALIKE
    ends = [end for way in ways for end in way.interval or ()]
    return Figure(
        value=value, interval=(min(ends), max(ends)), corrected=sum(corrected) / len(corrected)
    )


def _paths(measured: Array, noise: Array) -> tuple[Path, Path]:
    """Returns the moves of few models, then those of many, on paths through the certain moves.

    These are the moves of models that differ from most, and the move that the others share, without
    the share of the noise. Few moves are multiples of them and of the moves of the most mobile
    model. Many are the certain ones, then growing moves of every other model in its direction.
    """
    models, generations = measured.shape
    own, own_noise = _own(measured), _own(noise)
    energies, expected = _energy(own), _energy(own_noise).mean(axis=0)
    others = energies <= expected * _threshold(LEVEL / models, generations)
    signal = _signal(_energy(measured), _energy(noise).mean(axis=0))
    certain = np.where(others[:, None], 0.0, signal[:, None] * measured)
    if others.any():
        common = measured[others].mean(axis=0)
        energy, chance = _energy(common), _energy(noise[:, others].mean(axis=1)).mean()
        if energy > chance * _threshold(CHANCE, generations):
            certain[others] = common * _signal(energy, chance)
    few, mobile = certain.copy(), int(energies.argmax())
    if not certain.any():
        few[mobile] = measured[mobile]
    elif others[mobile]:
        few[mobile] += own[mobile] * _signal(energies[mobile], expected[mobile])
    lengths = np.sqrt(energies)[:, None]
    directions = np.divide(own, lengths, out=np.zeros_like(own), where=lengths > 0)
    spread = np.where(others[:, None], noise.std() * directions, 0.0)

    def many(scale: float) -> Array:
        if not certain.any():
            return scale * spread
        if not spread.any():
            return scale * certain
        return min(scale, 1.0) * certain + max(scale - 1.0, 0.0) * spread

    return lambda scale: scale * few, many


def _own(patterns: Array) -> Array:
    """Returns patterns minus their median over the models, which few models do not affect.

    The patterns of two models are returned as they are, because neither is typical.
    """
    if patterns.shape[-2] <= 2:
        return patterns
    return patterns - np.median(patterns, axis=-2, keepdims=True)


def _energy(patterns: Array) -> Array:
    return np.asarray((patterns**2).sum(axis=-1))


def _signal(energy: Array, expected: Array) -> Array:
    """Returns the factor that removes the expected energy of noise from a pattern."""
    share = np.divide(expected, energy, out=np.ones_like(energy), where=energy > 0)
    return np.sqrt(np.maximum(0.0, 1 - share))


def _threshold(chance: float, generations: int) -> float:
    """Returns the multiple of its mean that the energy of noise exceeds with a probability."""
    return 2 * float(gammaincinv((generations - 1) / 2, 1 - chance)) / (generations - 1)


def _along(
    measured: float, true: Callable[[float], float], replicates: Callable[[float], Array]
) -> Figure:
    """Estimates a spread >= 0 from true patterns along a path, by `search_ends`."""
    if (ends := search_ends(measured, true, replicates)) is None:
        return ALIKE
    low, middle, high = (true(scale) for scale in ends)
    return _figure(measured, min(low, high), max(low, high), middle)


def _figure(value: float, low: float, high: float, corrected: float) -> Figure:
    """Returns a figure whose corrected value is not outside its interval."""
    return Figure(value=value, interval=(low, high), corrected=min(max(corrected, low), high))


def search_ends(
    measured: float, true: Callable[[float], float], replicates: Callable[[float], Array]
) -> tuple[float, float, float] | None:
    """Returns the ends and the middle of the interval of a spread >= 0, as multiples on a path.

    Far from 0 the two tails are equal. At 0 the whole level is on one side, because nothing lies
    below. Between these the tails change smoothly (after Feldman and Cousins, Phys. Rev. D 57,
    1998).

    Args:
        measured: The measured spread.
        true: Takes a multiple and returns the spread of its pattern, which grows from 0 at 0.
        replicates: Takes a multiple and returns the (replicates,) spreads with noise.

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


def _first(holds: Callable[[float], bool]) -> float:
    """Returns the multiple >= 0 where a condition begins to hold."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(MAX_DOUBLINGS):
        if holds(high):
            break
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
