"""Schedules one after another in this process, or shared among several."""

import gc
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from raylab.archive.store import Archive
from tests.simulation.edges import simulated
from tests.simulation.schedule import Outcome, run_schedule

BATCH = 25
MEMORY = Path("/dev/shm")


Simulator = Callable[[int], Outcome]
"""Runs the schedule of a seed in this process, in which nothing else may use raylab meanwhile."""


@contextmanager
def simulator() -> Generator[Simulator]:
    """Opens a simulator in this process."""
    template = make_template()
    with scratch_directory() as directory, simulated():
        yield partial(run_schedule, directory=directory, template=template)


def failures_of(seeds: range) -> Iterator[Outcome]:
    """Runs the schedules of some seeds in a process a core; yields those that fail."""
    template = make_template()
    batches = [seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)]
    gc.freeze()
    with scratch_directory() as directory:
        context, given = multiprocessing.get_context("fork"), (directory, template)
        with ProcessPoolExecutor(os.cpu_count(), context, _start, given) as pool:
            for failures in pool.map(_run, batches):
                yield from failures


@contextmanager
def scratch_directory() -> Generator[Path]:
    """Makes a directory for a while, in memory where the system has such a filesystem."""
    within = MEMORY if os.access(MEMORY, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="raylab-simulation-", dir=within))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def make_template() -> bytes:
    """Returns the file of an empty archive."""
    with scratch_directory() as directory:
        file = directory / "archive.db"
        Archive.open(file).close()
        return file.read_bytes()


_of_this_process: Simulator
_edges = simulated()


def _start(directory: Path, template: bytes) -> None:
    """Opens the simulator of a process that does nothing else."""
    global _of_this_process
    own = directory / str(os.getpid())
    own.mkdir()
    _edges.__enter__()
    gc.set_threshold(50_000, 20, 1000)
    _of_this_process = partial(run_schedule, directory=own, template=template)


def _run(seeds: range) -> list[Outcome]:
    return [ended for ended in map(_of_this_process, seeds) if ended.problem is not None]
