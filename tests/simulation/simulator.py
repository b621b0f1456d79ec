"""Schedules one after another in this process, or shared among several."""

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from raylab.label.archive.store import Archive
from tests.simulation.edges import simulated
from tests.simulation.schedule import Outcome, run_schedule

BATCH = 50
MEMORY = Path("/dev/shm")

Simulator = Callable[[int], Outcome]
"""Runs the schedule of a seed in this process, in which nothing else may use raylab meanwhile."""


@contextmanager
def simulator() -> Generator[Simulator]:
    """Opens a simulator in this process."""
    # In memory, where the system has such a filesystem.
    within = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="raylab-simulation-", dir=within) as scratch:
        directory = Path(scratch)
        file = directory / "template.db"
        Archive.open(file).close()
        with simulated():
            yield partial(run_schedule, directory=directory, template=file.read_bytes())


def failures_of(seeds: range) -> Iterator[Outcome]:
    """Runs the schedules of some seeds in a process a core; yields those that fail."""
    batches = [seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        for failures in pool.map(_run, batches):
            yield from failures


def _run(seeds: range) -> list[Outcome]:
    with simulator() as run:
        return [ended for ended in map(run, seeds) if ended.problem is not None]
