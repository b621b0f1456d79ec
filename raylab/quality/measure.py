"""The metrics of a benchmark with their intervals, from the sums of its score tree."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.errors import DataError
from raylab.quality.intervals import Estimated, deviations
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
OF_TEXTS = ("mdm", "entropy", "pad", "mmd", "kl_divergence")
"""Figures of Vector's quality script that it computes from embeddings of the tasks' texts."""
NEEDS_TEXTS = "raylab has no such figure: it is one of the tasks' texts, and scores are read alone"
NO_METRIC = f"raylab has no such figure, only {', '.join(METRICS)}"
NOT_WANTED = "metrics_to_compute leaves it out"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Table:
    """Mean accuracies of a tree.

    Attributes:
        tree: The directories.
        models: Names, in order.
        generations: Names, in order; one empty name without generations.
        means: (models, generations) mean accuracies.
        counts: (models, generations) numbers of files.
        weighted: (replicates, models, generations) sums of weight times accuracy.
        weights: (replicates, models, generations) sums of the weights.
    """

    tree: ScoreTree
    models: tuple[str, ...]
    generations: tuple[str, ...]
    means: Array
    counts: Array
    weighted: Array
    weights: Array


def measure(
    trees: Sequence[ScoreTree], config: QualityConfig, *groups: Sequence[UnitScores]
) -> TreeQuality:
    """Computes every metric of a benchmark with its interval.

    The accuracy of a model is the mean over its generations of the mean over files. Intervals are
    those of `raylab.quality.intervals`.

    Args:
        trees: The tree of the benchmark, then those of earlier ones, which novelty compares with.
        config: Handling of missing generations and unusable files.
        *groups: The sums of all units of the trees, in any order and grouping.

    Raises:
        DataError: A model has no usable file, models or generations differ, or files are unusable
            with `strict`.
    """
    units = sorted((unit for group in groups for unit in group), key=_order)
    if config.strict:
        _refuse_skipped(units)
    tables = [
        _table(tree, [scores for scores in units if scores.unit.tree == number], config)
        for number, tree in enumerate(trees)
    ]
    table, *priors = tables
    for prior in priors:
        _refuse_other_models(table, prior)
    means = config.quality_eval_cfg.prior_means
    pooled = means == "files" or (means is None and bool(config.reference_datasets))
    accuracies = MeanAccuracies(
        table.means,
        [_model_means(prior, pooled) for prior in priors],
        table.generations,
        int(table.counts.min()),
    )
    noise = deviations(table.weighted, table.weights, table.counts)
    return TreeQuality(
        figures=dict(_figures(config, accuracies, noise)),
        models=_by_model(table),
        file_counts=dict(
            zip(table.models, table.counts.sum(axis=-1).astype(int).tolist(), strict=True)
        ),
        generations=_by_generation(table),
        priors={prior.tree.location: _by_model(prior, pooled) for prior in priors},
        layout=table.tree.layout,
        layout_reason=table.tree.reason,
        files=count_files(units),
        skipped=tuple(_listed(units))[:LISTED_FILES],
        warnings=(*_warnings(tables, units), *_warnings_of_metrics(accuracies)),
    )


def _order(scores: UnitScores) -> tuple[int, str, str]:
    return scores.unit.tree, scores.unit.model, scores.unit.generation


def _refuse_other_models(table: _Table, prior: _Table) -> None:
    if difference := model_difference(table.models, prior.models):
        raise DataError(
            f"prior {prior.tree.location} has other models than {table.tree.location}: "
            f"{difference}; novelty needs the same models everywhere: add their scores, or "
            "take the prior out of quality_eval_cfg.prior_datasets"
        )


def count_files(units: Iterable[UnitScores]) -> FileCounts:
    """Adds up the files of units."""
    units = list(units)
    return FileCounts(
        read=sum(unit.read for unit in units), skipped=sum(unit.skipped for unit in units)
    )


def _table(tree: ScoreTree, units: Sequence[UnitScores], config: QualityConfig) -> _Table:
    by_model: dict[str, dict[str, UnitScores]] = {}
    for scores in units:
        by_model.setdefault(scores.unit.model, {})[scores.unit.generation] = scores
    for model, members in by_model.items():
        if not any(scores.count for scores in members.values()):
            raise _unusable(model, list(members.values()))
    generations = _common_generations(by_model, tree.location, config)
    rows = [[members[g] for g in generations] for members in by_model.values()]
    return _Table(
        tree,
        tuple(by_model),
        generations,
        np.array([[unit.total / unit.count for unit in row] for row in rows]),
        np.array([[unit.count for unit in row] for row in rows], float),
        _replicates_first([[unit.weighted for unit in row] for row in rows]),
        _replicates_first([[unit.weights for unit in row] for row in rows]),
    )


def _unusable(model: str, units: Sequence[UnitScores]) -> DataError:
    """Returns the error for a model without a usable file: what there is, and why not used."""
    return DataError(
        f"model {model} of {units[0].unit.location} has no usable score file: {_left_out(units)}"
        f"{_named(list(_listed(units)))}; add its scores or remove the directory"
    )


def _left_out(units: Sequence[UnitScores]) -> str:
    """Returns the numbers of files that are not used, by reason."""
    reasons = sum((unit.reasons for unit in units), Counter[str]())
    counts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    hidden = sum(unit.hidden for unit in units)
    return (
        f"{reasons.total()} left out{counts and f' ({counts})'}, {hidden} hidden by a name that "
        "starts with a dot"
    )


def _replicates_first(rows: Sequence[Sequence[Array]]) -> Array:
    """Stacks (replicates,) arrays by model and generation to (replicates, models, generations)."""
    return np.ascontiguousarray(np.moveaxis(np.array(rows), -1, 0))


def _common_generations(
    by_model: Mapping[str, Mapping[str, UnitScores]], location: str, config: QualityConfig
) -> tuple[str, ...]:
    """Returns the generations that every model has usable scores in.

    Raises:
        DataError: Some model lacks one and `on_missing_generation` refuses that, or none is left.
    """
    usable = {
        model: {name for name, scores in members.items() if scores.count}
        for model, members in by_model.items()
    }
    every = set[str]().union(*usable.values())
    common = every.intersection(*usable.values())
    if common == every:
        return tuple(sorted(common))
    lacking = {model: sorted(every - names) for model, names in usable.items() if every - names}
    named = "; ".join(
        f"model {model} has {len(usable[model])} of {len(every)}, without usable scores in "
        f"{_first(missing)}{_why_unusable(by_model[model], missing)}"
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
    return tuple(sorted(common))


def _why_unusable(members: Mapping[str, UnitScores], generations: Sequence[str]) -> str:
    there = [members[name] for name in generations if name in members]
    return f" ({_left_out(there)})" if there else ""


def _figures(
    config: QualityConfig, accuracies: MeanAccuracies, noise: Array
) -> Iterator[tuple[str, QualityFigure]]:
    wanted = config.metrics_to_compute or tuple(METRICS)
    for name, metric in METRICS.items():
        if name in wanted:
            yield name, figure_of(metric, accuracies, noise)
        else:
            yield name, QualityFigure(value=None, interval=None, reason=NOT_WANTED)
    for name in wanted:
        if name not in METRICS:
            reason = NEEDS_TEXTS if name in OF_TEXTS else NO_METRIC
            yield name, QualityFigure(value=None, interval=None, reason=reason)


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
    estimated = _estimated(metric, accuracies, noise)
    if isinstance(estimated, str):
        return QualityFigure(value=value, interval=None, reason=None, no_interval=estimated)
    low, high = (min(max(end, 0.0), 1.0) for end in estimated.interval)
    return QualityFigure(
        value=value, corrected=estimated.corrected, interval=(low, high), reason=None
    )


def _estimated(metric: QualityMetric, accuracies: MeanAccuracies, noise: Array) -> Estimated | str:
    """Returns the interval of a figure, or the reason why it has none."""
    if isinstance(metric.estimate, str):
        return metric.estimate
    if not len(noise):
        return "bootstrap=0"
    if accuracies.tasks < LEAST_TASKS:
        return (
            f"a directory has {accuracies.tasks} usable files: intervals need {LEAST_TASKS} or more"
        )
    return metric.estimate(accuracies, noise)


def _model_means(table: _Table, pooled: bool) -> Array:
    """Returns (models,) means over all files, or over the generations' means."""
    return np.average(table.means, axis=-1, weights=table.counts if pooled else None)


def _by_model(table: _Table, pooled: bool = False) -> dict[str, float]:
    return dict(zip(table.models, _model_means(table, pooled).tolist(), strict=True))


def _by_generation(table: _Table) -> dict[str, dict[str, float]]:
    if table.tree.layout is Layout.FLAT:
        return {}
    return {
        model: dict(zip(table.generations, row, strict=True))
        for model, row in zip(table.models, table.means.tolist(), strict=True)
    }


def _refuse_skipped(units: Sequence[UnitScores]) -> None:
    if count := sum(unit.skipped for unit in units):
        raise DataError(
            f"{count} score files cannot be used{_named(list(_listed(units)))}; fix or "
            "remove them, or set strict=false to leave them out"
        )


def _listed(units: Iterable[UnitScores]) -> Iterator[SkippedFile]:
    for unit in units:
        yield from unit.listed


def _named(files: Sequence[SkippedFile]) -> str:
    lines = [f"\n  {file.path}: {file.reason}" for file in files[:NAMED_FILES]]
    return f", for example{''.join(lines)}\n" if lines else ""


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED_FILES]) + (", ..." if len(names) > NAMED_FILES else "")


def _warnings(tables: Sequence[_Table], units: Sequence[UnitScores]) -> Iterator[str]:
    for number, table in enumerate(tables):
        location = table.tree.location
        if table.tree.beside:
            yield (
                f"{table.tree.beside} score files of {location} lie directly under a model beside "
                "its generations and are not counted; layout=flat counts them"
            )
        there = {scores.unit.generation for scores in units if scores.unit.tree == number}
        if dropped := there - set(table.generations):
            yield (
                f"generations of {location} left out, because not every model has usable scores in "
                f"them: {_first(sorted(dropped))}"
            )


def _warnings_of_metrics(accuracies: MeanAccuracies) -> Iterator[str]:
    for metric in METRICS.values():
        if not metric.why_not(accuracies) and (warning := metric.warning(accuracies)):
            yield warning
