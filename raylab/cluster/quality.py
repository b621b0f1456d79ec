"""Benchmark quality on Ray: parallel tasks read the trees, a final one computes the metrics."""

import time
from collections.abc import Sequence
from typing import Any, cast

import ray
from ray import ObjectRef
from ray.exceptions import RayTaskError

from raylab.cluster.metrics import DIRECTORIES_LEFT, FILES, Meters
from raylab.cluster.session import result_of, session
from raylab.config.jobs import QualityConfig
from raylab.errors import DataError
from raylab.log import log_line
from raylab.quality.measure import count_files, measure_groups
from raylab.quality.reading import UnitScores, read_units, task_groups
from raylab.quality.record import QUALITY, Quality, TreeQuality
from raylab.quality.trees import ScoreTree, Unit, find_trees
from raylab.report.quality import log_quality
from raylab.runs.eval_logs import ScoreChoice
from raylab.runs.run import Run

PROGRESS_SECONDS = 10.0


def run_quality(config: QualityConfig, trees: Sequence[ScoreTree]) -> None:
    """Measures the score trees of `config`, prints the metrics and writes `quality.json`.

    Args:
        config: Configuration of the job.
        trees: As `configured_trees` finds them.

    Raises:
        RaylabError: The measurement failed for a reason that the user can act on.
    """
    run = Run.open(config, config.job)
    with session(config.cluster, run):
        quality = _measure(trees, config, config.storage, run.name)
    run.write_record(Quality.of(quality))
    log_quality(quality)
    log_line(f"{run / QUALITY}", uri=str(run / QUALITY))
    run.finish()


def measure_trees(
    root: str, priors: Sequence[str], config: QualityConfig, storage: str, run: str
) -> TreeQuality:
    """Measures a score tree in the current Ray session.

    Args:
        root: Path or URI with one directory per model.
        priors: The same for earlier benchmarks.
        config: Layout, bootstrap, cache and refusals; its directories are not used.
        storage: Path or URI of the storage with the score cache.
        run: Name of the job's run, for Ray's metrics.

    Raises:
        DataError: The trees cannot be used.
    """
    return _measure(find_trees(root, priors, config.layout), config, storage, run)


def _measure(
    trees: Sequence[ScoreTree], config: QualityConfig, storage: str, run: str
) -> TreeQuality:
    for tree in trees:
        message = f"{tree.location}: layout {tree.layout}, {tree.reason}"
        log_line(message, tree=tree.location, layout=tree.layout)
    cpus = int(ray.cluster_resources().get("CPU", 1))
    groups = task_groups([unit for tree in trees for unit in tree.units], cpus)
    cache, meters = storage if config.cache else None, Meters(run)
    settings = config.quality_eval_cfg
    choice = ScoreChoice(settings.metric, settings.scorer)
    read = ray.remote(_read).options(num_cpus=1, num_returns=2, retry_exceptions=[OSError])
    pairs = cast(
        "list[list[ObjectRef[Any]]]",
        [read.remote(group, cache, config.bootstrap, choice, meters) for group in groups],
    )
    counts, parts = [count for count, _ in pairs], [scores for _, scores in pairs]
    try:
        _watch(counts, groups, meters)
    except BaseException:
        for count in counts:
            ray.cancel(count)
        raise
    return _get(ray.remote(measure_groups).options(num_cpus=1).remote(trees, config, *parts))


def _read(
    units: Sequence[Unit],
    cache: str | None,
    replicates: int,
    choice: ScoreChoice,
    meters: Meters,
) -> tuple[int, list[UnitScores]]:
    """Reads some units as a Ray task; returns the number of their files, and the scores."""
    scores = read_units(units, cache, replicates, choice)
    counts = count_files(scores)
    for outcome, count in counts:
        meters.add(FILES, count, outcome=outcome)
    return counts.read + counts.cached, scores


def _watch(
    counts: Sequence["ObjectRef[int]"], groups: Sequence[Sequence[Unit]], meters: Meters
) -> None:
    """Waits for all reading tasks, with a line of progress every 10 s."""
    units = {count: len(group) for count, group in zip(counts, groups, strict=True)}
    total, done, files = sum(units.values()), 0, 0
    start = shown = time.monotonic()
    pending = list(counts)
    while pending:
        ready, pending = ray.wait(pending, timeout=PROGRESS_SECONDS)
        for count in ready:
            files += _get(count)
            done += units[count]
        meters.set(DIRECTORIES_LEFT, total - done)
        now = time.monotonic()
        if pending and now - shown >= PROGRESS_SECONDS:
            left = (now - start) * (total - done) / done if done else None
            eta = "" if left is None else f", ETA {left:.0f} s"
            message = f"{done}/{total} directories, {files} files read{eta}"
            log_line(message, done=done, total=total, files=files, eta_seconds=left)
            shown = now


def _get(ref: "ObjectRef[Any]") -> Any:
    """Returns the result of a task; raises DataError for files that it could not read."""
    try:
        return result_of(ref, "reading scores")
    except RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise DataError(f"scores cannot be read, after retries: {error.cause}") from error
        raise
