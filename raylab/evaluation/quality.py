"""Benchmark quality: trees are read in parts, with progress, and measured from what was read."""

import math
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from raylab.config.jobs import QualityConfig
from raylab.errors import DataError
from raylab.log import log_line
from raylab.quality.measure import count_files, measure
from raylab.quality.reading import UnitScores, read_unit
from raylab.quality.record import QUALITY, Quality, TreeQuality
from raylab.quality.trees import LISTING_THREADS, ScoreTree, Unit, configured_trees, score_files
from raylab.report.quality import log_quality
from raylab.runs.run import Run

PROGRESS_SECONDS = 10.0
RETRIES = 3
"""Further tries at a part that could not be read for the moment."""
PARTS_PER_CPU = 4
"""Enough for an even load, few enough that starting them costs nothing."""
UNITS_PER_PART = 64
"""Most units per part, so that large trees show progress."""

PartRead = tuple[int, int]
"""The number of directories of a part that was read, and that of their files."""


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


def write_quality(config: QualityConfig, quality: TreeQuality) -> None:
    """Writes `quality.json` of a finished run, and prints the figures."""
    run = Run.open(config, config.job)
    run.write_record(Quality(**dict(quality)))
    log_quality(quality)
    log_line(f"{run / QUALITY}", uri=str(run / QUALITY))
    run.finish()


def measure_here(trees: Sequence[ScoreTree], config: QualityConfig) -> TreeQuality:
    """Measures score trees in this process; raises DataError if they cannot be used."""
    groups = parts_of(trees, cpus=1)
    parts: list[list[UnitScores]] = []

    def read() -> Generator[PartRead]:
        for group in groups:
            parts.append(_read_patiently(group, config))
            yield len(group), count_files(parts[-1]).read

    watch(read(), sum(map(len, groups)))
    return measure(trees, config, *parts)


def parts_of(trees: Sequence[ScoreTree], cpus: int) -> list[Sequence[Unit]]:
    """Logs the layouts of trees; returns their units in parts for this many CPUs."""
    for tree in trees:
        message = f"{tree.location}: layout {tree.layout}, {tree.reason}"
        log_line(message, tree=tree.location, layout=tree.layout)
    units = [unit for tree in trees for unit in tree.units]
    parts = min(len(units), max(PARTS_PER_CPU * cpus, math.ceil(len(units) / UNITS_PER_PART)))
    return [units[start::parts] for start in range(parts)]


def watch(parts: Iterable[PartRead], total: int) -> None:
    """Takes all parts, with a line of progress every 10 s.

    Args:
        parts: Each part as it was read; (0, 0) only passes the time.
        total: Number of directories in all parts.
    """
    done = files = 0
    start = shown = time.monotonic()
    for directories, read in parts:
        done, files = done + directories, files + read
        now = time.monotonic()
        if done < total and now - shown >= PROGRESS_SECONDS:
            left = (now - start) * (total - done) / done if done else None
            eta = "" if left is None else f", ETA {left:.0f} s"
            message = f"{done}/{total} directories, {files} files read{eta}"
            log_line(message, done=done, total=total, files=files, eta_seconds=left)
            shown = now


def cannot_be_read(error: OSError) -> DataError:
    """Returns the error for scores that could not be read, however often that was tried."""
    return DataError(f"scores cannot be read, after retries: {error}")


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


def _read_patiently(units: Sequence[Unit], config: QualityConfig) -> list[UnitScores]:
    for _ in range(RETRIES):
        with suppress(OSError):
            return read_units(units, config)
    try:
        return read_units(units, config)
    except OSError as error:
        raise cannot_be_read(error) from error


def read_units(units: Sequence[Unit], config: QualityConfig) -> list[UnitScores]:
    """Reads some units.

    Raises:
        DataError: A directory is missing.
        OSError: A file or directory cannot be read for the moment.
    """
    return [read_unit(unit, config) for unit in units]
