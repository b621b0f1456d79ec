"""Sources of noise in a benchmark: variance components, a D-study, signal-to-noise.

A score is the mean plus random effects of the model, the item, both together (model x item), the
generation, model x generation, and a residual for epochs (and model x item x generation). Their
variances are estimated by Henderson's method I (Biometrics 9, 1953), which sets sums of squares
equal to their expectations, whatever cells are missing. Weights and groups are ignored.

Intervals come from draws (generalized confidence intervals, Weerahandi 1993; Burdick, Borror and
Montgomery 2005, chapter 2). The mean squares of models, generations and model x generation, which
have few degrees of freedom, are drawn from their chi-squared distributions. The other components,
whose effects are far from normal if scores are 0 or 1, are drawn from Student's distribution around
the estimate, with the error of a two-way jackknife over models and items (Owen, Ann. Appl. Stat. 1,
2007; blocks of cells stand for what both share, as in Cameron, Gelbach and Miller 2011).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from raylab.benchmark.responses import Responses
from raylab.core.runs.records import Figure, Part
from raylab.core.stats import LEVEL, Array

AXES: dict[str, tuple[int, ...]] = {
    "models": (1,),
    "items": (2,),
    "model x item": (1, 2),
    "generations": (0,),
    "model x generation": (0, 1),
}
"""Axes of the (generations, models, items) cells along which an effect varies, by component."""
LEVELS = ("generation", "model", "item")
RESIDUAL = "epochs"
DESIGNS = {"items": (2, 1, 1), "generations": (1, 2, 1), "epochs": (1, 1, 2)}
"""Multiples of the numbers of items, generations and epochs, by what is doubled."""
DRAWS = 10_000
BLOCKS = 10
"""Most blocks of the jackknife."""
LEAST_MODELS = 3
FEW_MODELS = f"an interval needs {LEAST_MODELS} models"
RESIDUAL_MODELS = 8
"""The same for the residual, which depends on the choice of models."""
SINGULAR = 1e-9
STEADY = 0.35
"""Relative error below which a component is drawn on the logarithmic scale."""
TINY = np.finfo(float).tiny
SEED = 20_260

Cells = tuple[Array, Array, Array]
"""(generations, models, items) numbers of scores, their sums, and the sums of their squares."""


class Component(Part):
    """The variance of a score from one source; a negative estimate counts as 0."""

    name: str
    variance: Figure
    share: float | None
    """Its share of the sum of all components, in [0, 1]."""


class Design(Part):
    """The precision of a benchmark of another size (a D-study)."""

    name: str
    """`as it is`, or what is doubled."""
    standard_error: Figure
    """Standard error of a model's mean over benchmarks with new items and generations."""
    reliability: Figure
    """Share of the variance of models' means that comes from the models: the generalizability
    coefficient, in [0, 1]."""


class Noise(Part):
    """Sources of the variance of scores, and the gain from more of each."""

    components: tuple[Component, ...]
    sources: tuple[str, ...]
    """The sources of noise in a model's mean: items, generations, epochs."""
    designs: tuple[Design, ...]
    """The present one, then those with twice the number of each source."""
    signal_to_noise: Figure
    """Standard deviation of the models over that of the noise in a model's mean; its square is the
    signal-to-noise ratio of Brennan (Generalizability Theory, 2001)."""


@dataclass(frozen=True)
class _Fit:
    """Estimated components.

    Attributes:
        names: The components that the data can separate, the residual last.
        values: (1 + draws, components) variances: the estimates, at least 0, then draws of their
            confidence distribution, if there are enough models.
        alone: (components,) shares of each component that enter a model's mean.
        beside: The same for its difference from the means of other models.
        nested: True if each generation has items of its own.
        sources: The sources of noise in a model's mean.
    """

    names: list[str]
    values: Array
    alone: Array
    beside: Array
    nested: bool
    sources: tuple[str, ...]

    def predict(self, more: tuple[int, int, int], alone: bool = False) -> Array:
        """Returns (1 + draws,) variances of a model's mean in another design (a D-study).

        Args:
            more: Multiples of the numbers of items, generations and epochs.
            alone: True for the mean itself, False for its difference from those of other models.
        """
        items, generations, epochs = more
        again = items * (generations if self.nested else 1)
        times = {"models": np.inf, "items": again, "model x item": again}
        times |= {"generations": generations, "model x generation": generations}
        times |= {RESIDUAL: items * generations * epochs}
        factors = self.alone if alone else self.beside
        return self.values @ (factors / np.array([times[name] for name in self.names]))

    def signal(self, more: tuple[int, int, int]) -> Array:
        """Returns the variance of the models over that of the noise; may be negative."""
        noise = self.predict(more)
        return self.values[:, self.names.index("models")] / np.maximum(noise, noise[0] / 1e6 + TINY)

    def figure(self, values: Array) -> Figure:
        """Returns a figure >= 0 from (1 + draws,) values."""
        if len(values) == 1:
            return Figure(value=float(values[0]), reason=FEW_MODELS)
        quantiles = (LEVEL / 2, LEVEL, 1 - LEVEL / 2)
        low, whole, high = np.quantile(values[1:], quantiles).tolist()
        # Nothing lies below a true 0, so there the whole level is on one side (after Feldman and
        # Cousins, Phys. Rev. D 57, 1998).
        interval = max(low if low > 0 else whole, 0.0), max(high, 0.0)
        return Figure(value=float(values[0]), interval=interval)


def measure_noise(responses: Responses) -> Noise:
    """Measures where the variance of scores comes from.

    Args:
        responses: Scores of models on items. Generations count if there are two or more, epochs if
            some model answers an item of a generation more than once.
    """
    cells = _cells(responses)
    names = _estimable(cells)
    fit = _fit(cells, names) if names else None
    return Noise(
        components=tuple(_component(name, fit, cells) for name in (*AXES, RESIDUAL)),
        sources=fit.sources if fit else (),
        designs=tuple(_designs(fit)) if fit else (),
        signal_to_noise=_signal_to_noise(fit, cells),
    )


def _cells(responses: Responses) -> Cells:
    table = responses.table
    columns = [table[name].cat.codes for name in LEVELS]
    codes = [np.unique(column, return_inverse=True)[1] for column in columns]
    shape = tuple(int(code.max()) + 1 for code in codes)
    place = np.ravel_multi_index(codes, shape)
    score = table["score"].to_numpy(float)
    counts, sums, squares = (
        np.bincount(place, weights, int(np.prod(shape))).reshape(shape).astype(float)
        for weights in (None, score, score**2)
    )
    return counts, sums, squares


def _estimable(cells: Cells) -> list[str]:
    """Returns the components that the cells can separate, without the residual."""
    counts = _margins(cells[0])
    used = [
        name
        for name, axes in AXES.items()
        if min(np.array(cells[0].shape)[list(axes)]) > 1
        and (counts[axes] > 0).sum() < counts[()].sum()
    ]
    if "models" not in used or _constant(cells):
        return []
    for name in ("model x generation", "generations", "items", "model x item"):
        if name in used and not _regular(cells, used):
            used.remove(name)
    return used if _regular(cells, used) else []


def _constant(cells: Cells) -> bool:
    counts, sums, squares = (float(values.sum()) for values in cells)
    return squares / counts - (sums / counts) ** 2 < SINGULAR


def _regular(cells: Cells, names: list[str]) -> bool:
    rows, _ = _equations(cells, names)
    matrix = rows[1:] - rows[0]
    scaled = matrix / np.sqrt((matrix**2).sum(axis=1, keepdims=True))
    return bool(np.linalg.svd(scaled, compute_uv=False)[-1] > SINGULAR)


def _why_missing(name: str, cells: Cells) -> str:
    if _constant(cells):
        return "all scores are equal"
    for axis, level in enumerate(LEVELS):
        if cells[0].shape[axis] < 2 and axis in (1, *AXES.get(name, ())):
            return f"there is one {level}"
    if name == "model x item":
        return "no model answers an item twice, so it is part of epochs"
    return "the scores cannot separate it from other sources"


def estimate_components(cells: Cells, names: list[str]) -> Array:
    """Returns the variances of effects and of the residual, which may be negative."""
    rows, observed = _equations(cells, names)
    return np.linalg.lstsq(rows[1:] - rows[0], observed[1:] - observed[0], rcond=None)[0]


def _equations(cells: Cells, names: list[str]) -> tuple[Array, Array]:
    """Returns the coefficients of the variances in sums of squares, and these sums.

    The sums are of the mean, of the means of each effect's levels, and of all scores.
    """
    counts, sums, squares = cells
    margins, totals = _margins(counts), _margins(sums)
    rows, observed = list[list[float]](), list[float]()
    for unit in ((), *(AXES[name] for name in names)):
        own = margins[unit]
        joint = [margins[tuple(sorted({*unit, *AXES[name]}))] for name in names]
        rows.append([*(float(_ratio(j**2, own).sum()) for j in joint), float((own > 0).sum())])
        observed.append(float(_ratio(totals[unit] ** 2, own).sum()))
    rows.append([float(counts.sum())] * (len(names) + 1))
    return np.array(rows), np.array([*observed, float(squares.sum())])


def _margins(values: Array) -> dict[tuple[int, ...], Array]:
    """Returns sums by the levels of each set of axes; the other axes have length 1."""
    kept = (axes for size in range(4) for axes in combinations(range(3), size))
    return {axes: values.sum(axis=tuple({0, 1, 2} - {*axes}), keepdims=True) for axes in kept}


def _ratio(values: Array, by: Array) -> Array:
    """Returns quotients, 0 where the divisor is 0."""
    return values / np.where(by > 0, by, np.inf)


def _fit(cells: Cells, names: list[str]) -> _Fit:
    counts, estimates = cells[0], estimate_components(cells, names)
    rows, models = _equations(cells, names)[0], names.index("models")
    squares = rows[1:-1] - rows[0]
    if "model x generation" in names:
        squares[-1] -= squares[models] + squares[names.index("generations")]
    factors = squares / np.diag(squares)[:, None]
    draws = [_draw(cells, names, estimates, factors)] if counts.shape[1] >= LEAST_MODELS else []
    return _Fit(
        names=[*names, RESIDUAL],
        values=np.vstack([np.maximum(estimates, 0.0), *draws]),
        alone=rows[1 + models] / counts.sum(),
        beside=factors[models],
        nested=bool(((counts.sum(axis=1) > 0).sum(axis=0) <= 1).all()),
        sources=(
            "items",
            *(["generations"] if "model x generation" in names else []),
            *(["epochs"] if (counts > 1).any() else []),
        ),
    )


def _draw(cells: Cells, names: list[str], estimates: Array, factors: Array) -> Array:
    """Returns (draws, components) variances, which may be negative.

    Args:
        cells: The scores.
        names: The components before the residual.
        estimates: (components,) variances.
        factors: Contributions of each component to the mean square of each effect.
    """
    random, (generations, models, _) = np.random.default_rng(SEED), cells[0].shape
    drawn, errors, freedoms = np.zeros((DRAWS, len(estimates))), *_errors(cells, names)
    places = {name: place for place, name in enumerate([*names, RESIDUAL])}
    noise = [places[name] for name in (RESIDUAL, "model x item", "items") if name in places]
    for n in noise:
        drawn[:, n] = _draw_around(estimates[n], errors[n], freedoms[n], random)
    for name, freedom in (
        ("model x generation", (models - 1) * (generations - 1)),
        ("generations", generations - 1),
        ("models", models - 1),
    ):
        if (n := places.get(name)) is not None:
            square = estimates[n] + factors[n, noise] @ estimates[noise]
            below = drawn[:, noise] @ factors[n, noise]
            drawn[:, n] = square * freedom / random.chisquare(freedom, DRAWS) - below
            noise.append(n)
    return drawn


def _draw_around(value: float, error: float, freedom: float, random: np.random.Generator) -> Array:
    students = random.standard_t(freedom, DRAWS)
    if value > 0 and error < STEADY * value:
        return value * np.exp(error / value * students)
    return value + error * students


def _errors(cells: Cells, names: list[str]) -> tuple[Array, Array]:
    """Returns standard errors and degrees of freedom by the two-way jackknife."""
    (models, by_model), (items, by_item), (both, _) = (
        _jackknife(cells, names, parts) for parts in _parts(cells)
    )
    total = np.maximum(models + items - both, (models + items) / 2)
    # The estimates without a model are skewed, so they count half (see `make coverage`).
    parts = 2 * models**2 / by_model + items**2 / by_item
    return np.sqrt(total), np.maximum((models + items) ** 2 / np.maximum(parts, TINY), 1.0)


def _parts(cells: Cells) -> Iterator[NDArray[np.int64]]:
    """Yields numbers of blocks of models, of items, and of model-item cells."""
    random, shape = np.random.default_rng(SEED), cells[0].shape[1:]
    first, second = (random.permutation(size) for size in shape)
    yield (first % min(shape[0], BLOCKS))[:, None]
    yield second % min(shape[1], BLOCKS)
    yield (first[:, None] + second) % min(max(shape), BLOCKS)


def _jackknife(cells: Cells, names: list[str], parts: NDArray[np.int64]) -> tuple[Array, int]:
    """Returns the variances of estimates that leave a block out, and degrees of freedom."""
    blocks = int(parts.max()) + 1
    estimates = [
        estimate_components(tuple(values * (parts != block) for values in cells), names)
        for block in range(blocks)
    ]
    return np.var(estimates, axis=0) * (blocks - 1), blocks - 1


def _component(name: str, fit: _Fit | None, cells: Cells) -> Component:
    if fit is None or name not in fit.names:
        reason = _why_missing(name, cells)
        return Component(name=name, variance=Figure(reason=reason), share=None)
    values = fit.values[:, fit.names.index(name)]
    figure = fit.figure(values)
    if name == RESIDUAL and cells[0].shape[1] < RESIDUAL_MODELS:
        reason = f"an interval needs {RESIDUAL_MODELS} models"
        figure = Figure(value=figure.value, reason=reason)
    return Component(name=name, variance=figure, share=float(values[0] / fit.values[0].sum()))


def _signal_to_noise(fit: _Fit | None, cells: Cells) -> Figure:
    if fit is None:
        return Figure(reason=_why_missing("models", cells))
    if not fit.predict((1, 1, 1))[0]:
        return Figure(reason="the scores show no noise")
    squared = fit.signal((1, 1, 1))
    return fit.figure(np.sign(squared) * np.sqrt(np.abs(squared)))


def _designs(fit: _Fit) -> Iterator[Design]:
    doubled = {f"twice the {source}": DESIGNS[source] for source in fit.sources}
    for name, more in {"as it is": (1, 1, 1), **doubled}.items():
        ratio = fit.signal(more)
        yield Design(
            name=name,
            standard_error=fit.figure(np.sqrt(np.maximum(fit.predict(more, alone=True), 0.0))),
            reliability=fit.figure(ratio / (1 + np.abs(ratio))),
        )
