"""Stability: how well a benchmark ranks models, and what headroom is left.

Tau is the expected Kendall's tau between the rankings of these models by two halves of the items.
Two models that measure z standard errors apart add 4 Phi(|z|) - 3 to it, without bias: given z,
both halves agree if the difference between them, which is independent of z, is smaller. The
interval contains the true differences under which the measured statistic is not unusual (Neyman's
construction). True differences are the measured ones, shrunk as by Breiman's garrote (Technometrics
37, 1995): small ones vanish first, because noise explains them. Their noise is that of `sampling`,
for scores less the ease of the items. Two sets of items rank two models with a true difference of z
standard errors alike with a net probability of (2 Phi(z) - 1)^2, which gives the curve.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr

from raylab.benchmark.checks.models import fit_items
from raylab.benchmark.checks.sampling import SamplingDesign, present_weights
from raylab.benchmark.figures.intervals import maximum, search_ends
from raylab.benchmark.responses import Matrix
from raylab.core.printable import pluralize
from raylab.core.runs.records import Figure, Part
from raylab.core.stats import LEVEL, Array, share_of

DRAWS = 400
PAIRS = 1500
"""Most pairs of models that tau is computed over."""
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Numbers of items on the curve, as shares of all items."""
MIN_ITEMS = 20
MULTIPLES = (0.01, 100.0, 100)
"""Least and greatest multiple of the measured differences on the curve, and their number."""
MAX_TIES = 0.9
NEARLY_ALL = 0.95
"""Mean score from which nearly all models get an item right."""
ITEM_SHARE = 0.95
"""Share of the items that a model needs to count as the best."""
MIN_WRONG = 5
"""Right and wrong items that the best model needs for an interval."""
SUBSETS = 100
"""Random sets of items per figure."""
TINY = 1e-9
PRIOR_MODELS = 5
SEED = 20_261


class TauPoint(Part):
    """Tau for a number of items."""

    items: int
    tau: float
    interval: tuple[float, float]


class Stability(Part):
    """The stability of the ranking, and the headroom of the benchmark."""

    tau: Figure
    """Expected Kendall's tau between the rankings by two halves of the items."""
    curve: tuple[TauPoint, ...]
    """Tau between two sets by the number of items in each; extrapolated beyond half."""
    alpha: Figure
    """Cronbach's alpha, KR-20 of scores that are 0 or 1, with Feldt's interval (1965)."""
    saturated: Figure
    """Share of items whose mean score over models is 0.95 or more."""
    headroom: Figure
    """1 minus the mean of the best model that has nearly all items."""


class PriorAgreement(Part):
    """The agreement of an earlier benchmark with this one."""

    name: str
    models: int
    """Number of models that both have."""
    tau: Figure
    """Kendall's tau-b between the rankings of these models."""
    common_items: int
    overlap: float
    """Share of this benchmark's items that are in the earlier one too."""


@dataclass(frozen=True)
class _Sample:
    """Means of models over items, and their covariance over the choice of items."""

    means: Array
    """(models,)."""
    covariance: Array
    """(models, models), of the means."""
    freedom: float
    """Degrees of freedom of the covariance."""
    clusters: int
    """Number of clusters of items."""

    @property
    def reason(self) -> str:
        """The reason why there are too few items for a covariance; empty if there is none."""
        few = self.clusters < MIN_ITEMS
        return f"there are {self.clusters} clusters of items, it needs {MIN_ITEMS}" if few else ""

    def noise(self, seed: int = 0) -> Array:
        """Returns (draws, models) normal errors of the means."""
        random = np.random.default_rng((SEED, seed))
        centre = np.zeros(len(self.means))
        return random.multivariate_normal(centre, self.covariance, DRAWS, method="eigh")


def measure_stability(matrix: Matrix) -> Stability:
    """Measures the stability of the ranking of the models, and the headroom.

    Args:
        matrix: Scores of models on items.
    """
    sample = _paired(matrix)
    tau, curve = _tau(matrix, sample)
    return Stability(
        tau=tau,
        curve=curve,
        alpha=_alpha(sample),
        # Scores are sums of fractions.
        saturated=share_of(np.nanmean(matrix.scores, axis=0) >= NEARLY_ALL - TINY),
        headroom=_headroom(matrix),
    )


def _paired(matrix: Matrix) -> _Sample:
    """Returns the means of scores less the ease of the items, which models compare by."""
    return _sample(matrix, fit_items(matrix)[1])


def _sample(matrix: Matrix, ease: Array) -> _Sample:
    values = np.nan_to_num(matrix.scores - ease)
    means = SamplingDesign.of_matrix(matrix).estimate(values, present_weights(matrix))
    freedom = float(np.median(means.freedom))
    return _Sample(means.values, means.parts @ means.parts.T, freedom, int(means.clusters.min()))


def _tau(matrix: Matrix, sample: _Sample) -> tuple[Figure, tuple[TauPoint, ...]]:
    first, second, errors = _pairs(sample)
    if len(matrix.models) < 2 or sample.reason or not len(errors):
        alike = "the models answer all items alike" if len(matrix.models) > 1 else ""
        return Figure(reason=sample.reason or alike or "it needs two models"), ()
    gaps = (sample.means[first] - sample.means[second]) / errors
    noise = sample.noise()
    moves = (noise[:, first] - noise[:, second]) / errors
    measured = float(_halves_tau(gaps))
    ties = {share: _ties(matrix, (first, second), share) for share in SHARES}

    def expect(true: Array, share: float = 0.5) -> float:
        net = float(((2 * ndtr(np.sqrt(share) * true) - 1) ** 2).mean())
        return min(net / (1 - ties[share]), 1.0)

    ends = search_ends(
        measured,
        lambda multiple: expect(_shrink(gaps, multiple)),
        lambda multiple: _halves_tau(_shrink(gaps, multiple) + moves),
    )
    low, middle, high = (expect(_shrink(gaps, multiple)) for multiple in ends or (0.0,) * 3)
    curve = tuple(_curve(len(matrix.items), gaps, expect, (low, middle, high)))
    value = min(max(measured / (1 - ties[0.5]), 0.0), 1.0)
    return Figure(value=value, interval=(min(low, value), max(high, value))), curve


def _curve(
    size: int, gaps: Array, expect: Callable[[Array, float], float], ends: tuple[float, ...]
) -> Iterator[TauPoint]:
    """Yields tau by numbers of items, for the multiples of the gaps that give these ends."""
    grid = np.append(0.0, np.geomspace(*MULTIPLES))
    halves = [expect(multiple * gaps, 0.5) for multiple in grid]
    multiples = np.interp(ends, halves, grid)
    for share in SHARES:
        if items := round(share * size):
            low, middle, high = (expect(multiple * gaps, share) for multiple in multiples)
            yield TauPoint(items=items, tau=middle, interval=(low, high))


def _pairs(sample: _Sample) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Returns the models of pairs, and the standard errors > 0 of their differences.

    Of many pairs it takes evenly spaced ones in the order of their differences in standard errors.
    """
    first, second = np.triu_indices(len(sample.means), 1)
    own = np.diag(sample.covariance)
    variances = own[first] + own[second] - 2 * sample.covariance[first, second]
    used = np.flatnonzero(variances > TINY * max(own.max(), TINY))
    first, second, errors = first[used], second[used], np.sqrt(variances[used])
    order = np.argsort(np.abs(sample.means[first] - sample.means[second]) / errors)
    step = max(1, len(order) // PAIRS)
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


def _ties(matrix: Matrix, pairs: tuple[NDArray[np.int64], ...], share: float) -> float:
    """Returns the share of pairs that random subsets of this share of items leave tied."""
    size = max(1, round(share * len(matrix.items)))
    means = _means(matrix, _draw_sets(len(matrix.items), size))
    return min(float((np.abs(means[pairs[0]] - means[pairs[1]]) < TINY).mean()), MAX_TIES)


def _draw_sets(items: int, size: int) -> Array:
    """Returns (items, SUBSETS) random sets of a size: 1 for items in the set, else 0."""
    orders = np.random.default_rng(SEED).random((items, SUBSETS)).argsort(axis=0)
    return (orders < size).astype(float)


def _means(matrix: Matrix, sets: Array) -> Array:
    """Returns (models, sets) weighted means over sets of items, 0 for a model without one."""
    weights = ~np.isnan(matrix.scores) * matrix.weights
    totals = weights @ sets
    sums = (np.nan_to_num(matrix.scores) * weights) @ sets
    return sums / np.where(totals > 0, totals, np.inf)


def _alpha(sample: _Sample) -> Figure:
    models = len(sample.means)
    if models < 2 or sample.freedom < 1:
        return Figure(reason="it needs two models and two items")
    spread = float(np.var(sample.means, ddof=1))
    own, total = float(np.trace(sample.covariance)), float(sample.covariance.sum())
    noise = (own - (total - own) / (models - 1)) / models
    if min(spread, noise) < TINY**2:
        return Figure(reason="the models do not differ, or differ alike on every item")
    ratio, freedom = noise / spread, (models - 1) * sample.freedom
    low, high = 1 - ratio * stats.f.ppf((1 - LEVEL / 2, LEVEL / 2), models - 1, freedom)
    return Figure(value=1 - ratio, interval=(float(low), float(high)))


def _headroom(matrix: Matrix) -> Figure:
    weights = np.broadcast_to(present_weights(matrix), matrix.scores.shape)
    enough = np.flatnonzero(weights.sum(axis=1) >= ITEM_SHARE * matrix.weights.sum())
    if not len(enough):
        return Figure(reason=f"no model has {100 * ITEM_SHARE:.0f} % of the items")
    models = tuple(matrix.models[model] for model in enough)
    matrix = replace(matrix, scores=matrix.scores[enough], models=models)
    sample = _sample(matrix, np.zeros(len(matrix.items)))
    best = float(sample.means.max())
    items = int((~np.isnan(matrix.scores[int(sample.means.argmax())])).sum())
    few = items * min(best, 1 - best) < MIN_WRONG
    why = f"the best model has fewer than {MIN_WRONG} items right or wrong" if few else ""
    if why := sample.reason or why:
        return Figure(value=1 - best, reason=why)
    low, high = maximum(sample.means, sample.noise())
    return Figure(value=1 - best, interval=(max(1 - high, 0.0), min(1 - low, 1.0)))


def kendall(first: Array, second: Array) -> float:
    """Returns Kendall's tau-b of (models,) values, 0 if all values of a side are tied."""
    result: Any = stats.kendalltau(np.round(first, 12), np.round(second, 12))
    return float(np.nan_to_num(result.statistic))


def compare_with_priors(matrix: Matrix, priors: Mapping[str, Matrix]) -> tuple[PriorAgreement, ...]:
    """Compares the ranking and items of a benchmark with those of earlier ones.

    Args:
        matrix: Scores of models on the items of the benchmark.
        priors: Those on earlier benchmarks, by name; models and items are matched by name.
    """
    agreements = list[PriorAgreement]()
    for name, prior in priors.items():
        models = sorted({*matrix.models} & {*prior.models})
        items = len({*matrix.items} & {*prior.items})
        agreements.append(
            PriorAgreement(
                name=name,
                models=len(models),
                tau=_agreement(matrix, prior, models),
                common_items=items,
                overlap=items / len(matrix.items),
            )
        )
    return tuple(agreements)


def _agreement(matrix: Matrix, prior: Matrix, models: list[str]) -> Figure:
    if len(models) < 2:
        return Figure(reason=f"{pluralize(len(models), 'model')} in common")
    samples = [_paired(side) for side in (matrix, prior)]
    places = [[side.models.index(model) for model in models] for side in (matrix, prior)]
    value = kendall(*(sample.means[place] for sample, place in zip(samples, places, strict=True)))
    few = len(models) < PRIOR_MODELS
    why = f"an interval needs {PRIOR_MODELS} models" if few else ""
    if why := why or samples[0].reason or samples[1].reason:
        return Figure(value=value, reason=why)
    signs = []
    for seed, (sample, place) in enumerate(zip(samples, places, strict=True)):
        noise, means = sample.noise(seed)[:, place], sample.means[place]
        # The spread of measured means is that of the true means and the noise together.
        own = 1 - float(noise.var(axis=1).mean()) / max(float(means.var()), TINY)
        drawn = np.sqrt(max(own, 0.0)) * means + noise
        first, second = np.triu_indices(len(models), 1)
        signs.append(np.sign(drawn[:, first] - drawn[:, second]))
    half = float(stats.norm.ppf(1 - LEVEL / 2) * (signs[0] * signs[1]).mean(axis=1).std())
    return Figure(value=value, interval=(max(value - half, -1.0), min(value + half, 1.0)))
