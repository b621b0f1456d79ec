"""Stability: how well a benchmark ranks models, how few items would do, and how much is left.

Tau is the expected Kendall's tau between the rankings of these models by two halves of the items.
Two models that measure z standard errors apart add 4 Phi(|z|) - 3 to it, without bias: given z,
both halves agree where the difference between them, which is independent of z, is the smaller.
The interval holds the true spreads of the models (multiples of normal scores, in the measured
order) under which that statistic is an ordinary one (Neyman's construction); noise is drawn as the
items vary together, by group. Two models with a true difference of z standard errors are ranked
alike by both of two sets of items with a net chance of (2 Phi(z) - 1)^2, which gives the curve.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr

from raylab.annotation.statistics.estimates import proportion
from raylab.doctor.figures import Finding, make_figure, missing_figure, points
from raylab.doctor.responses import Array, Matrix
from raylab.printable import pluralize
from raylab.quality.intervals import maximum
from raylab.runs.records import Part

LEVEL = 0.05
DRAWS = 1000
PAIRS = 500
"""Most pairs of models that tau is computed over."""
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Numbers of items of the curve, as shares of those that there are."""
LEAST_ITEMS = 20
GRID = (0.02, 2000.0, 80)
"""Least and greatest spread of the models that is tried, in standard errors, and their number."""
HALVES = 100
"""Random halves of the items."""
NEARLY_ALL = 0.95
"""Mean score from which an item is one that nearly all models get right."""
LEAST_WRONG = 5
"""Items' worth of right and wrong answers that the best model needs for an interval."""
TAU = 0.95
"""Agreement with the whole benchmark that a short form keeps."""
FORM_MODELS = 12
"""Models from which there is a short form: of five models in a half, one swap is tau 0.8."""
SIZES = 40
"""Sizes of a short form that are tried."""
SUBSETS = 100
"""Random subsets that a short form is compared with."""
SUBSETS_FOR_TIES = 20
MOST_TIES = 0.9
TINY = 1e-9
PRIOR_MODELS = 5
ROUNDS = 50
"""Rounds in which effects of models and items are fitted in turn where cells are missing."""
SEED = 20_261


class TauPoint(Part):
    """Tau that some number of items has."""

    items: int
    tau: float
    interval: tuple[float, float] | None


class ShortForm(Part):
    """The fewest items that rank one half of the models as all do, tried on the other half."""

    size: int
    items: tuple[str, ...]
    """Names, the most discriminating first."""
    chosen_tau: float
    """Kendall's tau-b with the whole benchmark on the models that the items were chosen on."""
    tau: Finding
    """The same on the other models."""
    random_tau: float
    """Mean of that over random subsets of the same size."""
    random_range: tuple[float, float]
    """Range of the middle 95 % of them."""
    chosen_on: tuple[str, ...]
    """Models that the items were chosen on."""

    @property
    def sentence(self) -> str:
        """The short form in words."""
        value = self.tau.value or 0.0
        verdict = "do" if value >= TAU else "do not"
        return (
            f"{pluralize(self.size, 'item')}, chosen on {pluralize(len(self.chosen_on), 'model')}, "
            f"{verdict} rank the other models as the whole benchmark does (tau {value:.2f}; random "
            f"items {self.random_tau:.2f})."
        )


class Stability(Part):
    """The steadiness of the ranking, and the room that is left to measure."""

    tau: Finding
    """Expected Kendall's tau between the rankings by two halves of the items."""
    curve: tuple[TauPoint, ...]
    """Tau between two sets against the number of items in each; extrapolated beyond half."""
    alpha: Finding
    """Cronbach's alpha, KR-20 of scores that are 0 or 1, with Feldt's interval (1965)."""
    split_half: Finding
    """Mean correlation of random halves, stepped up to all items (Spearman and Brown)."""
    saturated: Finding
    """Share of items whose mean score over models is 0.95 or more."""
    headroom: Finding
    """1 less the mean of the best model."""
    short_form: ShortForm | None
    no_short_form: str | None
    """The reason why there is no short form; None if there is one."""

    @property
    def sentence(self) -> str:
        """The stability in words."""
        form = self.short_form.sentence if self.short_form else f"{self.no_short_form}."
        return f"{self.tau.sentence} {self.headroom.sentence} {form[0].upper()}{form[1:]}"


class PriorAgreement(Part):
    """The agreement of an earlier benchmark with this one."""

    name: str
    models: int
    """Number of models that both have."""
    tau: Finding
    """Kendall's tau-b between the rankings of these models."""
    common_items: int
    overlap: float
    """Share of this benchmark's items that the earlier one has too."""

    @property
    def sentence(self) -> str:
        """The agreement in words."""
        return (
            f"{self.tau.sentence} {pluralize(self.common_items, 'item')} of this benchmark "
            f"({100 * self.overlap:.0f} %) are in {self.name}, too."
        )


@dataclass(frozen=True)
class _Sample:
    """Means of models over items, and how they vary with the items."""

    means: Array
    """(models,)."""
    influences: Array
    """(groups, models): what each group adds to the error of the means."""

    def noise(self, random: np.random.Generator) -> Array:
        """Returns (draws, models) errors, normal with the covariance of the means."""
        return random.standard_normal((DRAWS, len(self.influences))) @ self.influences


def measure_stability(matrix: Matrix) -> Stability:
    """Measures how steady the ranking of the models is, and what is left to measure.

    Args:
        matrix: Scores of models on items.
    """
    sample = _sample(matrix)
    tau, curve = _tau(matrix, sample)
    form = _short_form(matrix)
    return Stability(
        tau=tau,
        curve=curve,
        alpha=_alpha(matrix),
        split_half=_split_half(matrix),
        saturated=_saturated(matrix),
        headroom=_headroom(matrix, sample),
        short_form=None if isinstance(form, str) else form,
        no_short_form=form if isinstance(form, str) else None,
    )


def _sample(matrix: Matrix) -> _Sample:
    present = ~np.isnan(matrix.scores)
    weights = present * matrix.weights
    means = matrix.means
    errors = np.where(present, matrix.scores - means[:, None], 0.0) * weights
    order = np.argsort(matrix.groups, kind="stable")
    starts = np.flatnonzero(np.diff(matrix.groups[order], prepend=-1))
    sums = np.add.reduceat((errors / weights.sum(axis=1)[:, None])[:, order], starts, axis=1)
    groups = len(starts)
    return _Sample(means, sums.T * np.sqrt(groups / max(groups - 1, 1)))


def _tau(matrix: Matrix, sample: _Sample) -> tuple[Finding, tuple[TauPoint, ...]]:
    number, groups = len(matrix.models), len(sample.influences)
    reason = "it needs two models" if number < 2 else ""
    if groups < LEAST_ITEMS:
        reason = f"there are {groups} groups of items, it needs {LEAST_ITEMS}"
    random = np.random.default_rng(SEED)
    first, second = _pairs(number, random)
    errors = np.sqrt(
        ((sample.influences[:, first] - sample.influences[:, second]) ** 2).sum(axis=0)
    )
    used = errors > 0
    if not reason and not used.any():
        reason = "the models answer all items alike"
    if reason:
        return missing_figure("The steadiness of the ranking", reason), ()
    first, second, errors = first[used], second[used], errors[used]
    noise = sample.noise(random)
    moves = (noise[:, first] - noise[:, second]) / errors
    measured = float(_half_tau((sample.means[first] - sample.means[second]) / errors))
    scores = stats.norm.ppf(stats.rankdata(sample.means, method="ordinal") / (number + 1))
    gaps = (scores[first] - scores[second]) * np.median(errors) / errors
    low, middle, high = _multiples(measured, gaps, moves)
    size, ties = len(matrix.items), {s: _ties(matrix, s, (first, second), random) for s in SHARES}

    def expected(multiple: float, share: float) -> float:
        net = ((2 * ndtr(multiple * np.sqrt(share) * gaps) - 1) ** 2).mean()
        return min(float(net) / (1 - ties[share]), 1.0)

    curve = tuple(
        TauPoint(
            items=round(share * size),
            tau=expected(middle, share),
            interval=(expected(low, share), expected(high, share)),
        )
        for share in SHARES
        if round(share * size) >= 1
    )
    value = min(max(measured / (1 - ties[0.5]), 0.0), 1.0)
    # Outward to hundredths, beyond which the shape of the models' spread matters.
    ends = np.floor(100 * expected(low, 0.5)) / 100, np.ceil(100 * expected(high, 0.5)) / 100
    sentence = (
        f"Two halves of the {pluralize(size, 'item')} rank {50 * (1 + value):.0f} % of the pairs "
        "of models alike."
    )
    return make_figure(value, (float(min(*ends, value)), float(max(*ends, value))), sentence), curve


def _pairs(models: int, random: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
    """Returns the numbers of the models of all pairs, or of random ones where there are many."""
    first, second = np.triu_indices(models, 1)
    if len(first) <= PAIRS:
        return first, second
    chosen = random.choice(len(first), PAIRS, replace=False)
    return first[chosen], second[chosen]


def _ties(
    matrix: Matrix, share: float, pairs: tuple[NDArray[np.int64], ...], random: np.random.Generator
) -> float:
    """Returns the share of pairs that random subsets with this share of the items leave tied."""
    size, tied = len(matrix.items), list[float]()
    for _ in range(SUBSETS_FOR_TIES):
        items = random.permutation(size)[: max(1, round(min(share, 1.0) * size))]
        means = _means(matrix.scores[:, items], matrix.weights[items])
        tied.append(float((np.abs(means[pairs[0]] - means[pairs[1]]) < TINY).mean()))
    return min(float(np.mean(tied)), MOST_TIES)


def _means(scores: Array, weights: Array) -> Array:
    """Returns (models,) weighted means, 0 for a model without any of these scores."""
    used = ~np.isnan(scores) * weights
    totals = used.sum(axis=1)
    sums = (np.nan_to_num(scores) * used).sum(axis=1)
    return np.divide(sums, totals, out=np.zeros(len(scores)), where=totals > 0)


def _half_tau(gaps: Array) -> Array:
    """Returns the unbiased tau of halves from (..., pairs) differences in standard errors."""
    return np.asarray((4 * ndtr(np.abs(gaps)) - 3).mean(axis=-1))


def _multiples(measured: float, gaps: Array, moves: Array) -> tuple[float, float, float]:
    """Returns the multiples of the gaps at the ends and in the middle of the interval of tau.

    Args:
        measured: Tau of halves.
        gaps: (pairs,) true differences in standard errors that are scaled.
        moves: (draws, pairs) noise of them.
    """
    grid = np.append(0.0, np.geomspace(*GRID))
    above = [(_half_tau(multiple * gaps + moves) >= measured).mean() for multiple in grid]
    levels = (LEVEL / 2, 0.5, 1 - LEVEL / 2)
    low, middle, high = np.interp(levels, np.maximum.accumulate(above), grid).tolist()
    return low, middle, high


def _alpha(matrix: Matrix) -> Finding:
    name = "The reliability (alpha)"
    scores = matrix.scores
    models, items = scores.shape
    if models < 2 or items < 2:
        return missing_figure(name, "it needs two models and two items")
    effects, residuals = _additive(scores)
    present = ~np.isnan(scores)
    freedom = int(present.sum()) - models - items + 1
    noise = float((residuals**2).sum()) / max(freedom, 1) * float((1 / present.sum(axis=1)).mean())
    spread = float(effects.var(ddof=1))
    if freedom < 1 or spread < TINY**2 or noise < TINY**2:
        return missing_figure(name, "the models do not differ, or differ alike on every item")
    ratio = noise / spread
    low, high = (
        1 - ratio * float(stats.f.ppf(level, models - 1, freedom))
        for level in (1 - LEVEL / 2, LEVEL / 2)
    )
    sentence = (
        f"Reliability is {1 - ratio:.2f}: "
        f"{100 * max(1 - ratio, 0.0):.0f} % of what the models' means differ by is not due to the "
        "items drawn."
    )
    return make_figure(1 - ratio, (low, high), sentence)


def _additive(scores: Array) -> tuple[Array, Array]:
    """Returns the models' effects and the residuals (0 where missing) of models plus items."""
    present = ~np.isnan(scores)
    filled, effects = np.nan_to_num(scores), np.zeros(len(scores))
    rows, columns = present.sum(axis=1), present.sum(axis=0)
    rounds = 1 if present.all() else ROUNDS
    ease = np.zeros(scores.shape[1])
    for _ in range(rounds):
        ease = (filled - effects[:, None] * present).sum(axis=0) / columns
        effects = (filled - ease * present).sum(axis=1) / rows
    return effects, (filled - effects[:, None] - ease) * present


def _split_half(matrix: Matrix) -> Finding:
    name = "The reliability (split halves)"
    models, items = matrix.scores.shape
    if models < 3 or items < 2:
        return missing_figure(name, "it needs three models and two items")
    random = np.random.default_rng(SEED)
    orders = np.array([random.permutation(items) for _ in range(HALVES)])
    inside = np.zeros((items, HALVES))
    inside[orders[:, : items // 2].T, np.arange(HALVES)] = 1.0
    used = ~np.isnan(matrix.scores) * matrix.weights
    weighted = np.nan_to_num(matrix.scores) * used
    with np.errstate(invalid="ignore", divide="ignore"):
        halves = [(weighted @ half) / (used @ half) for half in (inside, 1 - inside)]
        first, second = (half - half.mean(axis=0) for half in halves)
        spread = np.sqrt((first**2).sum(axis=0) * (second**2).sum(axis=0))
        correlations = (first * second).sum(axis=0) / spread
    if not np.isfinite(correlations).all():
        return missing_figure(name, "some halves of the items do not tell any models apart")
    correlation = float(correlations.mean())
    value = 2 * correlation / (1 + correlation)
    sentence = f"Means over random halves of the items give a reliability of {value:.2f}."
    return make_figure(value, None, sentence, "it estimates what alpha does, which has one")


def _saturated(matrix: Matrix) -> Finding:
    ease = np.nanmean(matrix.scores, axis=0)
    easy = int((ease >= NEARLY_ALL - TINY).sum())
    share = proportion(easy, len(ease))
    sentence = (
        f"{easy:,} of {pluralize(len(ease), 'item')} are answered right by nearly all models."
    )
    return make_figure(easy / len(ease), share.interval, sentence)


def _headroom(matrix: Matrix, sample: _Sample) -> Finding:
    best, groups = float(sample.means.max()), len(sample.influences)
    items = int((~np.isnan(matrix.scores[int(sample.means.argmax())])).sum())
    sentence = f"The best model is {points(1 - best)} below the most that there is."
    if groups < LEAST_ITEMS:
        why = f"there are {groups} groups of items, it needs {LEAST_ITEMS}"
        return make_figure(1 - best, None, sentence, why)
    if items * min(best, 1 - best) < LEAST_WRONG:
        why = f"the best model has fewer than {LEAST_WRONG} items right, or wrong"
        return make_figure(1 - best, None, sentence, why)
    low, high = maximum(sample.means, sample.noise(np.random.default_rng(SEED)))
    return make_figure(1 - best, (max(1 - high, 0.0), min(1 - low, 1.0)), sentence)


def _short_form(matrix: Matrix) -> ShortForm | str:
    """Returns a short form, or the reason why there is none."""
    models, items = matrix.scores.shape
    if models < FORM_MODELS:
        return (
            f"a short form needs {FORM_MODELS} models, to be chosen on half and tried on the rest"
        )
    random = np.random.default_rng(SEED)
    mixed = random.permutation(models)
    chosen, others = np.sort(mixed[: models // 2]), np.sort(mixed[models // 2 :])
    order = np.argsort(-_discrimination(matrix.scores[chosen]), kind="stable")
    sizes = np.unique(np.geomspace(2, items, SIZES).round().astype(int))
    taus = [_tau_of_form(matrix, chosen, order[:size]) for size in sizes]
    enough = [all(tau >= TAU for tau in taus[n:]) for n in range(len(sizes))]
    if not any(enough[:-1]):
        return "no part of the items ranks the models that it is chosen on as all items do"
    place = enough.index(True)
    size = int(sizes[place])
    subsets = [
        _tau_of_form(matrix, others, random.permutation(items)[:size]) for _ in range(SUBSETS)
    ]
    low, high = np.quantile(subsets, (LEVEL / 2, 1 - LEVEL / 2)).tolist()
    tau = _tau_of_form(matrix, others, order[:size])
    why = "it is over the models that were not used; the range of random subsets is beside it"
    sentence = f"On the other {pluralize(len(others), 'model')} tau is {tau:.2f}."
    return ShortForm(
        size=size,
        items=tuple(matrix.items[item] for item in order[:size]),
        chosen_tau=taus[place],
        tau=make_figure(tau, None, sentence, why),
        random_tau=float(np.mean(subsets)),
        random_range=(low, high),
        chosen_on=tuple(matrix.models[model] for model in chosen),
    )


def _discrimination(scores: Array) -> Array:
    """Returns the (items,) covariances of each item with the mean of the others over models."""
    with np.errstate(invalid="ignore"):
        ease = np.nan_to_num(np.nansum(scores, axis=0) / (~np.isnan(scores)).sum(axis=0))
    moves = np.where(np.isnan(scores), 0.0, scores - ease)
    rest = moves.sum(axis=1)[:, None] - moves
    return ((rest - rest.mean(axis=0)) * moves).sum(axis=0)


def _tau_of_form(matrix: Matrix, models: NDArray[np.int64], items: NDArray[np.int64]) -> float:
    """Returns tau-b of models' means over some items with those over all; 0 if all tie."""
    form = _means(matrix.scores[np.ix_(models, items)], matrix.weights[items])
    return kendall(form, matrix.means[models])


def kendall(first: Array, second: Array) -> float:
    """Returns Kendall's tau-b of (models,) values, 0 where all of either are tied."""
    result: Any = stats.kendalltau(np.round(first, 12), np.round(second, 12))
    return float(np.nan_to_num(result.statistic))


def compare_with_priors(matrix: Matrix, priors: Mapping[str, Matrix]) -> tuple[PriorAgreement, ...]:
    """Compares the ranking and the items of a benchmark with those of earlier ones.

    Args:
        matrix: Scores of models on the items of the benchmark.
        priors: Those on earlier benchmarks, by name; models and items are matched by name.
    """
    return tuple(_compare(matrix, name, prior) for name, prior in priors.items())


def _compare(matrix: Matrix, name: str, prior: Matrix) -> PriorAgreement:
    items = len({*matrix.items} & {*prior.items})
    models = sorted({*matrix.models} & {*prior.models})
    return PriorAgreement(
        name=name,
        models=len(models),
        tau=_agreement(matrix, name, prior, models),
        common_items=items,
        overlap=items / len(matrix.items),
    )


def _agreement(matrix: Matrix, name: str, prior: Matrix, models: list[str]) -> Finding:
    label = f"The agreement with {name}"
    if len(models) < 2:
        return missing_figure(label, f"{pluralize(len(models), 'model')} in common")
    samples = [
        (_sample(side), [side.models.index(model) for model in models]) for side in (matrix, prior)
    ]
    ends = [sample.means[places] for sample, places in samples]
    value = kendall(*ends)
    sentence = f"{name} ranks the {len(models)} models that both have with tau {value:.2f} to this."
    if len(models) < PRIOR_MODELS:
        return make_figure(value, None, sentence, f"an interval needs {PRIOR_MODELS} models")
    if min(len(sample.influences) for sample, _ in samples) < LEAST_ITEMS:
        return make_figure(
            value, None, sentence, f"an interval needs {LEAST_ITEMS} groups of items"
        )
    random = np.random.default_rng(SEED)
    first, second = _pairs(len(models), random)
    signs = []
    for (sample, places), means in zip(samples, ends, strict=True):
        noise = sample.noise(random)[:, places]
        # Measured means are as far apart as the true ones and the noise together.
        own = 1 - float(noise.var(axis=1).mean()) / max(float(means.var()), TINY)
        drawn = np.sqrt(max(own, 0.0)) * means + noise
        signs.append(np.sign(drawn[:, first] - drawn[:, second]))
    half = float(stats.norm.ppf(1 - LEVEL / 2) * (signs[0] * signs[1]).mean(axis=1).std())
    return make_figure(value, (max(value - half, -1.0), min(value + half, 1.0)), sentence)
