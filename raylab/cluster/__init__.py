"""Placement on a Ray cluster; with raylab.benchmarks the only package that imports ray."""

import os

# Read in this process alone, when ray is imported. More idle actors than CPUs are expected, and
# Ray Train's watcher of preemptions is not restarted, which Ray tells as an error of each training.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    "PYTHON worker processes have been started|class name: 'PreemptionWatcher'",
)

from collections.abc import Generator
from contextlib import contextmanager

from raylab.config.base import ClusterConfig
from raylab.runs.run import Run
from raylab.workers import Workers, WorkersHere


@contextmanager
def workers_for(cluster: ClusterConfig, run: Run) -> Generator[Workers]:
    """Returns the workers that a configuration asks for: this process, or Ray while in use.

    Raises:
        ConfigError, RunError: As `raylab.cluster.session.session`.
    """
    if cluster.is_this_process:
        yield WorkersHere(cluster)
        return
    # Ray takes a second to import.
    from raylab.cluster.session import session
    from raylab.cluster.workers import RayWorkers

    with session(cluster, run):
        yield RayWorkers(cluster, run.name)
