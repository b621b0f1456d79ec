"""Processes that start a run of one name at once: one of them gets it."""

import multiprocessing
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from unittest.mock import Mock

import pytest

from raylab.arc.config.jobs import TrainConfig
from raylab.core.errors import OwnerError, RunError
from raylab.core.files import Place
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RECORD
from tests.core.runs.test_run import train

SPAWN = multiprocessing.get_context("spawn")
SECONDS = 120.0


def race(storage: str, races: int, start: Barrier, results: "Queue[list[str]]") -> None:
    """Starts runs as soon as the other process does; puts the id of each, or its error."""
    ends: list[str] = []
    for number in range(races):
        config = TrainConfig(storage=storage, name=f"run{number}")
        start.wait(SECONDS)
        try:
            ends.append(Run.open(config).id or "")
        except RunError as error:
            ends.append(str(error))
    results.put(ends)


def test_of_two_processes_one_gets_a_name(tmp_path: Path) -> None:
    start, results = SPAWN.Barrier(2), SPAWN.Queue()
    processes = [
        SPAWN.Process(target=race, args=(str(tmp_path), 8, start, results)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    ends = [results.get(timeout=SECONDS) for _ in processes]
    for process in processes:
        process.join(SECONDS)
    for number, both in enumerate(zip(*ends, strict=True)):
        run = Run.at(tmp_path / f"run{number}")
        refused = [end for end in both if "exists, started" in end and "resume=true" in end]
        assert len(refused) == 1 and run.id in both, both
        assert run.names() == [RECORD]


def hold(storage: str, results: "Queue[str | None]") -> None:
    """Opens a run for this process alone, and stays in it."""
    with Run.open_alone(train(storage, "name=night")) as run:
        results.put(run.id)
        time.sleep(SECONDS)


def test_a_run_is_of_one_process_until_that_ends_or_is_killed(tmp_path: Path) -> None:
    results: Queue[str | None] = SPAWN.Queue()
    holder = SPAWN.Process(target=hold, args=(str(tmp_path), results))
    holder.start()
    run_id = results.get(timeout=SECONDS)
    resume = train(tmp_path, "name=night", "resume=true")
    with pytest.raises(OwnerError, match=r"run .*night is worked on by another process: wait"):
        with Run.open_alone(resume):
            raise AssertionError("two processes are in one run")
    assert Run.at(tmp_path / "night").record.resumed == ()
    holder.kill()
    holder.join(SECONDS)
    for _ in range(2):
        with Run.open_alone(resume) as run:
            assert run.id == run_id


def test_without_links_a_file_is_created_once_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.link", Mock(side_effect=PermissionError(1, "not permitted")))
    place = Place.at(tmp_path / "new" / "file")
    assert [place.create(b"first"), place.create(b"second")] == [True, False]
    assert place.read() == b"first" and place.parent.names() == ["file"]
