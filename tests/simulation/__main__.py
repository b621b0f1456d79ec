"""Runs schedules of the simulation, and replays one.

    python -m tests.simulation --schedules 10000 --jobs 2
    python -m tests.simulation --seed 17
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from raylab.archive.store import Archive
from tests.simulation.disk import remove_directory, scratch_directory
from tests.simulation.edges import simulated
from tests.simulation.schedule import Failure, run_schedule

BATCH = 50


def run_schedules(seeds: range) -> list[Failure]:
    """Runs the schedules of some seeds in this process; returns the failures."""
    directory = scratch_directory()
    try:
        template = make_template(directory)
        with simulated():
            found = [run_schedule(seed, directory, template) for seed in seeds]
        return [failure for failure in found if failure is not None]
    finally:
        remove_directory(directory)


def make_template(directory: Path) -> bytes:
    """Returns the file of an empty archive."""
    file = directory / "template.db"
    Archive.open(file).close()
    return file.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, help="replay this one schedule and print its trace")
    given = parser.parse_args()
    if given.seed is not None:
        failures = run_schedules(range(given.seed, given.seed + 1))
        for failure in failures:
            print(*failure.trace, failure.problem, sep="\n")
        return bool(failures)
    start = time.perf_counter()
    last = given.first_seed + given.schedules
    batches = [
        range(seed, min(seed + BATCH, last)) for seed in range(given.first_seed, last, BATCH)
    ]
    count = 0
    for failure in _failures(batches, given.jobs):
        count += 1
        if count < 20:
            print(f"{failure.problem}\n  python -m tests.simulation --seed {failure.seed}")
    seconds = time.perf_counter() - start
    print(f"{given.schedules:,} schedules in {seconds:.0f} s, {count} failed")
    return bool(count)


def _failures(batches: list[range], jobs: int) -> Iterator[Failure]:
    if jobs == 1:
        for batch in batches:
            yield from run_schedules(batch)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for failures in pool.imap_unordered(run_schedules, batches):
            yield from failures


if __name__ == "__main__":
    sys.exit(main())
