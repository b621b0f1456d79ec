"""The metrics of a benchmark with their intervals, from the sums of its score tree."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from raylab.config.jobs import QualityConfig
from raylab.errors import DataError
from raylab.quality.intervals import Estimated, deviations
from raylab.quality.metrics import (
    LEAST_TASKS,
    METRICS,
    TASKS_PER_CONTRAST,
    MeanAccuracies,
    QualityMetric,
    model_difference,
)
from raylab.quality.reading import UnitScores
from raylab.quality.record import FileCounts, QualityFigure, SkippedFile, TreeQuality
from raylab.quality.trees import ScoreTree

LISTED_FILES = 1000
NAMED = 3
"""Most files, reasons, models or generations that a message names."""
NO_METRIC = f"raylab has no such figure, only those of scores: {', '.join(METRICS)}"
NOT_WANTED = "metrics_to_compute leaves it out"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Table:
    """The sums of a tree: for each model, those of the generations that all models have."""

    tree: ScoreTree
    rows: Mapping[str, Sequence[UnitScores]]
    generations: Sequence[str]
    """Names, in order; one empty name without generations."""
    dropped: Sequence[str]
    """Names of the generations that some model lacks."""

    def array(self, value: Callable[[UnitScores], float | Array]) -> Array:
        """Returns a (models, generations, ...) array of values, (...) the shape of each."""
        return np.array([[value(scores) for scores in row] for row in self.rows.values()], float)

    @property
    def means(self) -> Array:
        """(models, generations) mean accuracies."""
        return self.array(lambda scores: scores.total / scores.count)

    @property
    def counts(self) -> Array:
        """(models, generations) numbers of usable files."""
        return self.array(lambda scores: scores.count)

    def models(self, pooled: bool = False) -> dict[str, float]:
        """Returns models' means over their generations' means, or over all files if pooled."""
        means = np.average(self.means, axis=-1, weights=self.counts if pooled else None)
        return dict(zip(self.rows, means.tolist(), strict=True))

    def by_generation(self) -> dict[str, dict[str, float]]:
        """Returns means by model and generation; none of a tree without generations."""
        if "" in self.generations:
            return {}
        rows = zip(self.rows, self.means.tolist(), strict=True)
        return {model: dict(zip(self.generations, row, strict=True)) for model, row in rows}

    def noise(self) -> Array:
        """Returns the (replicates, models, generations) deviations of the bootstrap's means."""
        sums = self.array(lambda scores: scores.weighted), self.array(lambda scores: scores.weights)
        weighted, weights = (np.ascontiguousarray(np.moveaxis(values, -1, 0)) for values in sums)
        return deviations(weighted, weights, self.counts)


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
    units = sorted(
        (scores for group in groups for scores in group),
        key=lambda scores: (scores.unit.tree, scores.unit.model, scores.unit.generation),
    )
    if config.strict and any(scores.skipped for scores in units):
        raise DataError(f"{_why_skipped(units)}; fix or remove them, or set strict=false")
    tables = [
        _table(tree, [scores for scores in units if scores.unit.tree == number], config)
        for number, tree in enumerate(trees)
    ]
    return _quality(tables, config, units)


def _quality(
    tables: Sequence[_Table], config: QualityConfig, units: Sequence[UnitScores]
) -> TreeQuality:
    table, *priors = tables
    for prior in priors:
        _refuse_other_models(table, prior)
    accuracies_on = {prior.tree.location: prior.models(_pooled(config)) for prior in priors}
    accuracies = MeanAccuracies(
        table.means,
        [np.array(list(models.values())) for models in accuracies_on.values()],
        table.generations,
        int(table.counts.min()),
    )
    return TreeQuality(
        figures=dict(_figures(config, accuracies, table.noise())),
        models=table.models(),
        file_counts=dict(zip(table.rows, table.counts.sum(axis=-1).astype(int), strict=True)),
        generations=table.by_generation(),
        priors=accuracies_on,
        layout=table.tree.layout,
        layout_reason=table.tree.reason,
        files=count_files(units),
        skipped=tuple(islice(_skipped(units), LISTED_FILES)),
        warnings=tuple(_warnings(tables, accuracies)),
    )


def _pooled(config: QualityConfig) -> bool:
    means = config.quality_eval_cfg.prior_means
    return means == "files" or (means is None and bool(config.reference_datasets))


def count_files(units: Sequence[UnitScores]) -> FileCounts:
    """Adds up the files of units."""
    skipped = sum(len(scores.skipped) for scores in units)
    return FileCounts(read=sum(scores.read for scores in units), skipped=skipped)


def _refuse_other_models(table: _Table, prior: _Table) -> None:
    if difference := model_difference(table.rows, prior.rows):
        raise DataError(
            f"prior {prior.tree.location} has other models than {table.tree.location}: "
            f"{difference}; novelty needs the same models everywhere: add their scores, or take "
            "the prior out of quality_eval_cfg.prior_datasets"
        )


def _table(tree: ScoreTree, units: Sequence[UnitScores], config: QualityConfig) -> _Table:
    by_model: dict[str, dict[str, UnitScores]] = {}
    for scores in units:
        by_model.setdefault(scores.unit.model, {})[scores.unit.generation] = scores
    usable = {
        model: {name for name, scores in members.items() if scores.count}
        for model, members in by_model.items()
    }
    for model, members in by_model.items():
        if not usable[model]:
            raise DataError(
                f"model {model} of {tree.location} has no usable score file: "
                f"{_why_skipped(list(members.values()))}; add its scores or remove the directory"
            )
    every, common = set[str]().union(*usable.values()), set.intersection(*usable.values())
    if common != every and (config.on_missing_generation == "error" or not common):
        raise _different_generations(tree, units, usable)
    generations = sorted(common)
    rows = {model: [members[g] for g in generations] for model, members in by_model.items()}
    present = {scores.unit.generation for scores in units}
    return _Table(tree, rows, generations, sorted(present - common))


def _different_generations(
    tree: ScoreTree, units: Sequence[UnitScores], usable: Mapping[str, set[str]]
) -> DataError:
    every, common = set[str]().union(*usable.values()), len(set.intersection(*usable.values()))
    lacking = [
        f"model {model} has {len(names)} of {len(every)}, without usable scores in "
        f"{_first(sorted(every - names))}"
        for model, names in usable.items()
        if names != every
    ]
    return DataError(
        f"the models of {tree.location} have different generations: {_first(lacking, '; ')}. "
        f"{_why_skipped(units)}. Add scores, set on_missing_generation=drop to use the {common} "
        "that every model has, layout=flat if the directories are no generations, or layout=named "
        "if the logs name their models"
    )


def _figures(
    config: QualityConfig, accuracies: MeanAccuracies, noise: Array
) -> Iterator[tuple[str, QualityFigure]]:
    wanted = config.metrics_to_compute or tuple(METRICS)
    for name, metric in METRICS.items():
        if name in wanted:
            yield name, figure_of(metric, accuracies, noise)
        else:
            yield name, QualityFigure(reason=NOT_WANTED)
    for name in wanted:
        if name not in METRICS:
            yield name, QualityFigure(reason=NO_METRIC)


def figure_of(metric: QualityMetric, accuracies: MeanAccuracies, noise: Array) -> QualityFigure:
    """Computes a figure with its interval.

    Args:
        metric: The metric.
        accuracies: Accuracies of one benchmark.
        noise: (replicates, models, generations) deviations of the replicates from them.
    """
    if reason := metric.why_not(accuracies):
        return QualityFigure(reason=reason)
    value = metric.compute(accuracies)
    estimated = _estimate(metric, accuracies, noise)
    if isinstance(estimated, str):
        return QualityFigure(value=value, no_interval=estimated)
    low, high = (min(max(end, 0.0), 1.0) for end in estimated.interval)
    return QualityFigure(value=value, corrected=estimated.corrected, interval=(low, high))


def _estimate(metric: QualityMetric, accuracies: MeanAccuracies, noise: Array) -> Estimated | str:
    """Returns the interval of a figure, or the reason why it has none."""
    if isinstance(metric.estimate, str):
        return metric.estimate
    if not len(noise):
        return "bootstrap=0"
    models, generations = accuracies.benchmark.shape
    needed = max(LEAST_TASKS, TASKS_PER_CONTRAST * metric.contrasts(models, generations))
    if accuracies.tasks < needed:
        return (
            f"a model has {accuracies.tasks} usable files or items: the interval over {models} "
            f"models and {generations} generations needs {needed}"
        )
    return metric.estimate(accuracies, noise)


def _skipped(units: Iterable[UnitScores]) -> Iterator[SkippedFile]:
    for scores in units:
        yield from scores.skipped


def _why_skipped(units: Sequence[UnitScores]) -> str:
    """Returns the number of files that cannot be used, with the commonest reasons and examples."""
    reasons = Counter(file.reason.partition(":")[0] for file in _skipped(units))
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(NAMED))
    lines = [f"\n  {file.path}: {file.reason}" for file in islice(_skipped(units), NAMED)]
    examples = f" ({counts}), for example{''.join(lines)}\n" if lines else ""
    return f"{reasons.total()} score files cannot be used{examples}"


def _first(names: Sequence[str], mark: str = ", ") -> str:
    return mark.join((*names[:NAMED], *(["..."] if len(names) > NAMED else [])))


def _warnings(tables: Sequence[_Table], accuracies: MeanAccuracies) -> Iterator[str]:
    for table in tables:
        location = table.tree.location
        if table.tree.beside:
            yield (
                f"{table.tree.beside} score files of {location} lie directly under a model beside "
                "its generations and are not counted; layout=flat counts them"
            )
        if table.dropped:
            yield (
                f"generations of {location} left out, because not every model has usable scores in "
                f"them: {_first(table.dropped)}"
            )
    for metric in METRICS.values():
        if not metric.why_not(accuracies) and (warning := metric.warning(accuracies)):
            yield warning
