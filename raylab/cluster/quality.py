"""Benchmark quality on Ray: trees read in parallel tasks, the metrics computed in a final one."""

import math
import os
import time
from collections.abc import Sequence
from typing import Any, cast

import ray
from ray import ObjectRef
from ray.exceptions import RayTaskError

from raylab.cluster.session import result_of, session
from raylab.config import QualityConfig
from raylab.entrypoint import console
from raylab.errors import ConfigError, DataError
from raylab.quality.measure import Quality, log_lines, measure_groups
from raylab.quality.trees import ScoreTree, Unit, find_trees, groups_of, read_group
from raylab.report.tables import quality_table
from raylab.runs import Run

QUALITY = "quality.json"
BASE_VARIABLE = "BASE_ARTIFACTS_DIR"
TASKS_PER_CPU = 4
"""Enough for an even load, few enough that starting them costs nothing."""
UNITS_PER_TASK = 64
"""At most, so that progress is seen on large trees."""
PROGRESS_SECONDS = 10.0


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
        quality = _measure(trees, config, config.storage)
    run.write_json(QUALITY, quality)
    print_quality(quality)
    print(f"{run.uri}/{QUALITY}")
    run.finish()


def measure_trees(root: str, priors: Sequence[str], config: QualityConfig, storage: str) -> Quality:
    """Measure a score tree in the current Ray session.

    Args:
        root: path or URI with one directory a model.
        priors: the same for earlier benchmarks.
        config: layout, bootstrap, cache and what to refuse; its directories are not looked at.
        storage: path or URI in which the score cache lies.

    Returns:
        What `raylab.quality.measure.measure` says.

    Raises:
        DataError: the trees cannot be used.
    """
    return _measure(find_trees(root, priors, config.layout), config, storage)


def _measure(trees: Sequence[ScoreTree], config: QualityConfig, storage: str) -> Quality:
    for tree in trees:
        print(f"{tree.location}: layout {tree.layout}, {tree.reason}", flush=True)
    units = [unit for tree in trees for unit in tree.units]
    groups = groups_of(units, _tasks(len(units)))
    cache = storage if config.cache else None
    read = ray.remote(read_group).options(num_cpus=1, num_returns=2, retry_exceptions=[OSError])
    pairs = cast(
        "list[list[ObjectRef[Any]]]", [read.remote(g, cache, config.bootstrap) for g in groups]
    )
    counts, parts = [count for count, _ in pairs], [scores for _, scores in pairs]
    try:
        _watch(counts, groups)
    except BaseException:
        for count in counts:
            ray.cancel(count)
        raise
    return _get(ray.remote(measure_groups).options(num_cpus=1).remote(trees, config, *parts))


def print_quality(quality: Quality) -> None:
    """Print the lines that users search for, the warnings, and the metrics as a table."""
    for line in log_lines(quality):
        print(line)
    for warning in quality["warnings"]:
        print(f"warning: {warning}")
    files = quality["files"]
    print(f"{files['read']} files read, {files['cached']} known, {files['skipped']} skipped")
    for skipped in quality["skipped"][:5]:
        print(f"  {skipped['path']}: {skipped['reason']}")
    if files["skipped"] > 5:
        print(f"  more of them in {QUALITY}")
    console().print(quality_table(quality))


def _root_of_run(config: QualityConfig) -> str:
    base = os.environ.get(BASE_VARIABLE)
    if not base or config.run_id is None:
        missing = "run_id" if base else f"the environment variable {BASE_VARIABLE}"
        raise ConfigError(
            f"where are the scores? {missing} is not set: set quality_eval_cfg.scores_root_dir, or "
            f"both {BASE_VARIABLE} and run_id for "
            f"{{{BASE_VARIABLE}}}/{config.quality_eval_cfg.scores_subdir}/{{run_id}}"
        )
    root = f"{base.rstrip('/')}/{config.quality_eval_cfg.scores_subdir}/{config.run_id}"
    return root if "://" in root else os.path.abspath(root)


def _tasks(units: int) -> int:
    cpus = int(ray.cluster_resources().get("CPU", 1))
    return max(TASKS_PER_CPU * cpus, math.ceil(units / UNITS_PER_TASK))


def _watch(counts: Sequence["ObjectRef[int]"], groups: Sequence[Sequence[Unit]]) -> None:
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
        now = time.monotonic()
        if pending and now - shown >= PROGRESS_SECONDS:
            left = f", ETA {(now - start) * (total - done) / done:.0f} s" if done else ""
            print(f"{done}/{total} directories, {files} files read{left}", flush=True)
            shown = now


def _get(ref: "ObjectRef[Any]") -> Any:
    """The result of a task; files that could not be read are an error of the data."""
    try:
        return result_of(ref, "reading scores")
    except RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise DataError(f"scores cannot be read, after retries: {error.cause}") from error
        raise
