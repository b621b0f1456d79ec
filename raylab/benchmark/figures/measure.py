"""The metrics of a benchmark with their intervals, from the scores of its tree."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from raylab.benchmark.config import Layout, QualityConfig
from raylab.benchmark.figures.intervals import deviations
from raylab.benchmark.figures.metrics import (
    METRICS,
    MIN_TASKS,
    TASKS_PER_CONTRAST,
    MeanAccuracies,
    QualityMetric,
    model_difference,
)
from raylab.benchmark.figures.record import FileCounts, Quality, SkippedFile
from raylab.benchmark.logs.accuracies import Scores, Sums, add_up
from raylab.benchmark.logs.join import TreeScores
from raylab.benchmark.logs.trees import ScoreTree
from raylab.core.errors import DataError
from raylab.core.printable import join_names, pluralize
from raylab.core.runs.records import Figure
from raylab.core.stats import Array

LISTED_FILES = 1000
NAMED = 3
"""Most files, reasons, models or generations that a message names."""
NO_METRIC = f"raylab has no such figure, only those of scores: {', '.join(METRICS)}"
NOT_WANTED = "metrics_to_compute leaves it out"


@dataclass(frozen=True)
class _Table:
    """The models of a tree in the generations that all of them have.

    Attributes:
        tree: The tree.
        models: Names, in order.
        generations: Names, in order; one empty name without generations.
        dropped: Names of the generations that some model lacks.
        counts: (models, generations) numbers of items.
        means: (models, generations) mean accuracies.
        noise: (replicates, models, generations) deviations of the bootstrap's means.
    """

    tree: ScoreTree
    models: Sequence[str]
    generations: Sequence[str]
    dropped: Sequence[str]
    counts: Array
    means: Array
    noise: Array

    def accuracies(self, pooled: bool = False) -> dict[str, float]:
        """Returns models' means over their generations' means, or over all items if pooled."""
        means = np.average(self.means, axis=-1, weights=self.counts if pooled else None)
        return dict(zip(self.models, means.tolist(), strict=True))

    @property
    def by_generation(self) -> dict[str, dict[str, float]]:
        """Means by model and generation; none of a tree without generations."""
        if "" in self.generations:
            return {}
        rows = zip(self.models, self.means.tolist(), strict=True)
        return {model: dict(zip(self.generations, row, strict=True)) for model, row in rows}


def measure(read: Sequence[TreeScores], config: QualityConfig) -> Quality:
    """Computes every metric of a benchmark with its interval.

    The accuracy of a model is the mean over its generations of the mean over items. Intervals are
    those of `raylab.benchmark.figures.intervals`.

    Args:
        read: The tree of the benchmark, then those of earlier ones, which novelty compares with.
        config: How missing generations and unusable files are handled.

    Raises:
        DataError: A model has no usable file, models or generations differ, or files are unusable
            with `strict`. Without it, models that differ have no figures if there are samples.
    """
    for each in read:
        if (
            isinstance(each.responses, DataError)
            and each.scores.table.empty
            and not each.tree.models
        ):
            raise each.responses
    scores = [each.scores for each in read]
    skipped = [file for each in scores for file in chain.from_iterable(each.skipped.values())]
    if config.strict and skipped:
        raise DataError(f"{_explain_skipped(skipped)}; fix or remove them, or set strict=false")
    # Priors are not resampled: novelty, which alone reads them, has no interval.
    sums = [
        add_up(each.table, 0 if prior else config.bootstrap) for prior, each in enumerate(scores)
    ]
    counts = [each.left_out if each.tree.layout is Layout.NAMED else 0 for each in read]
    files = sum(len(own) for each in scores if each.tree.models for own in each.skipped.values())
    usable, lost = sum(len(each.table) for each in scores), files + sum(counts)
    files = FileCounts(read=usable + lost, skipped=lost)
    listed = tuple(skipped[:LISTED_FILES])
    try:
        tables = [_tabulate(each, total, config) for each, total in zip(scores, sums, strict=True)]
        for prior in tables[1:]:
            _refuse_other_models(tables[0], prior)
    except DataError as error:
        if isinstance(read[0].responses, DataError) or config.strict:
            raise
        return Quality(
            figures={name: Figure(reason=str(error)) for name in METRICS},
            layout=scores[0].tree.layout,
            layout_reason=scores[0].tree.reason,
            files=files,
            skipped=listed,
            warnings=(f"no figures: {error}",),
            reading=read[0].reading,
        )
    table, *priors = tables
    pooled = bool(config.reference_datasets)
    on_priors = {prior.tree.location: prior.accuracies(pooled) for prior in priors}
    accuracies = MeanAccuracies(
        table.means,
        [np.array(list(models.values())) for models in on_priors.values()],
        int(table.counts.min()),
    )
    return Quality(
        figures=dict(_figures(config, accuracies, table.noise)),
        models=table.accuracies(),
        file_counts=dict(zip(table.models, table.counts.sum(axis=-1).astype(int), strict=True)),
        generations=table.by_generation,
        priors=on_priors,
        layout=table.tree.layout,
        layout_reason=table.tree.reason,
        files=files,
        skipped=listed,
        warnings=tuple(_warnings(tables, accuracies)),
        reading=read[0].reading,
    )


def _tabulate(scores: Scores, sums: Sums, config: QualityConfig) -> _Table:
    """Arranges the sums of a tree by model and the generations that all models have."""
    tree, usable = scores.tree, dict[str, set[str]]()
    for model, generation in sums.units:
        usable.setdefault(model, set()).add(generation)
    for model in tree.models:
        if model not in usable:
            skipped = scores.skipped[model]
            why = f": {_explain_skipped(skipped)}" if skipped else ""
            raise DataError(
                f"model {model} of {tree.location} has no usable score file{why}; add its scores "
                "or remove the directory"
            )
    every, common = set[str]().union(*usable.values()), set.intersection(*usable.values())
    if common != every and (config.on_missing_generation == "error" or not common):
        raise _different_generations(scores, usable)
    models, generations = sorted(usable), sorted(common)
    present = every | {source.generation for source in tree.logs}
    units = [(model, generation) for model in models for generation in generations]
    places = sums.units.get_indexer(units).reshape(len(models), len(generations))
    return _Table(
        tree=tree,
        models=models,
        generations=generations,
        dropped=sorted(present - common),
        counts=sums.counts[places],
        means=sums.means[places],
        noise=deviations(sums.weighted[:, places], sums.weights[:, places], sums.counts[places]),
    )


def _refuse_other_models(table: _Table, prior: _Table) -> None:
    if difference := model_difference(table.models, prior.models):
        raise DataError(
            f"prior {prior.tree.location} has other models than {table.tree.location}: "
            f"{difference}; novelty needs the same models everywhere: add their scores, or take "
            "the prior out of quality_eval_cfg.prior_datasets"
        )


def _different_generations(scores: Scores, usable: Mapping[str, set[str]]) -> DataError:
    every, common = set[str]().union(*usable.values()), len(set.intersection(*usable.values()))
    lacking = [
        f"model {model} has {len(names)} of {len(every)}, without usable scores in "
        f"{join_names(sorted(every - names), NAMED)}"
        for model, names in usable.items()
        if names != every
    ]
    skipped = list(chain.from_iterable(scores.skipped.values()))
    return DataError(
        f"the models of {scores.tree.location} have different generations: "
        f"{'; '.join(lacking[:NAMED])}. {_explain_skipped(skipped)}. Add scores, set "
        f"on_missing_generation=drop to use the {common} that every model has, layout=flat if the "
        "directories are not generations, or layout=named if the logs name their models"
    )


def _figures(
    config: QualityConfig, accuracies: MeanAccuracies, noise: Array
) -> Iterator[tuple[str, Figure]]:
    wanted = config.metrics_to_compute or tuple(METRICS)
    for name, metric in METRICS.items():
        if name in wanted:
            yield name, compute_figure(metric, accuracies, noise)
        else:
            yield name, Figure(reason=NOT_WANTED)
    for name in wanted:
        if name not in METRICS:
            yield name, Figure(reason=NO_METRIC)


def compute_figure(metric: QualityMetric, accuracies: MeanAccuracies, noise: Array) -> Figure:
    """Computes a figure with its interval.

    Args:
        metric: The metric.
        accuracies: Accuracies of one benchmark.
        noise: (replicates, models, generations) deviations of the replicates from them.
    """
    if reason := metric.why_not(accuracies):
        return Figure(reason=reason)
    value = metric.compute(accuracies)
    if isinstance(metric.estimate, str):
        return Figure(value=value, reason=metric.estimate)
    if not len(noise):
        return Figure(value=value, reason="bootstrap=0")
    models, generations = accuracies.benchmark.shape
    needed = max(MIN_TASKS, TASKS_PER_CONTRAST * metric.contrasts(models, generations))
    if accuracies.tasks < needed:
        tasks = pluralize(accuracies.tasks, "usable file or item", "usable files or items")
        over = f"{pluralize(models, 'model')} and {pluralize(generations, 'generation')}"
        reason = f"a model has {tasks}: the interval over {over} needs {needed}"
        return Figure(value=value, reason=reason)
    estimated = metric.estimate(accuracies, noise)
    if estimated.interval is None:
        return estimated.model_copy(update={"value": value})
    low, high = (min(max(end, 0.0), 1.0) for end in estimated.interval)
    return estimated.model_copy(update={"value": value, "interval": (low, high)})


def _explain_skipped(skipped: Sequence[SkippedFile]) -> str:
    """Returns the number of files that cannot be used, with the commonest reasons and examples."""
    reasons = Counter(file.reason.partition(":")[0] for file in skipped)
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(NAMED))
    lines = [f"\n  {file.path}: {file.reason}" for file in islice(skipped, NAMED)]
    examples = f" ({counts}), for example{''.join(lines)}\n" if lines else ""
    return f"{pluralize(len(skipped), 'score file')} cannot be used{examples}"


def _warnings(tables: Sequence[_Table], accuracies: MeanAccuracies) -> Iterator[str]:
    for table in tables:
        location = table.tree.location
        if count := table.tree.ignored:
            yield (
                f"left out of {location}: {pluralize(count, 'score file')} directly under a model, "
                "beside its generations; layout=flat counts such files"
            )
        if table.dropped:
            yield (
                f"generations of {location} left out, because not every model has usable scores in "
                f"them: {join_names(table.dropped, NAMED)}"
            )
    for metric in METRICS.values():
        if not metric.why_not(accuracies) and (warning := metric.warning(accuracies)):
            yield warning
