"""Benchmark quality on Ray: parallel tasks read the trees, a final one computes the metrics."""

from collections.abc import Generator, Sequence
from typing import Any, cast

import ray
from ray import ObjectRef
from ray.exceptions import RayTaskError

from raylab.cluster.metrics import DIRECTORIES_LEFT, FILES, Meters
from raylab.cluster.session import require_kept, result_of, session
from raylab.config.jobs import QualityConfig
from raylab.evaluation import quality
from raylab.evaluation.quality import PartRead, cannot_be_read, read_units, watch
from raylab.quality.measure import count_files, measure
from raylab.quality.reading import UnitScores
from raylab.quality.record import TreeQuality
from raylab.quality.trees import ScoreTree, Unit
from raylab.runs.run import Run


def measure_on_cluster(trees: Sequence[ScoreTree], config: QualityConfig) -> TreeQuality:
    """Measures score trees in a Ray session of its own; raises DataError if they are unusable."""
    run = Run.planned(config, config.job)
    with session(config.cluster):
        require_kept(run)
        return measure_trees(trees, config, run.name)


def measure_trees(trees: Sequence[ScoreTree], config: QualityConfig, run: str) -> TreeQuality:
    """Measures score trees in the current Ray session.

    Args:
        trees: The tree of the benchmark, then those of its priors.
        config: Layout, bootstrap and refusals; its directories are not used.
        run: Name of the job's run, for Ray's metrics.

    Raises:
        DataError: The trees cannot be used.
    """
    groups = quality.parts_of(trees, int(ray.cluster_resources().get("CPU", 1)))
    meters = Meters(run)
    read = ray.remote(_read).options(num_cpus=1, num_returns=2, retry_exceptions=[OSError])
    pairs = cast(
        "list[list[ObjectRef[Any]]]", [read.remote(group, config, meters) for group in groups]
    )
    counts, parts = [count for count, _ in pairs], [scores for _, scores in pairs]
    try:
        watch(_ended(counts, groups, meters), sum(map(len, groups)))
    except BaseException:
        for count in counts:
            ray.cancel(count)
        raise
    return _get(ray.remote(measure).options(num_cpus=1).remote(trees, config, *parts))


def _read(
    units: Sequence[Unit], config: QualityConfig, meters: Meters
) -> tuple[int, list[UnitScores]]:
    """Reads some units as a Ray task; returns the number of their files, and the scores."""
    scores = read_units(units, config)
    files = count_files(scores)
    for outcome, count in files:
        meters.add(FILES, count, outcome=outcome)
    return files.read, scores


def _ended(
    counts: Sequence["ObjectRef[int]"], groups: Sequence[Sequence[Unit]], meters: Meters
) -> Generator[PartRead]:
    """Yields the parts as their tasks end, and nothing much where none does for 10 s."""
    units = {count: len(group) for count, group in zip(counts, groups, strict=True)}
    left, pending = sum(units.values()), list(counts)
    while pending:
        ready, pending = ray.wait(pending, timeout=quality.PROGRESS_SECONDS)
        for count in ready:
            files = _get(count)
            left -= units[count]
            meters.set(DIRECTORIES_LEFT, left)
            yield units[count], files
        if not ready:
            yield 0, 0


def _get(ref: "ObjectRef[Any]") -> Any:
    """Returns the result of a task; raises DataError for files that it could not read."""
    try:
        return result_of(ref, "reading scores")
    except RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise cannot_be_read(error.cause) from error
        raise
