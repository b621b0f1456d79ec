"""Joins or starts a Ray cluster, and spreads calls over it."""

from collections.abc import Generator
from contextlib import contextmanager

from raylab.core.config.base import ClusterConfig
from raylab.core.runs.run import Run
from raylab.core.workers import Workers


@contextmanager
def workers_for(cluster: ClusterConfig, run: Run) -> Generator[Workers]:
    """Yields the workers of a configuration: this process, or tasks of a Ray session."""
    if cluster.is_this_process:
        yield Workers(cluster)
        return
    # Ray takes a second to import.
    from raylab.core.on_ray.session import session
    from raylab.core.on_ray.workers import RayWorkers

    with session(cluster, run):
        yield RayWorkers(cluster)
