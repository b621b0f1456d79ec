"""Benchmark quality: trees are read in parts by `Workers`, and measured from what was read."""

import math
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.doctor.diagnosis import Diagnosed
from raylab.doctor.readers.reading import name_sources
from raylab.doctor.responses import Responses
from raylab.errors import DataError
from raylab.evaluation.diagnosis import (
    diagnose_responses,
    diagnose_trees,
    read_tree,
)
from raylab.files import Place
from raylab.llm.endpoints import find_key
from raylab.log import log_line
from raylab.quality.measure import count_files, measure
from raylab.quality.metrics import METRICS
from raylab.quality.reading import UnitScores, read_unit, sum_responses
from raylab.quality.record import QUALITY, Quality, QualityFigure, SkippedFile, TreeQuality
from raylab.quality.trees import (
    LISTING_THREADS,
    TABLES,
    ScoreTree,
    Unit,
    configured_trees,
    score_files,
)
from raylab.report.diagnosis import write_diagnosis
from raylab.report.quality import log_quality
from raylab.report.work import watch
from raylab.runs.eval_logs import SUFFIXES
from raylab.runs.run import Run
from raylab.tracking import track
from raylab.workers import Workers

PARTS_PER_PLACE = 4
"""Enough for an even load, few enough that starting them costs little."""
UNITS_PER_PART = 64
"""Most units per part, so that large trees show progress."""


def read_trees(config: QualityConfig) -> list[ScoreTree]:
    """Finds the trees that `config` names; reports unusable ones before the slow part starts.

    Raises:
        DataError: A root is missing or holds no models, or a model holds no score file.
        ConfigError: No root is configured, no filesystem opens a URI, or the key of the embedding
            model is not in the environment.
        RunError: The run of `config` cannot be started or gone on with.
    """
    Run.check(config)
    if config.embeddings is not None:
        find_key("embeddings", config.embeddings)
    return [_settle(tree, config.layout) for tree in configured_trees(config)]


def measure_and_diagnose(
    trees: Sequence[ScoreTree], config: QualityConfig, workers: Workers
) -> tuple[TreeQuality, Diagnosed | None]:
    """Measures score trees and diagnoses their benchmark, if that is configured.

    Raises:
        DataError: The trees cannot be used.
    """
    if not any(tree.layout is Layout.NAMED for tree in trees):
        quality = measure_trees(trees, config, workers)
        return quality, diagnose_trees(trees, config, workers) if config.diagnosis else None
    read = [read_tree(number, trees, config, workers) for number in range(len(trees))]
    quality = measure_trees(trees, config, workers, read)
    return quality, diagnose_responses(trees, read, config) if config.diagnosis else None


def write_quality(config: QualityConfig, quality: TreeQuality, diagnosed: Diagnosed | None) -> None:
    """Writes the files of a finished run, and prints the figures and the diagnosis, if any."""
    run, record = Run.open(config), Quality(**dict(quality))
    run.write_record(record)
    track(config.tracking, run, 0, quality_figures(quality))
    log_quality(quality)
    log_line(f"{run / QUALITY}", uri=str(run / QUALITY))
    if diagnosed is not None:
        write_diagnosis(run, diagnosed, record)
    run.finish()


def quality_figures(quality: TreeQuality) -> dict[str, float]:
    """Returns the figures of a benchmark that could be computed, and the models' accuracies."""
    figures = {
        name: figure.value for name, figure in quality.figures.items() if figure.value is not None
    }
    return figures | {f"accuracy/{model}": share for model, share in quality.models.items()}


def measure_trees(
    trees: Sequence[ScoreTree],
    config: QualityConfig,
    workers: Workers,
    responses: Sequence[Responses] = (),
) -> TreeQuality:
    """Measures score trees; those whose files name their models by the responses to items.

    Args:
        trees: The tree of the benchmark, then those of its priors.
        config: Layout, bootstrap and refusals; its directories are not used.
        workers: Where the trees are read and measured.
        responses: Those of each tree, where they were read.

    Raises:
        DataError: The trees cannot be used.
    """
    for tree in trees:
        message = f"{tree.location}: layout {tree.layout}, {tree.reason}"
        log_line(message, tree=tree.location, layout=tree.layout)
    named = {n: tree for n, tree in enumerate(trees) if tree.layout is Layout.NAMED}
    units = [unit for tree in trees for unit in tree.units if tree.layout is not Layout.NAMED]
    try:
        parts = _read_parts(units, config, workers) if units else []
    except OSError as error:
        raise DataError(f"scores cannot be read, after retries: {error}") from error
    for number, tree in named.items():
        read = responses[number] if responses else read_tree(number, trees, config, workers)
        parts.append(_sum_named(tree, number, read, config))
    try:
        ((_, quality),) = workers.run(measure, {"the trees": (trees, config, *parts)})
    except DataError as error:
        if 0 not in named or config.strict:
            raise
        return _without_figures(trees[0], parts[-len(named)], str(error))
    return quality


def _sum_named(
    tree: ScoreTree, number: int, read: Responses, config: QualityConfig
) -> list[UnitScores]:
    left_out = [
        SkippedFile(path=read.examples.get(reason, tree.location), reason=f"{count:,} {reason}")
        for reason, count in read.left_out.items()
    ]
    return sum_responses(tree, number, read.table, left_out, config.bootstrap)


def _without_figures(tree: ScoreTree, units: Sequence[UnitScores], reason: str) -> TreeQuality:
    """Returns the accuracies of models whose responses cannot be compared by the figures."""
    means: dict[str, list[float]] = defaultdict(list)
    for scores in units:
        means[scores.unit.model].append(scores.total / scores.count)
    return TreeQuality(
        figures={name: QualityFigure(reason=reason) for name in METRICS},
        models={model: sum(values) / len(values) for model, values in means.items()},
        file_counts={},
        generations={},
        priors={},
        layout=tree.layout,
        layout_reason=tree.reason,
        files=count_files(units),
        skipped=units[0].skipped,
        warnings=(f"no figures: {reason}",),
    )


def _read_parts(
    units: Sequence[Unit], config: QualityConfig, workers: Workers
) -> list[list[UnitScores]]:
    count = min(
        len(units), max(PARTS_PER_PLACE * workers.places, math.ceil(len(units) / UNITS_PER_PART))
    )
    calls = {part: (units[part::count], config) for part in range(count)}
    parts: list[list[UnitScores]] = []
    ends = workers.run(read_units, calls)
    with watch(len(units), "directories", parts=count) as progress, closing(ends):
        for _, scores in ends:
            parts.append(scores)
            for outcome, files in count_files(scores):
                workers.count("files", files, outcome=outcome)
            progress.end(len(scores))
    return parts


def _settle(tree: ScoreTree, layout: Layout) -> ScoreTree:
    """Returns the tree, as a `NAMED` one where a model's directory has no logs but tables."""
    if tree.layout is Layout.NAMED:
        return tree
    models: dict[str, list[Unit]] = defaultdict(list)
    for unit in tree.units:
        models[unit.model].append(unit)
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        kinds = dict(zip(models, pool.map(_find_kind, models.values()), strict=True))
    for model, kind in kinds.items():
        if kind == TABLES and layout is Layout.AUTO:
            reason = f"{model} holds no logs but samples or tables, which name their models"
            return replace(tree, layout=Layout.NAMED, reason=reason)
        if kind != SUFFIXES:
            raise DataError(
                f"model {model} of {tree.location} has no score file below it, neither .json nor "
                ".eval: add its scores or remove the directory"
            )
    return tree


def _find_kind(units: Sequence[Unit]) -> tuple[str, ...]:
    """Returns the endings of the logs, or else of the tables, that a model has; none is empty."""
    kind: tuple[str, ...] = ()
    for unit in units:
        try:
            names = score_files(unit, (*SUFFIXES, *TABLES))
        except OSError:
            return SUFFIXES
        for source in name_sources(Place.at(unit.location), list(names)):
            # Reading the unit reports directories that cannot be read, with the reason.
            if not source.place.name.endswith(TABLES):
                return SUFFIXES
            kind = TABLES
    return kind


def read_units(units: Sequence[Unit], config: QualityConfig) -> list[UnitScores]:
    """Reads some units.

    Raises:
        DataError: A directory is missing.
        OSError: A file or directory cannot be read for the moment.
    """
    return [read_unit(unit, config) for unit in units]
