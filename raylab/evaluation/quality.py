"""Benchmark quality: trees are read in parts, with progress, and measured from what was read."""

import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from raylab.config.jobs import QualityConfig
from raylab.errors import DataError
from raylab.log import log_line
from raylab.quality.measure import count_files, measure_groups
from raylab.quality.reading import UnitScores, read_units, task_groups
from raylab.quality.record import QUALITY, Quality, TreeQuality
from raylab.quality.trees import ScoreTree, Unit
from raylab.report.quality import log_quality
from raylab.runs.eval_logs import ScoreChoice
from raylab.runs.run import Run

PROGRESS_SECONDS = 10.0
RETRIES = 3
"""Further tries at a part that could not be read for the moment."""

PartRead = tuple[int, int]
"""The number of directories of a part that was read, and that of their files."""


@dataclass(frozen=True)
class ScoreReading:
    """What is read of score files, and with which cache.

    Attributes:
        cache: Path or URI of the storage with the score cache; None reads every file.
        replicates: Bootstrap replicates of the benchmark.
        choice: What is read of each log.
    """

    cache: str | None
    replicates: int
    choice: ScoreChoice

    @classmethod
    def of(cls, config: QualityConfig, storage: str) -> Self:
        """Returns the reading that `config` asks for, with the cache of `storage`."""
        settings = config.quality_eval_cfg
        cache = storage if config.cache else None
        return cls(cache, config.bootstrap, ScoreChoice(settings.metric, settings.scorer))

    def read(self, units: Sequence[Unit]) -> list[UnitScores]:
        """Reads some units.

        Raises:
            DataError: A directory is missing, or holds too many entries.
            OSError: A file or directory cannot be read for the moment.
        """
        return read_units(units, self.cache, self.replicates, self.choice)


def run_quality(config: QualityConfig, trees: Sequence[ScoreTree]) -> None:
    """Measures the score trees of `config` in this process, and writes `quality.json`.

    Args:
        config: Configuration of the job.
        trees: As `read_trees` finds them.

    Raises:
        RaylabError: The measurement failed for a reason that the user can act on.
    """
    run = Run.open(config, config.job)
    conclude(run, measure_here(trees, config, config.storage))


def conclude(run: Run, quality: TreeQuality) -> None:
    """Writes and prints the quality of a benchmark, and finishes its run."""
    run.write_record(Quality.of(quality))
    log_quality(quality)
    log_line(f"{run / QUALITY}", uri=str(run / QUALITY))
    run.finish()


def measure_here(trees: Sequence[ScoreTree], config: QualityConfig, storage: str) -> TreeQuality:
    """Measures score trees in this process: that of the benchmark, then those of its priors.

    Raises:
        DataError: The trees cannot be used.
    """
    reading, groups = ScoreReading.of(config, storage), parts_of(trees, cpus=1)
    parts: list[list[UnitScores]] = []

    def read() -> Generator[PartRead]:
        for group in groups:
            parts.append(_read_patiently(reading, group))
            yield len(group), files_in(parts[-1])

    watch(read(), sum(map(len, groups)))
    return measure_groups(trees, config, *parts)


def parts_of(trees: Sequence[ScoreTree], cpus: int) -> list[list[Unit]]:
    """Tells the layouts of trees; returns their units in parts for this many CPUs."""
    for tree in trees:
        message = f"{tree.location}: layout {tree.layout}, {tree.reason}"
        log_line(message, tree=tree.location, layout=tree.layout)
    return task_groups([unit for tree in trees for unit in tree.units], cpus)


def files_in(scores: Sequence[UnitScores]) -> int:
    """Returns the number of files that were read, or known from the cache."""
    counts = count_files(scores)
    return counts.read + counts.cached


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


def _read_patiently(reading: ScoreReading, units: Sequence[Unit]) -> list[UnitScores]:
    for _ in range(RETRIES):
        try:
            return reading.read(units)
        except OSError:
            continue
    try:
        return reading.read(units)
    except OSError as error:
        raise cannot_be_read(error) from error
