"""The sources of the noise of a benchmark: variance components, a D-study, signal-to-noise.

A score is the mean plus random effects of the model, the item, both together (model x item), the
generation, model x generation, and a residual, which holds what epochs (and model x item x
generation) add. Their variances are estimated by Henderson's method I (Biometrics 9, 1953): sums of
squares equal their expectations, whatever cells are missing. Weights and groups do not enter.

Intervals come from draws (generalized confidence intervals, Weerahandi 1993; Burdick, Borror and
Montgomery 2005, chapter 2): the mean squares of models, generations and model x generation, which
have few degrees of freedom, are drawn from their chi-squared distributions; the other components,
whose effects are far from normal where scores are 0 or 1, from Student's around the estimate, with
the error of a two-way jackknife over models and items (Owen, Ann. Appl. Stat. 1, 2007; the blocks
of cells are what both have in common, as in Cameron, Gelbach and Miller 2011).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from raylab.doctor.figures import Finding, make_figure, missing_figure, points
from raylab.doctor.responses import Array, Responses
from raylab.printable import join_names
from raylab.runs.records import Part

NAMES = {
    "models": "models",
    "items": "items",
    "model x item": "items that suit some models",
    "generations": "generations",
    "model x generation": "generations that suit some models",
    "epochs": "chance from answer to answer",
}
"""The components, and what they are in words."""
AXES = {
    "models": (0,),
    "items": (1,),
    "model x item": (0, 1),
    "generations": (2,),
    "model x generation": (0, 2),
}
"""Axes of the (models, items, generations) cells that an effect is shared by."""
RESIDUAL = "epochs"
COLUMNS = ("model", "item", "generation")
DRAWS = 20_000
BLOCKS = 20
"""Most parts that the jackknife leaves out, each once."""
LEAST_MODELS = 3
FEW_MODELS = f"an interval needs {LEAST_MODELS} models"
AS_IT_IS = "as it is"
LARGEST_TABLE = 50_000_000
"""Most cells; beyond it generations are taken together."""
SINGULAR = 1e-9
STEADY = 0.35
"""Relative error below which a component is drawn on the logarithmic scale."""
SEED = 20_260

Value = TypeVar("Value", float, Array)

Cells = tuple[Array, Array, Array]
"""(models, items, generations) numbers of scores, their sums, and the sums of their squares."""


class Component(Part):
    """The variance that one source adds to a score."""

    name: str
    variance: Finding
    share: float | None
    """Its share of the sum of all components, in [0, 1]."""
    negative: bool
    """True if the estimate is negative and reported as 0: it is small beside the noise."""

    @property
    def sentence(self) -> str:
        """The component in words."""
        return self.variance.sentence


class Design(Part):
    """The precision of a benchmark of some size (a D-study)."""

    name: str
    """`as it is`, or what there would be twice as much of."""
    standard_error: Finding
    """Standard error of a model's mean over benchmarks with new items and generations."""
    reliability: Finding
    """Share of the variance of models' means that is due to the models: the generalizability
    coefficient, in [0, 1]."""

    @property
    def sentence(self) -> str:
        """The design in words."""
        return f"{self.standard_error.sentence} {self.reliability.sentence}"


class Noise(Part):
    """The sources of the scores' variance, and what more of each would gain."""

    components: tuple[Component, ...]
    designs: tuple[Design, ...]
    signal_to_noise: Finding
    """Standard deviation of the models over that of the noise of a model's mean; its square is the
    signal-to-noise ratio of Brennan (Generalizability Theory, 2001)."""
    noise: tuple[str, ...]
    """The sources of the noise: `items`, `generations`, `epochs`."""

    @property
    def sentence(self) -> str:
        """The noise in words."""
        shares = {part.name: part.share for part in self.components if part.share is not None}
        if not shares:
            return self.components[0].variance.sentence
        others = {name: share for name, share in shares.items() if name != "models"}
        name = max(others, key=others.__getitem__, default="")
        most = f"Most of what is not the models comes from {NAMES[name]} ({100 * shares[name]:.0f}"
        return f"{self.signal_to_noise.sentence} {most} % of all variance)."


@dataclass(frozen=True)
class _Fit:
    """Estimated variances and the counts that they rest on."""

    variances: dict[str, float]
    """By name; those that the data cannot tell from others are missing. May be negative."""
    cells: Cells

    @cached_property
    def nested(self) -> bool:
        """True if each generation has items of its own."""
        return self.levels((1, 2)) == self.levels((1,)) and self.levels((2,)) > 1

    def levels(self, axes: tuple[int, ...]) -> int:
        """Returns the number of combinations of levels that have a score."""
        return int((_sum(self.cells[0], axes) > 0).sum())

    def single(self, unit: tuple[int, ...]) -> float:
        """Returns the mean over units of one over their number of scores."""
        counts = _sum(self.cells[0], unit)
        return float((1 / counts[counts > 0]).mean())

    def factor(self, unit: tuple[int, ...], axes: tuple[int, ...], alone: bool = False) -> float:
        """Returns how much of an effect's variance enters the mean of a unit.

        It is the mean over units of the sum of the squared shares p of the effect's levels, 1 / k
        where each unit has k levels alike; less, unless `alone`, the sum of p p' of two units, by
        which an effect that they share leaves their difference.
        """
        joint = _sum(self.cells[0], tuple(sorted({*unit, *axes})))
        shares = _ratio(joint, _sum(self.cells[0], unit))
        number = self.levels(unit)
        own = float((shares**2).sum()) / number
        between = [axis for axis in unit if axis not in axes]
        if alone or not between or shares.shape[between[-1]] < 2:
            return own
        pairs = float((shares.sum(axis=between[-1]) ** 2).sum()) - own * number
        return own - pairs / number / (shares.shape[between[-1]] - 1)


def measure_noise(responses: Responses) -> Noise:
    """Measures where the variance of scores comes from.

    Args:
        responses: Scores of models on items. Generations count where there are two or more, epochs
            where some model answers an item of a generation more than once.
    """
    cells = _cells(responses)
    fit = _fit(cells)
    draws = _draw(fit) if fit.variances else {}
    components = tuple(_component(name, fit, draws) for name in NAMES)
    noise = _sources(fit)
    return Noise(
        components=components,
        designs=tuple(_designs(fit, draws)),
        signal_to_noise=_signal_to_noise(fit, draws, noise),
        noise=noise,
    )


def _cells(responses: Responses) -> Cells:
    table = responses.table
    codes = [np.unique(table[name].cat.codes, return_inverse=True) for name in COLUMNS]
    shape = tuple(len(levels) for levels, _ in codes)
    if np.prod(shape) > LARGEST_TABLE:
        codes[2] = (codes[2][0][:1], np.zeros(len(table), np.int64))
        shape = (*shape[:2], 1)
    place = np.ravel_multi_index([code for _, code in codes], shape)
    score = table["score"].to_numpy(float)
    counts, sums, squares = (
        np.bincount(place, weights, int(np.prod(shape))).reshape(shape).astype(float)
        for weights in (None, score, score**2)
    )
    return counts, sums, squares


def _sum(values: Array, axes: tuple[int, ...]) -> Array:
    """Returns sums by the levels of some axes; the others have length 1."""
    return values.sum(axis=tuple(axis for axis in (0, 1, 2) if axis not in axes), keepdims=True)


def _fit(cells: Cells) -> _Fit:
    """Estimates the components that the cells can tell apart."""
    names = [] if _constant(cells) else _estimable(cells)
    return _Fit(_variances(cells, names) if names else {}, cells)


def _constant(cells: Cells) -> bool:
    counts, sums, squares = (float(values.sum()) for values in cells)
    return squares / counts - (sums / counts) ** 2 < SINGULAR


def _estimable(cells: Cells) -> list[str]:
    counts = cells[0]
    used = [n for n, axes in AXES.items() if all(counts.shape[axis] > 1 for axis in axes)]
    total, levels = counts.sum(), {n: int((_sum(counts, AXES[n]) > 0).sum()) for n in used}
    used = [n for n in used if levels[n] < total]
    if "models" not in used:
        return []
    for name in ("model x generation", "generations", "items", "model x item"):
        if name in used and not _regular(cells, used):
            used.remove(name)
    return used if _regular(cells, used) else []


def _regular(cells: Cells, names: list[str]) -> bool:
    matrix, _ = _equations(cells, names)
    scaled = matrix / np.sqrt((matrix**2).sum(axis=1, keepdims=True))
    return bool(np.linalg.svd(scaled, compute_uv=False)[-1] > SINGULAR)


def _variances(cells: Cells, names: list[str]) -> dict[str, float]:
    matrix, observed = _equations(cells, names)
    solved = np.linalg.lstsq(matrix, observed, rcond=None)[0]
    return dict(zip((*names, RESIDUAL), solved.tolist(), strict=True))


def _equations(cells: Cells, names: list[str]) -> tuple[Array, Array]:
    """Returns the coefficients of the variances and the sums of squares, less those of the mean."""
    counts, sums, squares = cells
    margins: dict[tuple[int, ...], Array] = {
        axes: _sum(counts, axes) for axes in {AXES[n] for n in names} | {()}
    }
    total = float(margins[()].sum())

    def coefficients(unit: tuple[int, ...]) -> list[float]:
        own, row = margins[unit], list[float]()
        for name in names:
            axes = tuple(sorted({*unit, *AXES[name]}))
            joint = margins[axes] if axes in margins else _sum(counts, axes)
            row.append(total if axes == unit else float(_ratio(joint**2, own).sum()))
        return [*row, float((own > 0).sum())]

    units = [AXES[name] for name in names]
    least, mean = np.array(coefficients(())), float(sums.sum() ** 2 / total)
    rows = [np.array(coefficients(unit)) - least for unit in units]
    observed = [float(_ratio(_sum(sums, unit) ** 2, margins[unit]).sum()) - mean for unit in units]
    rows.append(np.full(len(names) + 1, total) - least)
    observed.append(float(squares.sum()) - mean)
    return np.array(rows), np.array(observed)


def _ratio(values: Array, by: Array) -> Array:
    """Returns quotients, 0 where the divisor is."""
    shape = np.broadcast_shapes(values.shape, by.shape)
    return np.divide(values, by, out=np.zeros(shape), where=np.broadcast_to(by > 0, shape))


def _draw(fit: _Fit) -> dict[str, Array]:
    """Returns (draws,) variances of each component, which may be negative; none of few models."""
    models = fit.levels((0,))
    if models < LEAST_MODELS:
        return {}
    random, drawn = np.random.default_rng(SEED), dict[str, Array]()
    errors = _errors(fit)
    for name in (RESIDUAL, "model x item", "items"):
        if name in fit.variances:
            error, freedom = errors[name]
            drawn[name] = _draw_around(fit.variances[name], error, freedom, random)
    generations = fit.levels((2,)) - 1
    for name, freedom in (
        ("model x generation", (models - 1) * generations),
        ("generations", generations),
        ("models", models - 1),
    ):
        if name in fit.variances:
            others = {key: value for key, value in fit.variances.items() if key in drawn}
            square = fit.variances[name] + _weigh(_enters(fit, name), others)
            chi_squared = random.chisquare(freedom, DRAWS) / freedom
            drawn[name] = square / chi_squared - _weigh(_enters(fit, name), drawn)
    return drawn


def _draw_around(value: float, error: float, freedom: float, random: np.random.Generator) -> Array:
    students = random.standard_t(freedom, DRAWS)
    if value > 0 and error < STEADY * value:
        return value * np.exp(error / value * students)
    return value + error * students


def _enters(fit: _Fit, name: str) -> dict[str, float]:
    """Returns how much of the other components enters the mean square of this one."""
    unit = AXES[name]
    below = {
        "models": ("items", "model x item", "generations", "model x generation"),
        "generations": ("items", "model x item", "model x generation"),
        "model x generation": ("model x item",),
    }[name]
    entering = {other: fit.factor(unit, AXES[other]) for other in below if other in fit.variances}
    return entering | {RESIDUAL: fit.single(unit)}


def _weigh(factors: Mapping[str, float], of: Mapping[str, Value]) -> Value:
    terms = [factor * of[name] for name, factor in factors.items() if name in of]
    return sum(terms[1:], terms[0])


def _errors(fit: _Fit) -> dict[str, tuple[float, float]]:
    """Returns standard errors and degrees of freedom by the two-way jackknife."""
    names = [name for name in fit.variances if name != RESIDUAL]
    models, items, cells = (_jackknife(fit.cells, names, parts) for parts in _parts(fit.cells))
    spreads = models[0] + items[0] - cells[0]
    total = np.maximum(spreads, np.maximum(models[0], items[0]))
    # The estimates without a model are skewed: they count half (see `make coverage`).
    freedom = (models[0] + items[0]) ** 2 / np.maximum(
        2 * models[0] ** 2 / models[1] + items[0] ** 2 / items[1], np.finfo(float).tiny
    )
    ends = zip(np.sqrt(total).tolist(), np.maximum(freedom, 1.0).tolist(), strict=True)
    return dict(zip((*names, RESIDUAL), ends, strict=True))


def _parts(cells: Cells) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns the numbers of the blocks of models, items, and model-item cells, to be left out."""
    random, shape = np.random.default_rng(SEED), cells[0].shape
    models, items = (random.permutation(size) % min(size, BLOCKS) for size in shape[:2])
    first, second = (random.permutation(size) for size in shape[:2])
    both = (first[:, None] + second) % min(max(shape[:2]), BLOCKS)
    return models[:, None, None], items[None, :, None], both[:, :, None]


def _jackknife(cells: Cells, names: list[str], parts: NDArray[np.int64]) -> tuple[Array, int]:
    """Returns the variances of the estimates when blocks are left out, and degrees of freedom."""
    counts, sums, squares = cells
    blocks = int(parts.max()) + 1
    estimates = np.array(
        [
            list(_variances((counts * kept, sums * kept, squares * kept), names).values())
            for kept in (parts != block for block in range(blocks))
        ]
    )
    return estimates.var(axis=0) * (blocks - 1), blocks - 1


def _interval(values: Array, most: float = np.inf) -> tuple[float, float]:
    low, high = np.quantile(np.clip(values, 0.0, most), (0.025, 0.975)).tolist()
    return low, high


def _component(name: str, fit: _Fit, draws: Mapping[str, Array]) -> Component:
    if name not in fit.variances:
        words = f"The variance of {name}"
        figure = missing_figure(words, _why_missing(name, fit))
        return Component(name=name, variance=figure, share=None, negative=False)
    value = max(fit.variances[name], 0.0)
    share = value / sum(max(v, 0.0) for v in fit.variances.values())
    figure = make_figure(
        value,
        _interval(draws[name]) if name in draws else None,
        f"{100 * share:.0f} % of the variance of a score comes from {NAMES[name]}.",
        FEW_MODELS,
    )
    negative = fit.variances[name] < 0
    return Component(name=name, variance=figure, share=share, negative=negative)


def _why_missing(name: str, fit: _Fit) -> str:
    models, items, generations = fit.cells[0].shape
    if _constant(fit.cells):
        return "all scores are equal"
    if models < 2:
        return "there is one model"
    if "item" in name and items < 2:
        return "there is one item"
    if "generation" in name and generations < 2:
        return "there is one generation"
    if name == "model x item":
        return "no model answers an item twice, so it is a part of epochs"
    return "the scores cannot tell it from other sources"


def _sources(fit: _Fit) -> tuple[str, ...]:
    if not fit.variances:
        return ()
    generations = ("generations",) if "model x generation" in fit.variances else ()
    epochs = ("epochs",) if _answers_again(fit) else ()
    return ("items", *generations, *epochs)


def _answers_again(fit: _Fit) -> bool:
    return bool((fit.cells[0] > 1).any())


def _variance_of_mean(
    fit: _Fit, of: Mapping[str, Value], more: tuple[int, int, int], absolute: bool
) -> Value:
    """Returns the variance of a model's mean with so many times the items, generations, epochs.

    Args:
        fit: What was estimated.
        of: The variances.
        more: Multiples of the number of items, generations and epochs.
        absolute: True for the mean itself, False for its difference from that of other models.
    """
    items, generations, epochs = more
    again = items * (generations if fit.nested else 1)
    less = {"items": again, "model x item": again, "generations": generations}
    less["model x generation"] = generations
    factors = {
        name: fit.factor((0,), AXES[name], alone=absolute) / times
        for name, times in less.items()
        if name in of
    }
    factors[RESIDUAL] = fit.single((0,)) / (items * generations * epochs)
    return _weigh(factors, of)


def _signal_to_noise(fit: _Fit, draws: Mapping[str, Array], noise: tuple[str, ...]) -> Finding:
    if not fit.variances:
        return missing_figure("The signal-to-noise ratio", _why_missing("models", fit))
    variances = {name: max(value, 0.0) for name, value in fit.variances.items()}
    error = _variance_of_mean(fit, variances, (1, 1, 1), absolute=False)
    if error <= 0:
        reason = "the scores show no noise"
        return missing_figure("The signal-to-noise ratio", reason)
    value = float(np.sqrt(variances["models"] / error))
    interval = None
    if draws:
        spread = np.maximum(_variance_of_mean(fit, draws, (1, 1, 1), absolute=False), error / 1e6)
        interval = _interval(np.sqrt(np.maximum(draws["models"], 0.0) / spread))
    sentence = (
        f"Models differ {value:.1f} times as much as their means move by the choice of "
        f"{join_names(noise)}."
    )
    return make_figure(value, interval, sentence, FEW_MODELS)


def _designs(fit: _Fit, draws: Mapping[str, Array]) -> list[Design]:
    if not fit.variances:
        return []
    reasons = {
        "twice the items": "",
        "twice the generations": ""
        if "model x generation" in fit.variances
        else "there are no two generations of the same models, so nothing shows what more gain",
        "twice the epochs": ""
        if _answers_again(fit)
        else "no item is answered twice in a generation, so nothing shows what more epochs gain",
    }
    multiples = {"twice the items": (2, 1, 1), "twice the generations": (1, 2, 1)}
    multiples["twice the epochs"] = (1, 1, 2)
    designs = [_design(AS_IT_IS, fit, draws, (1, 1, 1))]
    for name, reason in reasons.items():
        if reason:
            error = missing_figure(f"The standard error with {name}", reason)
            reliability = missing_figure(f"The reliability with {name}", reason)
            designs.append(Design(name=name, standard_error=error, reliability=reliability))
        else:
            designs.append(_design(name, fit, draws, multiples[name]))
    return designs


def _design(name: str, fit: _Fit, draws: Mapping[str, Array], more: tuple[int, int, int]) -> Design:
    variances = {key: max(value, 0.0) for key, value in fit.variances.items()}
    error = float(np.sqrt(_variance_of_mean(fit, variances, more, absolute=True)))
    relative = _variance_of_mean(fit, variances, more, absolute=False)
    share = variances["models"] / max(variances["models"] + relative, np.finfo(float).tiny)
    of_error = of_share = None
    if draws:
        drawn = _variance_of_mean(fit, draws, more, absolute=True)
        of_error = _interval(np.sqrt(np.maximum(drawn, 0.0)))
        signal = np.maximum(draws["models"], 0.0)
        noise = np.maximum(_variance_of_mean(fit, draws, more, absolute=False), relative / 1e6)
        of_share = _interval(signal / np.maximum(signal + noise, np.finfo(float).tiny), 1.0)
    start = "The mean" if name == AS_IT_IS else f"With {name} the mean"
    return Design(
        name=name,
        standard_error=make_figure(
            error, of_error, f"{start} of a model is off by {points(error)}.", FEW_MODELS
        ),
        reliability=make_figure(
            share,
            of_share,
            f"Of what models' means differ by, {100 * share:.0f} % is due to the models.",
            FEW_MODELS,
        ),
    )
