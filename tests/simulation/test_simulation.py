"""The ledger in simulation: hundreds of schedules, and bugs that they would find."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.simulation.plants import PLANTS
from tests.simulation.schedule import failures_of, simulator

ROOT = Path(__file__).parents[2]
SCHEDULES = 300
"""All planted bugs are found among these; `make schedules` runs 10,000."""


@pytest.mark.slow
def test_no_schedule_breaks_an_invariant() -> None:
    failures = list(failures_of(range(SCHEDULES)))
    assert not failures, f"{len(failures)} schedules fail:\n" + "\n".join(map(str, failures[:10]))


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with ExitStack() as stack:
        for planted in PLANTS[bug]:
            stack.enter_context(planted)
        simulate = stack.enter_context(simulator())
        assert any(simulate(seed).problem for seed in range(SCHEDULES))


def test_a_seed_replays_its_schedule_in_another_process() -> None:
    def told(hashing: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--seed", "17"]
        environment = {**os.environ, "PYTHONHASHSEED": hashing}
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return ended.stdout

    assert told("1") == told("2")
