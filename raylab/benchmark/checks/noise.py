"""Sources of noise in a benchmark: variance components, a D-study, signal-to-noise.

A score is the mean of its stratum plus random effects of the model, the cluster (if any is
declared), the item, model x cluster, model x item, the generation, model x generation, and a
residual for epochs (and model x item x generation). Their variances are estimated by Henderson's
method I (Biometrics 9, 1953), which sets sums of squares equal to their expectations, whatever
cells are missing; items vary within the fixed strata. Weights are ignored.

Intervals come from draws (generalized confidence intervals, Weerahandi 1993; Burdick, Borror and
Montgomery 2005, chapter 2). The mean squares of models, generations and model x generation, which
have few degrees of freedom, are drawn from their chi-squared distributions. The other components,
whose effects are far from normal if scores are 0 or 1, are drawn from Student's distribution around
the estimate, with the error of a two-way jackknife over models and clusters or items (Owen, Ann.
Appl. Stat. 1, 2007; blocks of cells stand for what both share, as in Cameron, Gelbach and Miller
2011).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raylab.benchmark.checks.sampling import SamplingDesign, is_clustered
from raylab.benchmark.responses import Responses
from raylab.core.runs.records import Figure, Part
from raylab.core.stats import LEVEL, Array

Unit = tuple[bool, bool, int]
"""Generations and models differ or not, and the items: `ALL`, or each stratum, cluster, item."""
ALL, STRATUM, CLUSTER, ITEM = range(4)
MEAN: Unit = (False, False, ALL)
EFFECTS: dict[str, Unit] = {
    "models": (False, True, ALL),
    "clusters": (False, False, CLUSTER),
    "items": (False, False, ITEM),
    "model x cluster": (False, True, CLUSTER),
    "model x item": (False, True, ITEM),
    "generations": (True, False, ALL),
    "model x generation": (True, True, ALL),
}
RESIDUAL = "epochs"
OF_ITEMS = ("model x item", "model x cluster", "items", "clusters")
"""The components that more items reduce."""
DESIGNS = {"items": (2, 1, 1), "generations": (1, 2, 1), "epochs": (1, 1, 2)}
"""Multiples of the numbers of items, generations and epochs, by what is doubled."""
DRAWS = 10_000
MAX_BLOCKS = 10
"""Most blocks of the jackknife."""
MIN_MODELS = 3
FEW_MODELS = f"an interval needs {MIN_MODELS} models"
RESIDUAL_MODELS = 8
"""The same for the residual, which depends on the choice of models."""
SINGULAR = 1e-9
STEADY = 0.35
"""Relative error below which a component is drawn on the logarithmic scale."""
TINY = np.finfo(float).tiny
SEED = 20_260


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
    clusters: int | None
    """Number of clusters of items; None if none is declared."""
    sources: tuple[str, ...]
    """The sources of noise in a model's mean: items, generations, epochs."""
    designs: tuple[Design, ...]
    """The present one, then those with twice the number of each source."""
    signal_to_noise: Figure
    """Standard deviation of the models over that of the noise in a model's mean; its square is the
    signal-to-noise ratio of Brennan (Generalizability Theory, 2001)."""


@dataclass(frozen=True)
class _Cells:
    """Scores by generation, model and item; items are in the order of their strata and clusters.

    Attributes:
        counts: (generations, models, items) numbers of scores.
        sums: Their sums.
        squares: The sums of their squares.
        starts: The first item of each stratum and so on, by the last part of a `Unit`.
    """

    counts: Array
    sums: Array
    squares: Array
    starts: tuple[NDArray[np.int64], ...]

    def total(self, values: Array, unit: Unit) -> Array:
        """Returns sums by the levels of a unit; axes that it has not have length 1."""
        gone = tuple(axis for axis in (0, 1) if not unit[axis])
        kept = values.sum(axis=gone, keepdims=True)
        return kept if unit[2] == ITEM else np.add.reduceat(kept, self.starts[unit[2]], axis=2)


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
            more: Multiples of the numbers of items (or clusters), generations and epochs.
            alone: True for the mean itself, False for its difference from those of other models.
        """
        items, generations, epochs = more
        times = dict.fromkeys(OF_ITEMS, float(items * (generations if self.nested else 1)))
        times |= {"models": np.inf, RESIDUAL: items * generations * epochs}
        times |= {"generations": generations, "model x generation": generations}
        factors = self.alone if alone else self.beside
        return self.values @ (factors / np.array([times[name] for name in self.names]))

    def signal(self, more: tuple[int, int, int]) -> Array:
        """Returns the variance of the models over that of the noise; may be negative."""
        noise = self.predict(more)
        return self.values[:, self.names.index("models")] / np.maximum(noise, noise[0] / 1e6 + TINY)

    @property
    def is_noisy(self) -> bool:
        """True if there is noise that is no rounding error."""
        return self.predict((1, 1, 1))[0] > SINGULAR * self.values[0].sum()

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
    clustered, cells = is_clustered(responses.matrix), _cells(responses)
    names = _estimable(cells)
    fit = _fit(cells, names) if names else None
    shown = [name for name in EFFECTS if clustered or "cluster" not in name]
    return Noise(
        components=tuple(_component(name, fit, cells) for name in (*shown, RESIDUAL)),
        clusters=len(cells.starts[CLUSTER]) if clustered else None,
        sources=fit.sources if fit else (),
        designs=tuple(_designs(fit)) if fit and fit.is_noisy else (),
        signal_to_noise=_signal_to_noise(fit, cells),
    )


def _cells(responses: Responses) -> _Cells:
    table, matrix = responses.table, responses.matrix
    design = SamplingDesign(matrix)
    places = np.argsort(design.order)
    generation, model, item = (
        np.unique(table[name].cat.codes, return_inverse=True)[1]
        for name in ("generation", "model", "item")
    )
    shape = int(generation.max()) + 1, len(matrix.models), len(matrix.items)
    place = np.ravel_multi_index((generation, model, places[item]), shape)
    score = table["score"].to_numpy(float)
    counts, sums, squares = (
        np.bincount(place, weights, int(np.prod(shape))).reshape(shape).astype(float)
        for weights in (None, score, score**2)
    )
    starts = np.array([0]), design.strata, design.cells, np.arange(shape[2])
    return _Cells(counts, sums, squares, starts)


def _estimable(cells: _Cells) -> list[str]:
    """Returns the components that the cells can separate, without the residual."""
    total = cells.counts.sum()

    def levels(unit: Unit) -> int:
        return int((cells.total(cells.counts, unit) > 0).sum())

    used = [name for name, unit in EFFECTS.items() if levels(_base(unit)) < levels(unit) < total]
    # Without clusters, they are the items.
    if levels(EFFECTS["clusters"]) == levels(EFFECTS["items"]):
        used = [name for name in used if "cluster" not in name]
    if "models" not in used or _constant(cells):
        return []
    for name in ("model x generation", "generations", *reversed(OF_ITEMS)):
        if name in used and not _regular(cells, used):
            used.remove(name)
    return used if _regular(cells, used) else []


def _constant(cells: _Cells) -> bool:
    counts, sums, squares = (float(v.sum()) for v in (cells.counts, cells.sums, cells.squares))
    return squares / counts - (sums / counts) ** 2 < SINGULAR


def _regular(cells: _Cells, names: list[str]) -> bool:
    matrix = _equations(cells, names)[0]
    scaled = matrix / np.sqrt((matrix**2).sum(axis=1, keepdims=True))
    return bool(np.linalg.svd(scaled, compute_uv=False)[-1] > SINGULAR)


def _why_missing(name: str, cells: _Cells) -> str:
    if _constant(cells):
        return "all scores are equal"
    generation, _, items = EFFECTS.get(name, MEAN)
    needs = generation, True, items > ALL
    for number, level, needed in zip(
        cells.counts.shape, ("generation", "model", "item"), needs, strict=True
    ):
        if needed and number < 2:
            return f"there is one {level}"
    if name == "model x item":
        return "no model answers an item twice, so it is part of epochs"
    return "the scores cannot separate it from other sources"


def _base(unit: Unit) -> Unit:
    """Returns the fixed unit whose sum of squares is subtracted from that of another."""
    return (False, unit[1], STRATUM) if unit[2] > STRATUM else MEAN


def _estimate(cells: _Cells, names: list[str]) -> Array:
    """Returns the variances of effects and of the residual, which may be negative."""
    return np.asarray(np.linalg.lstsq(*_equations(cells, names), rcond=None)[0], float)


def _equations(cells: _Cells, names: list[str]) -> tuple[Array, Array]:
    """Returns the coefficients of the variances in sums of squares, and these sums.

    The sums are of the means of each effect's levels, and of all scores, around their base.
    """
    counts = {unit: cells.total(cells.counts, unit) for unit in EFFECTS.values()}
    whole: Unit = (True, True, ITEM)
    squares = dict[Unit, tuple[Array, float]]()

    def sum_squares(unit: Unit) -> tuple[Array, float]:
        if unit not in squares:
            own = counts.setdefault(unit, cells.total(cells.counts, unit))
            row = list[float]()
            for effect in (EFFECTS[name] for name in names):
                joint: Unit = (unit[0] or effect[0], unit[1] or effect[1], max(unit[2], effect[2]))
                both = counts.setdefault(joint, cells.total(cells.counts, joint))
                # The level of the unit that each joint level is in.
                at = np.searchsorted(cells.starts[unit[2]], cells.starts[joint[2]], "right") - 1
                row.append(float(_ratio(both**2, own[:, :, at]).sum()))
            total = float(_ratio(cells.total(cells.sums, unit) ** 2, own).sum())
            squares[unit] = np.array([*row, float((own > 0).sum())]), total
        return squares[unit]

    rows, observed = list[Array](), list[float]()
    for unit in (EFFECTS[name] for name in names):
        (own, total), (below, less) = sum_squares(unit), sum_squares(_base(unit))
        rows.append(own - below)
        observed.append(total - less)
    below, less = sum_squares(_base(whole))
    rows.append(np.full(len(names) + 1, float(cells.counts.sum())) - below)
    observed.append(float(cells.squares.sum()) - less)
    return np.array(rows), np.array(observed)


def _ratio(values: Array, by: Array) -> Array:
    """Returns quotients, 0 where the divisor is 0."""
    return values / np.where(by > 0, by, np.inf)


def _fit(cells: _Cells, names: list[str]) -> _Fit:
    counts, estimates = cells.counts, _estimate(cells, names)
    squares, models = _equations(cells, names)[0][:-1], names.index("models")
    if "model x generation" in names:
        both, generations = names.index("model x generation"), names.index("generations")
        squares[both] -= squares[models] + squares[generations]
    factors = squares / np.diag(squares)[:, None]
    draws = [_draw(cells, names, estimates, factors)] if counts.shape[1] >= MIN_MODELS else []
    return _Fit(
        names=[*names, RESIDUAL],
        values=np.vstack([np.maximum(estimates, 0.0), *draws]),
        alone=np.array([*_shares(cells, names), counts.shape[1] / counts.sum()]),
        beside=factors[models],
        nested=bool(((counts.sum(axis=1) > 0).sum(axis=0) <= 1).all()),
        sources=(
            "items",
            *(["generations"] if "model x generation" in names else []),
            *(["epochs"] if (counts > 1).any() else []),
        ),
    )


def _shares(cells: _Cells, names: list[str]) -> Iterator[float]:
    """Yields the share of each component's variance that enters a model's mean."""
    own = cells.total(cells.counts, EFFECTS["models"])
    for generation, _, level in (EFFECTS[name] for name in names):
        joint = cells.total(cells.counts, (generation, True, level))
        yield float(_ratio(joint**2, own).sum() / cells.counts.sum())


def _draw(cells: _Cells, names: list[str], estimates: Array, factors: Array) -> Array:
    """Returns (draws, components) variances, which may be negative.

    Args:
        cells: The scores.
        names: The components before the residual.
        estimates: (components,) variances.
        factors: Contributions of each component to the mean square of each effect.
    """
    random, (generations, models, _) = np.random.default_rng(SEED), cells.counts.shape
    drawn, errors, freedoms = np.zeros((DRAWS, len(estimates))), *_errors(cells, names)
    places = {name: place for place, name in enumerate([*names, RESIDUAL])}
    noise = [places[name] for name in (RESIDUAL, *OF_ITEMS) if name in places]
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


def _errors(cells: _Cells, names: list[str]) -> tuple[Array, Array]:
    """Returns standard errors and degrees of freedom by the two-way jackknife."""
    random, (_, models, items) = np.random.default_rng(SEED), cells.counts.shape
    clusters = len(cells.starts[CLUSTER])
    sizes = np.diff(cells.starts[CLUSTER], append=items)
    first, second = random.permutation(models), np.repeat(random.permutation(clusters), sizes)
    # Blocks of models, of clusters, and of what both share.
    (of_models, by_model), (of_items, by_item), (both, _) = (
        _jackknife(cells, names, blocks)
        for blocks in (
            (first % min(models, MAX_BLOCKS))[:, None],
            second % min(clusters, MAX_BLOCKS),
            (first[:, None] + second) % min(max(models, clusters), MAX_BLOCKS),
        )
    )
    total = np.maximum(of_models + of_items - both, (of_models + of_items) / 2)
    # The estimates without a model are skewed, so they count half (see `make coverage`).
    parts = 2 * of_models**2 / by_model + of_items**2 / by_item
    return np.sqrt(total), np.maximum((of_models + of_items) ** 2 / np.maximum(parts, TINY), 1.0)


def _jackknife(cells: _Cells, names: list[str], parts: NDArray[np.int64]) -> tuple[Array, int]:
    """Returns the variances of estimates that leave a block out, and degrees of freedom."""
    blocks = int(parts.max()) + 1
    estimates = list[Array]()
    for block in range(blocks):
        kept = parts != block
        left = replace(
            cells,
            counts=cells.counts * kept,
            sums=cells.sums * kept,
            squares=cells.squares * kept,
        )
        estimates.append(_estimate(left, names))
    return np.var(estimates, axis=0) * (blocks - 1), blocks - 1


def _component(name: str, fit: _Fit | None, cells: _Cells) -> Component:
    if fit is None or name not in fit.names:
        reason = _why_missing(name, cells)
        return Component(name=name, variance=Figure(reason=reason), share=None)
    values = fit.values[:, fit.names.index(name)]
    figure = fit.figure(values)
    if name == RESIDUAL and cells.counts.shape[1] < RESIDUAL_MODELS:
        reason = f"an interval needs {RESIDUAL_MODELS} models"
        figure = Figure(value=figure.value, reason=reason)
    return Component(name=name, variance=figure, share=float(values[0] / fit.values[0].sum()))


def _signal_to_noise(fit: _Fit | None, cells: _Cells) -> Figure:
    if fit is None:
        return Figure(reason=_why_missing("models", cells))
    if not fit.is_noisy:
        return Figure(reason="the models answer all items alike, so the scores show no noise")
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
