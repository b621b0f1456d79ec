"""Benchmark quality: trees are read in parts by `Workers`, and measured from what was read."""

import math
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from raylab.config.jobs import QualityConfig
from raylab.doctor.diagnosis import Diagnosed
from raylab.errors import DataError
from raylab.evaluation.diagnosis import write_diagnosis
from raylab.log import log_line
from raylab.quality.measure import count_files, measure
from raylab.quality.reading import UnitScores, read_unit
from raylab.quality.record import QUALITY, Quality, TreeQuality
from raylab.quality.trees import LISTING_THREADS, ScoreTree, Unit, configured_trees, score_files
from raylab.report.quality import log_quality
from raylab.report.work import watch
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
        ConfigError: No root is configured, or no filesystem opens a URI.
        RunError: The run of `config` cannot be started or gone on with.
    """
    Run.planned(config, config.job)
    trees = configured_trees(config)
    for tree in trees:
        _refuse_empty(tree)
    return trees


def write_quality(config: QualityConfig, quality: TreeQuality, diagnosed: Diagnosed | None) -> None:
    """Writes the files of a finished run, and prints the figures and the diagnosis, if any."""
    run, record = Run.open(config, config.job), Quality(**dict(quality))
    run.write_record(record)
    track(config.tracking, run, 0, quality_figures(quality))
    log_quality(quality)
    log_line(f"{run / QUALITY}", uri=str(run / QUALITY))
    if diagnosed is not None:
        write_diagnosis(run, record, diagnosed)
    run.finish()


def quality_figures(quality: TreeQuality) -> dict[str, float]:
    """Returns the figures of a benchmark that could be computed, and the models' accuracies."""
    figures = {name: of.value for name, of in quality.figures.items() if of.value is not None}
    return figures | {f"accuracy/{model}": share for model, share in quality.models.items()}


def measure_trees(
    trees: Sequence[ScoreTree], config: QualityConfig, workers: Workers
) -> TreeQuality:
    """Measures score trees.

    Args:
        trees: The tree of the benchmark, then those of its priors.
        config: Layout, bootstrap and refusals; its directories are not used.
        workers: Where the trees are read and measured.

    Raises:
        DataError: The trees cannot be used.
    """
    for tree in trees:
        message = f"{tree.location}: layout {tree.layout}, {tree.reason}"
        log_line(message, tree=tree.location, layout=tree.layout)
    try:
        parts = _read_parts([unit for tree in trees for unit in tree.units], config, workers)
    except OSError as error:
        raise DataError(f"scores cannot be read, after retries: {error}") from error
    ((_, quality),) = workers.run(measure, {"the trees": (trees, config, *parts)})
    return quality


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


def _refuse_empty(tree: ScoreTree) -> None:
    models: dict[str, list[Unit]] = defaultdict(list)
    for unit in tree.units:
        models[unit.model].append(unit)
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        scored = list(pool.map(lambda units: any(map(_holds_files, units)), models.values()))
    for model, has_files in zip(models, scored, strict=True):
        if not has_files:
            raise DataError(
                f"model {model} of {tree.location} has no score file below it, neither .json nor "
                ".eval: add its scores or remove the directory"
            )


def _holds_files(unit: Unit) -> bool:
    try:
        return bool(score_files(unit))
    except OSError:
        # Reading the unit reports what cannot be read, with the reason.
        return True


def read_units(units: Sequence[Unit], config: QualityConfig) -> list[UnitScores]:
    """Reads some units.

    Raises:
        DataError: A directory is missing.
        OSError: A file or directory cannot be read for the moment.
    """
    return [read_unit(unit, config) for unit in units]
