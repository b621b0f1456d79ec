"""The metrics of a benchmark with their intervals, from the sums of its score tree."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.errors import DataError
from raylab.quality.intervals import deviations
from raylab.quality.metrics import (
    LEAST_TASKS,
    METRICS,
    MeanAccuracies,
    QualityMetric,
    model_difference,
)
from raylab.quality.reading import UnitScores
from raylab.quality.record import FileCounts, QualityFigure, SkippedFile, TreeQuality
from raylab.quality.trees import ScoreTree

LISTED_FILES = 1000
NAMED_FILES = 3

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TreeScores:
    """A score tree and its sums.

    Attributes:
        tree: The directories.
        units: Sums of its units, in any order.
    """

    tree: ScoreTree
    units: Sequence[UnitScores]


@dataclass(frozen=True)
class _Table:
    """Mean accuracies of a tree.

    Attributes:
        models: Names, in order.
        generations: Names, in order; one empty name without generations.
        means: (models, generations) mean accuracies.
        counts: (models, generations) numbers of files.
        weighted: (replicates, models, generations) sums of weight times accuracy.
        weights: (replicates, models, generations) sums of the weights.
    """

    models: tuple[str, ...]
    generations: tuple[str, ...]
    means: Array
    counts: Array
    weighted: Array
    weights: Array


def measure_groups(
    trees: Sequence[ScoreTree], config: QualityConfig, *groups: Sequence[UnitScores]
) -> TreeQuality:
    """Calls `measure` for units that were read in groups, those of the benchmark first.

    Raises:
        DataError: `measure` raises it.
    """
    units = [scores for group in groups for scores in group]
    read = [
        TreeScores(tree, [scores for scores in units if scores.unit.tree == number])
        for number, tree in enumerate(trees)
    ]
    return measure(read[0], read[1:], config)


def measure(
    current: TreeScores, priors: Sequence[TreeScores], config: QualityConfig
) -> TreeQuality:
    """Computes every metric of a benchmark with its interval.

    The accuracy of a model is the mean over its generations of the mean over files. Intervals are
    those of `raylab.quality.intervals`.

    Args:
        current: The benchmark.
        priors: Earlier benchmarks, which novelty compares with.
        config: Handling of missing generations and unusable files.

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
        if difference := model_difference(table.models, other.models):
            raise DataError(
                f"prior {scores.tree.location} has other models than {current.tree.location}: "
                f"{difference}; novelty needs the same models everywhere: add their scores, or "
                "take the prior out of quality_eval_cfg.prior_datasets"
            )
    pooled = config.quality_eval_cfg.prior_means == "files"
    accuracies = MeanAccuracies(
        table.means,
        [_model_means(other, pooled) for other in tables[1:]],
        table.generations,
        int(table.counts.min()),
    )
    noise = deviations(table.weighted, table.weights, table.counts)
    return TreeQuality(
        figures={name: figure_of(metric, accuracies, noise) for name, metric in METRICS.items()},
        models=_by_model(table),
        file_counts=dict(
            zip(table.models, table.counts.sum(axis=-1).astype(int).tolist(), strict=True)
        ),
        generations=_by_generation(current.tree.layout, table),
        priors={
            scores.tree.location: _by_model(other, pooled)
            for scores, other in zip(priors, tables[1:], strict=True)
        },
        layout=current.tree.layout,
        layout_reason=current.tree.reason,
        files=count_files(unit for scores in everything for unit in scores.units),
        skipped=tuple(_skipped(everything))[:LISTED_FILES],
        warnings=(*_warnings(everything, tables), *_warnings_of_metrics(accuracies)),
    )


def count_files(units: Iterable[UnitScores]) -> FileCounts:
    """Adds up the files of units by outcome."""
    units = list(units)
    return FileCounts(
        read=sum(unit.read for unit in units),
        cached=sum(unit.cached for unit in units),
        skipped=sum(unit.skipped for unit in units),
    )


def _table(scores: TreeScores, config: QualityConfig) -> _Table:
    location = scores.tree.location
    usable: dict[str, dict[str, UnitScores]] = {}
    for unit in sorted(scores.units, key=lambda unit: (unit.unit.model, unit.unit.generation)):
        found = usable.setdefault(unit.unit.model, {})
        if unit.count:
            found[unit.unit.generation] = unit
    for model, found in usable.items():
        if not found:
            raise _unusable(model, [unit for unit in scores.units if unit.unit.model == model])
    models = tuple(usable)
    generations = _common_generations(usable, location, config)
    rows = [[usable[m][g] for g in generations] for m in models]
    return _Table(
        models,
        generations,
        np.array([[unit.total / unit.count for unit in row] for row in rows]),
        np.array([[unit.count for unit in row] for row in rows], float),
        _replicates_first([[unit.weighted for unit in row] for row in rows]),
        _replicates_first([[unit.weights for unit in row] for row in rows]),
    )


def _unusable(model: str, units: Sequence[UnitScores]) -> DataError:
    """Returns the error for a model without a usable file: what there is, and why not used."""
    reasons = sum((unit.reasons for unit in units), Counter[str]())
    counts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    hidden = sum(unit.hidden for unit in units)
    return DataError(
        f"model {model} of {units[0].unit.location} has no usable score file: "
        f"{reasons.total()} left out{counts and f' ({counts})'}, {hidden} hidden by a name that "
        f"starts with a dot{_named([file for unit in units for file in unit.listed])}; add its "
        "scores or remove the directory"
    )


def _replicates_first(rows: Sequence[Sequence[Array]]) -> Array:
    """Stacks (replicates,) arrays by model and generation to (replicates, models, generations)."""
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


def figure_of(metric: QualityMetric, accuracies: MeanAccuracies, noise: Array) -> QualityFigure:
    """Computes a figure with its interval.

    Args:
        metric: The metric.
        accuracies: Accuracies of one benchmark, without leading axes.
        noise: (replicates, models, generations) deviations of the replicates from them.
    """
    if reason := metric.why_not(accuracies):
        return QualityFigure(value=None, interval=None, reason=reason)
    value = float(metric.compute(accuracies))
    missing = _why_no_interval(metric, accuracies, len(noise))
    if missing or metric.estimate is None:
        return QualityFigure(value=value, interval=None, reason=None, no_interval=missing)
    estimated = metric.estimate(accuracies, noise)
    low, high = (min(max(end, 0.0), 1.0) for end in estimated.interval)
    return QualityFigure(
        value=value, corrected=estimated.corrected, interval=(low, high), reason=None
    )


def _why_no_interval(metric: QualityMetric, accuracies: MeanAccuracies, replicates: int) -> str:
    """Returns the reason why a figure has no interval; empty if it has one."""
    if metric.estimate is not None and not replicates:
        return "bootstrap=0"
    if metric.estimate is not None and accuracies.tasks < LEAST_TASKS:
        return (
            f"a directory has {accuracies.tasks} usable files: intervals need {LEAST_TASKS} or more"
        )
    return metric.why_no_interval(accuracies)


def _model_means(table: _Table, pooled: bool) -> Array:
    """Returns (models,) means over all files, or over the generations' means."""
    return np.average(table.means, axis=-1, weights=table.counts if pooled else None)


def _by_model(table: _Table, pooled: bool = False) -> dict[str, float]:
    return dict(zip(table.models, _model_means(table, pooled).tolist(), strict=True))


def _by_generation(layout: Layout, table: _Table) -> dict[str, dict[str, float]]:
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
            f"{count} score files cannot be used{_named(list(_skipped(everything)))}; fix or "
            "remove them, or set strict=false to leave them out"
        )


def _skipped(everything: Iterable[TreeScores]) -> Iterator[SkippedFile]:
    for scores in everything:
        for unit in sorted(scores.units, key=lambda unit: unit.unit.path):
            yield from unit.listed


def _named(files: Sequence[SkippedFile]) -> str:
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


def _warnings_of_metrics(accuracies: MeanAccuracies) -> Iterator[str]:
    for metric in METRICS.values():
        if not metric.why_not(accuracies) and (warning := metric.warning(accuracies)):
            yield warning
