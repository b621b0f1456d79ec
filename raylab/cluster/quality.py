"""Benchmark quality on Ray: trees read in parallel tasks, the metrics computed in a final one."""

import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any, cast

import ray
from ray import ObjectRef
from ray.exceptions import RayTaskError

from raylab.cluster.metrics import DIRECTORIES_LEFT, FILES, Meters
from raylab.cluster.session import result_of, session
from raylab.config.base import absolute_location
from raylab.config.jobs import QualityConfig
from raylab.errors import ConfigError, DataError
from raylab.files import Place
from raylab.log import log_line, log_tables
from raylab.quality.measure import Quality, log_lines, measure_groups
from raylab.quality.trees import ScoreTree, Unit, UnitScores, find_trees, groups_of, read_units
from raylab.report.tables import quality_table
from raylab.runs.run import QUALITY, Run

BASE_VARIABLE = "BASE_ARTIFACTS_DIR"
TASKS_PER_CPU = 4
"""Enough for an even load, few enough that starting them costs nothing."""
UNITS_PER_TASK = 64
"""At most, so that progress is seen on large trees."""
PROGRESS_SECONDS = 10.0
OUTCOMES = ("read", "cached", "skipped")


def run_quality(config: QualityConfig) -> None:
    """Measure the score tree of `config`, print the metrics and write `quality.json`.

    Raises:
        RaylabError: what a user can act on, with the way out.
    """
    cfg = config.quality_eval_cfg
    root = cfg.scores_root_dir or _root_of_run(config)
    trees = find_trees(root, cfg.prior_datasets, config.layout)
    run = Run.open(config, config.job)
    with session(config.cluster, run):
        quality = _measure(trees, config, config.storage, run.name)
    run.write_json(QUALITY, quality)
    tell_quality(quality)
    log_line(f"{run / QUALITY}", uri=str(run / QUALITY))
    run.finish()


def measure_trees(
    root: str, priors: Sequence[str], config: QualityConfig, storage: str, run: str
) -> Quality:
    """Measure a score tree in the current Ray session.

    Args:
        root: path or URI with one directory a model.
        priors: the same for earlier benchmarks.
        config: layout, bootstrap, cache and what to refuse; its directories are not looked at.
        storage: path or URI in which the score cache lies.
        run: name of the job's run, for Ray's metrics.

    Returns:
        What `raylab.quality.measure.measure` says.

    Raises:
        DataError: the trees cannot be used.
    """
    return _measure(find_trees(root, priors, config.layout), config, storage, run)


def _measure(trees: Sequence[ScoreTree], config: QualityConfig, storage: str, run: str) -> Quality:
    for tree in trees:
        message = f"{tree.location}: layout {tree.layout}, {tree.reason}"
        log_line(message, tree=tree.location, layout=tree.layout)
    units = [unit for tree in trees for unit in tree.units]
    groups = groups_of(units, _tasks(len(units)))
    cache, meters = storage if config.cache else None, Meters(run)
    read = ray.remote(_read).options(num_cpus=1, num_returns=2, retry_exceptions=[OSError])
    pairs = cast(
        "list[list[ObjectRef[Any]]]",
        [read.remote(group, cache, config.bootstrap, meters) for group in groups],
    )
    counts, parts = [count for count, _ in pairs], [scores for _, scores in pairs]
    try:
        _watch(counts, groups, meters)
    except BaseException:
        for count in counts:
            ray.cancel(count)
        raise
    return _get(ray.remote(measure_groups).options(num_cpus=1).remote(trees, config, *parts))


def tell_quality(quality: Quality) -> None:
    """Tell the lines that users search for, the warnings, and the metrics as a table."""
    for line in log_lines(quality):
        log_line(line)
    for warning in quality["warnings"]:
        log_line(f"warning: {warning}", logging.WARNING)
    files = quality["files"]
    message = f"{files['read']} files read, {files['cached']} known, {files['skipped']} skipped"
    log_line(message, files=files)
    for skipped in quality["skipped"][:5]:
        log_line(f"  {skipped['path']}: {skipped['reason']}", **skipped)
    if files["skipped"] > 5:
        log_line(f"  more of them in {QUALITY}")
    told = (*quality["intervals"], "intervals", "reasons", "models")
    log_tables(quality_table(quality), **{key: quality[key] for key in told})


def _root_of_run(config: QualityConfig) -> str:
    base = os.environ.get(BASE_VARIABLE)
    if not base or config.run_id is None:
        missing = "run_id" if base else f"the environment variable {BASE_VARIABLE}"
        raise ConfigError(
            f"where are the scores? {missing} is not set: set quality_eval_cfg.scores_root_dir, or "
            f"both {BASE_VARIABLE} and run_id for "
            f"{{{BASE_VARIABLE}}}/{config.quality_eval_cfg.scores_subdir}/{{run_id}}"
        )
    try:
        root = Place.at(absolute_location(base))
    except ValueError as error:
        raise ConfigError(f"{BASE_VARIABLE}: {error}") from error
    return str(root / config.quality_eval_cfg.scores_subdir / config.run_id)


def _tasks(units: int) -> int:
    cpus = int(ray.cluster_resources().get("CPU", 1))
    return max(TASKS_PER_CPU * cpus, math.ceil(units / UNITS_PER_TASK))


def _read(
    units: Sequence[Unit], cache: str | None, replicates: int, meters: Meters
) -> tuple[int, list[UnitScores]]:
    """What some files came to, and how many they are, as a Ray task."""
    scores = read_units(units, cache, replicates)
    counts = {name: sum(getattr(unit, name) for unit in scores) for name in OUTCOMES}
    for name, count in counts.items():
        meters.add(FILES, count, outcome=name)
    return counts["read"] + counts["cached"], scores


def _watch(
    counts: Sequence["ObjectRef[int]"], groups: Sequence[Sequence[Unit]], meters: Meters
) -> None:
    """Wait for all readings; a line of progress every 10 s."""
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
    """The result of a task; files that could not be read are an error of the data."""
    try:
        return result_of(ref, "reading scores")
    except RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise DataError(f"scores cannot be read, after retries: {error.cause}") from error
        raise
