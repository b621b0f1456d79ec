"""The four metrics of a benchmark with their intervals, from what was read of its score tree."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.errors import DataError
from raylab.quality import metrics
from raylab.quality.trees import ScoreTree, Skipped, UnitScores

METRICS = ("difficulty", "separability", "consistency", "novelty")
QUANTILES = (0.025, 0.975)
LEAST_REPLICATES = 0.5
"""Share of the replicates that must draw a file of every unit for intervals to be given."""
LISTED_FILES = 1000
NAMED_FILES = 3

Array = NDArray[np.float64]
Quality = dict[str, Any]


@dataclass(frozen=True)
class TreeScores:
    """A score tree that was read.

    Attributes:
        tree: What the root holds.
        units: What its units came to, in any order.
    """

    tree: ScoreTree
    units: Sequence[UnitScores]


@dataclass(frozen=True)
class _Table:
    """Mean accuracies of a tree.

    Attributes:
        models: Names, in order.
        generations: Names, in order; one empty name without generations.
        means: (models, generations).
        weighted: (replicates, models, generations) sums of weight times accuracy.
        weights: (replicates, models, generations) sums of the weights.
    """

    models: tuple[str, ...]
    generations: tuple[str, ...]
    means: Array
    weighted: Array
    weights: Array


def measure_groups(
    trees: Sequence[ScoreTree], config: QualityConfig, *groups: Sequence[UnitScores]
) -> Quality:
    """`measure` for units that were read in groups, those of the benchmark's tree first.

    Raises:
        DataError: As `measure`.
    """
    units = [scores for group in groups for scores in group]
    read = [
        TreeScores(tree, [scores for scores in units if scores.unit.tree == number])
        for number, tree in enumerate(trees)
    ]
    return measure(read[0], read[1:], config)


def measure(current: TreeScores, priors: Sequence[TreeScores], config: QualityConfig) -> Quality:
    """The content of `quality.json`.

    A model's accuracy is the mean over its generations of the mean over files. Intervals are
    of 95 %, over the bootstrap replicates that draw a file of every unit.

    Args:
        current: The benchmark.
        priors: Earlier benchmarks, which novelty is against.
        config: What to do with missing generations and unusable files.

    Returns:
        The four metrics, null where not computed; `intervals` [low, high] or null of each;
        `reasons` of what is null; `models`, `generations` and `priors` with their accuracies in
        [0, 1]; `layout` and `layout_reason`; `files` counted as read, cached and skipped;
        `skipped` files with their reasons, of which at most 1000; `warnings`.

    Raises:
        DataError: A model has no usable file, models or generations differ, or files are unusable
            with `strict`.
    """
    everything = [current, *priors]
    if config.strict:
        _refuse_skipped(everything)
    tables = [_table(scores, config) for scores in everything]
    table = tables[0]
    for scores, other in zip(priors, tables[1:], strict=True):
        if difference := metrics.model_difference(table.models, other.models):
            raise DataError(
                f"prior {scores.tree.location} has other models than {current.tree.location}: "
                f"{difference}; novelty needs the same models everywhere: add their scores, or "
                "take the prior out of quality_eval_cfg.prior_datasets"
            )
    reasons = _reasons_without(table, tables[1:])
    values = _metrics_of([t.means for t in tables], reasons)
    intervals, reason = _intervals(everything, tables, reasons, config)
    return {
        **{name: None if name in reasons else float(values[name]) for name in METRICS},
        "intervals": intervals,
        "reasons": reasons | ({"intervals": reason} if reason else {}),
        "models": _accuracies(table),
        "generations": _generations(current.tree.layout, table),
        "priors": {
            scores.tree.location: _accuracies(other)
            for scores, other in zip(priors, tables[1:], strict=True)
        },
        "layout": current.tree.layout.value,
        "layout_reason": current.tree.reason,
        "files": {
            name: sum(getattr(unit, name) for scores in everything for unit in scores.units)
            for name in ("read", "cached", "skipped")
        },
        "skipped": [
            {"path": file.path, "reason": file.reason}
            for file in list(_skipped(everything))[:LISTED_FILES]
        ],
        "warnings": list(_warnings(everything, tables)),
    }


def log_lines(quality: Mapping[str, Any]) -> Iterator[str]:
    """The lines that users search the log of the job for."""
    for model, accuracy in quality["models"].items():
        generations = quality["generations"].get(model)
        over = f" over {len(generations)} generations" if generations else ""
        yield f"Model '{model}' mean accuracy{over}: {accuracy:.4f}"
    for name in METRICS:
        value = quality[name]
        shown = f"not computed, {quality['reasons'][name]}" if value is None else f"{value:.4f}"
        yield f"Benchmark {name}: {shown}"


def _table(scores: TreeScores, config: QualityConfig) -> _Table:
    location = scores.tree.location
    usable: dict[str, dict[str, UnitScores]] = {}
    for unit in sorted(scores.units, key=lambda unit: (unit.unit.model, unit.unit.generation)):
        found = usable.setdefault(unit.unit.model, {})
        if unit.count:
            found[unit.unit.generation] = unit
    for model, found in usable.items():
        if not found:
            reasons = [f for unit in scores.units if unit.unit.model == model for f in unit.listed]
            raise DataError(
                f"model {model} of {location} has no usable score file{_named(reasons)}; add its "
                "scores or remove the directory"
            )
    models = tuple(usable)
    generations = _common_generations(usable, location, config)
    rows = [[usable[m][g] for g in generations] for m in models]
    return _Table(
        models,
        generations,
        np.array([[unit.total / unit.count for unit in row] for row in rows]),
        _replicates_first([[unit.weighted for unit in row] for row in rows]),
        _replicates_first([[unit.weights for unit in row] for row in rows]),
    )


def _replicates_first(rows: Sequence[Sequence[Array]]) -> Array:
    """(replicates, models, generations) of (replicates,) by model and generation."""
    return np.ascontiguousarray(np.moveaxis(np.array(rows), -1, 0))


def _common_generations(
    usable: Mapping[str, Mapping[str, UnitScores]], location: str, config: QualityConfig
) -> tuple[str, ...]:
    every = {generation for found in usable.values() for generation in found}
    common = tuple(sorted(g for g in every if all(g in found for found in usable.values())))
    if len(common) == len(every):
        return common
    lacking = {
        model: sorted(every - found.keys())
        for model, found in usable.items()
        if every - found.keys()
    }
    named = "; ".join(
        f"model {model} has {len(usable[model])} of {len(every)}, without usable scores in "
        f"{_first(missing)}"
        for model, missing in list(lacking.items())[:NAMED_FILES]
    )
    more = f"; and {len(lacking) - NAMED_FILES} models more" if len(lacking) > NAMED_FILES else ""
    problem = f"the models of {location} have different generations: {named}{more}"
    if config.on_missing_generation == "error":
        raise DataError(
            f"{problem}. Add the scores, set on_missing_generation=drop to use the generations "
            "that every model has, or layout=flat if the directories are no generations"
        )
    if not common:
        raise DataError(f"{problem}. No generation is left that every model has: layout=flat?")
    return common


def _reasons_without(table: _Table, priors: Sequence[_Table]) -> dict[str, str]:
    """Why consistency or novelty is not computed."""
    reasons: dict[str, str] = {}
    if table.generations == ("",):
        reasons["consistency"] = "the tree has no generations"
    elif len(table.generations) < 2:
        only = ", ".join(table.generations)
        reasons["consistency"] = f"{only} is the only generation, it needs two"
    if not priors:
        reasons["novelty"] = "no prior_datasets are configured"
    return reasons


def _metrics_of(means: Sequence[Array], without: Mapping[str, str]) -> dict[str, Array]:
    """Metrics, with any leading axes, of (..., models, generations) means of each tree."""
    accuracies = [mean.mean(axis=-1) for mean in means]
    values = {
        "difficulty": metrics.difficulty(accuracies[0]),
        "separability": metrics.separability(accuracies[0]),
    }
    if "consistency" not in without:
        values["consistency"] = metrics.consistency(means[0])
    if "novelty" not in without:
        values["novelty"] = metrics.novelty(accuracies[0], np.stack(accuracies[1:], axis=-1))
    return values


def _intervals(
    everything: Sequence[TreeScores],
    tables: Sequence[_Table],
    without: Mapping[str, str],
    config: QualityConfig,
) -> tuple[dict[str, list[float] | None], str]:
    """Intervals of the metrics, or why there are none."""
    none: dict[str, list[float] | None] = dict.fromkeys(METRICS)
    if not config.bootstrap:
        return none, "bootstrap=0"
    for unit in (unit for scores in everything for unit in scores.units):
        if unit.count == 1:
            return none, f"{unit.unit.path} has one usable file, intervals need two"
    kept = np.logical_and.reduce([(t.weights > 0).all(axis=(1, 2)) for t in tables])
    if kept.sum() < LEAST_REPLICATES * config.bootstrap:
        return none, (
            f"only {kept.sum()} of {config.bootstrap} replicates draw a file of every directory: "
            "the directories hold too few files"
        )
    means = [t.weighted[kept] / t.weights[kept] for t in tables]
    values = _metrics_of(means, without)
    actual = _metrics_of([t.means for t in tables], without)
    found = {name: _interval(float(actual[name]), drawn) for name, drawn in values.items()}
    return none | found, ""


def _interval(value: float, drawn: Array) -> list[float]:
    """Percentiles about the median, moved to the value and kept in [0, 1].

    The best and the spread of resampled accuracies lie above those measured, so plain percentiles
    could leave the value itself out.
    """
    return np.clip(value + np.quantile(drawn, QUANTILES) - np.median(drawn), 0.0, 1.0).tolist()


def _accuracies(table: _Table) -> dict[str, float]:
    return dict(zip(table.models, table.means.mean(axis=-1).tolist(), strict=True))


def _generations(layout: Layout, table: _Table) -> dict[str, dict[str, float]]:
    if layout is Layout.FLAT:
        return {}
    return {
        model: dict(zip(table.generations, row, strict=True))
        for model, row in zip(table.models, table.means.tolist(), strict=True)
    }


def _refuse_skipped(everything: Sequence[TreeScores]) -> None:
    count = sum(unit.skipped for scores in everything for unit in scores.units)
    if count:
        raise DataError(
            f"{count} score files cannot be used{_named(list(_skipped(everything)))}; mend or "
            "remove them, or set strict=false to leave them out"
        )


def _skipped(everything: Iterable[TreeScores]) -> Iterator[Skipped]:
    for scores in everything:
        for unit in sorted(scores.units, key=lambda unit: unit.unit.path):
            yield from unit.listed


def _named(files: Sequence[Skipped]) -> str:
    lines = [f"\n  {file.path}: {file.reason}" for file in files[:NAMED_FILES]]
    return f", for example{''.join(lines)}\n" if lines else ""


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED_FILES]) + (", ..." if len(names) > NAMED_FILES else "")


def _warnings(everything: Sequence[TreeScores], tables: Sequence[_Table]) -> Iterator[str]:
    for scores, table in zip(everything, tables, strict=True):
        location = scores.tree.location
        if scores.tree.beside:
            yield (
                f"{scores.tree.beside} score files of {location} lie directly under a model beside "
                "its generations and are not counted; layout=flat counts them"
            )
        dropped = {unit.unit.generation for unit in scores.units} - set(table.generations)
        if dropped:
            yield (
                f"generations of {location} left out, because not every model has usable scores in "
                f"them: {_first(sorted(dropped))}"
            )
    if len(tables) > 1 and (
        warning := metrics.exact_fit_warning(len(tables[0].models), len(tables) - 1)
    ):
        yield warning
