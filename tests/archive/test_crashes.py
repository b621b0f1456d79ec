import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from raylab.archive.store import Archive
from raylab.errors import ArchiveError
from tests.archive.postgres import PostgresServer
from tests.archive.rows import (
    add_calls,
    call_row,
    case_row,
    decision_row,
    execute,
    sha256,
    sqlalchemy_url,
    statuses,
)
from tests.archive.writer import write

ROOT = Path(__file__).parents[2]
SIZE = 5


def writers(location: str, batches: dict[str, int]) -> "list[subprocess.Popen[str]]":
    """Processes, by their name and batches, that start to make the archive and write at once."""
    module = [sys.executable, "-W", "error", "-m", "tests.archive.writer"]
    processes = [
        subprocess.Popen(
            [*module, location, "r", name, str(count), str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name, count in batches.items()
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def assert_whole(location: str, expected: set[str], at_least: bool = False) -> None:
    """The run has these cases, once each, in order, and a call for each but the shared."""
    with Archive.open(location) as archive:
        records = [current.case for current in archive.run("r").cases()]
        found = [record.case for record in records]
        assert len(found) == len(set(found))
        assert expected <= set(found) if at_least else expected == set(found)
        assert [record.sequence for record in records] == list(range(1, len(records) + 1))
        keys = {sha256(case) for case in expected if not case.startswith("shared")}
        assert keys <= {call.key for call in archive.calls_of([sha256("a system")])}


def cases_of(name: str, batches: int) -> set[str]:
    return {f"{name}{n}" for n in range(batches * SIZE)} | {f"shared{n}" for n in range(batches)}


def test_processes_write_one_run_at_once_and_a_killed_one_loses_nothing(archive_url: str):
    killed, other = writers(archive_url, {"a": 100_000, "b": 25})
    assert killed.stdout is not None
    for _ in range(7):
        killed.stdout.readline()
    killed.kill()
    acknowledged = 7 + len(killed.communicate()[0].splitlines())
    written, told = other.communicate(timeout=60)
    assert (other.returncode, written) == (0, "".join(f"{n}\n" for n in range(25)))
    # On a busy machine a writer may wait for the other long enough to say so; nothing else is told.
    assert all(line.endswith("; trying again") for line in told.splitlines()), told
    b = cases_of("b", 25)
    assert_whole(archive_url, cases_of("a", acknowledged) | b, at_least=True)
    assert execute(archive_url, "SELECT count(*) FROM archive") == [(1,)]
    more = acknowledged + 5
    assert list(write(archive_url, "r", "a", more, SIZE)) == list(range(more))
    assert_whole(archive_url, cases_of("a", more) | b)


def test_a_server_killed_and_started_again_is_waited_for(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
):
    location = postgres.create_schema("killed")
    written: SimpleQueue[int] = SimpleQueue()

    def write_all() -> None:
        for number in write(location, "r", "a", 60, SIZE):
            written.put(number)

    with Archive.open(location) as archive:
        assert archive.runs() == []
        writing = threading.Thread(target=write_all)
        writing.start()
        written.get(timeout=60)
        postgres.kill()
        assert written.qsize() < 50
        starting = threading.Timer(0.2, postgres.start)
        starting.start()
        assert [run.name for run in archive.runs()] == ["r"]
        starting.join()
        writing.join()
    assert "trying again" in caplog.text
    assert_whole(location, cases_of("a", 60))


OPERATIONS: dict[str, Callable[[Archive], object]] = {
    "start_run": lambda archive: archive.start_run("r", {}, {}),
    "add_prompts": lambda archive: archive.run("r").add_prompts({"h": ("n", "v", "t")}),
    "add_calls": lambda archive: add_calls(archive, [call_row("k2")]),
    "add_cases": lambda archive: archive.run("r").add_cases([case_row("d")]),
    "add_decision": lambda archive: archive.run("r").reviews().add(decision_row("c")),
    "calls_of": lambda archive: archive.calls_of([sha256("a system")]),
    "find_heads": lambda archive: archive.run("r").find_heads(["c"]),
    "cases": lambda archive: list(archive.run("r").cases()),
    "finish_run": lambda archive: archive.run("r").finish(),
}


def test_operations_outlive_connections_that_are_lost(postgres: PostgresServer):
    with Archive.open(postgres.create_schema("lost")) as archive:
        archive.start_run("r", {}, {})
        archive.run("r").add_cases([case_row("c", "human")])
        for operation in OPERATIONS.values():
            postgres.disconnect()
            operation(archive)
        assert statuses(archive) == {"c": "human", "d": "accepted"}
        assert len(list(archive.run("r").decisions())) == 1


def holding_the_run(location: str, until: threading.Event) -> threading.Thread:
    """A thread that holds the lock of the run until an event, once this returns."""
    held = threading.Event()

    def hold() -> None:
        engine = create_engine(sqlalchemy_url(location), isolation_level="AUTOCOMMIT")
        with contextlib.suppress(OperationalError), engine.connect() as connection:
            connection.execute(text("BEGIN" if "://" in location else "BEGIN IMMEDIATE"))
            connection.execute(text("UPDATE runs SET finished = finished"))
            held.set()
            until.wait(30)
            connection.execute(text("ROLLBACK"))
        engine.dispose()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    return thread


def test_a_lock_that_is_held_long_is_outlasted(
    archive_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("raylab.archive.database.LOCK_SECONDS", 0.1)
    with Archive.open(archive_url) as archive:
        archive.start_run("r", {}, {})
        free = threading.Event()
        holder = holding_the_run(archive_url, free)
        threading.Timer(0.5, free.set).start()
        archive.run("r").add_cases([case_row("c")])
        holder.join()
        assert statuses(archive) == {"c": "accepted"}
        assert "lock" in caplog.text and "trying again" in caplog.text


def test_a_connection_lost_within_a_statement_is_made_again(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
):
    location = postgres.create_schema("ended")
    with Archive.open(location) as archive:
        archive.start_run("r", {}, {})
        free = threading.Event()
        holder = holding_the_run(location, free)
        threading.Timer(0.3, postgres.disconnect).start()
        archive.run("r").add_cases([case_row("c")])
        free.set()
        holder.join()
        assert statuses(archive) == {"c": "accepted"}
        assert "trying again" in caplog.text


def test_a_server_that_stays_away_is_given_up(postgres: PostgresServer):
    location = postgres.create_schema("away")
    with Archive.open(location, patience=0.2) as archive:
        postgres.stop()
        try:
            begun = time.monotonic()
            with pytest.raises(ArchiveError, match=r"cannot be used for 0\.2 s .*PGPASSWORD"):
                archive.start_run("r", {}, {})
            assert 0.2 <= time.monotonic() - begun < 10
        finally:
            postgres.start()
        archive.start_run("r", {}, {})


WRITING = ["start_run", "add_prompts", "add_calls", "add_cases", "add_decision", "finish_run"]


def losing_one_acknowledgement(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Has the next transaction commit and not tell; it leaves its result in the list returned."""
    once = archive._database._once
    lost: list[object] = []

    def commit_and_lose(*given: Any) -> Any:
        result = once(*given)
        if not lost:
            lost.append(result)
            raise OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)
        return result

    monkeypatch.setattr(archive._database.dialect, "is_transient", lambda *given: True)
    monkeypatch.setattr(archive._database, "_once", commit_and_lose)
    return lost


def test_an_acknowledgement_that_was_lost_changes_nothing(
    archive_url: str, monkeypatch: pytest.MonkeyPatch
):
    with Archive.open(archive_url) as archive:
        archive.start_run("r", {}, {})
        archive.run("r").add_cases([case_row("c", "human")])

        def state() -> list[object]:
            calls = archive.calls_of([sha256("a system")])
            prompts = execute(archive_url, "SELECT * FROM prompts")
            return [archive.runs(), list(archive.run("r").cases()), prompts, calls]

        for name in WRITING:
            lost = losing_one_acknowledgement(archive, monkeypatch)
            OPERATIONS[name](archive)
            monkeypatch.undo()
            assert lost, name
            after = state()
            OPERATIONS[name](archive)
            assert state() == after, name
