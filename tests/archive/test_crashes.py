import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from raylab.archive.store import Archive
from raylab.errors import ArchiveError
from tests.archive.postgres import PostgresServer
from tests.archive.rows import call_row, case_row, decision_row, sha256, sqlalchemy_url

ROOT = Path(__file__).parents[2]
SIZE = 5


def writer(location: str, name: str, batches: int) -> "subprocess.Popen[str]":
    module = [sys.executable, "-W", "error", "-m", "tests.archive.writer"]
    arguments = [location, "r", name, str(batches), str(SIZE)]
    return subprocess.Popen(
        [*module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def assert_whole(location: str, expected: set[str], at_least: bool = False) -> None:
    """The run has these cases, once each, in one chain, and a call for each but the shared."""
    with Archive.open(location) as archive:
        records = list(archive.cases("r"))
        found = [record.case for record in records]
        assert len(found) == len(set(found))
        assert expected <= set(found) if at_least else expected == set(found)
        assert [record.sequence for record in records] == list(range(1, len(records) + 1))
        assert archive.verify() == []
        keys = {sha256(case) for case in expected if not case.startswith("shared")}
        assert keys <= {call.key for call in archive.calls_of([sha256("a system")])}


def cases_of(name: str, batches: int) -> set[str]:
    return {f"{name}{n}" for n in range(batches * SIZE)} | {f"shared{n}" for n in range(batches)}


def test_processes_that_write_one_run_neither_fork_its_chain_nor_lose_a_case(archive_url: str):
    writers = [writer(archive_url, name, 25) for name in "ab"]
    told = [process.communicate(timeout=60) for process in writers]
    assert told == [("".join(f"{n}\n" for n in range(25)), "")] * 2
    assert_whole(archive_url, cases_of("a", 25) | cases_of("b", 25))


def test_a_killed_writer_loses_nothing_that_was_acknowledged(archive_url: str):
    process = writer(archive_url, "a", 100_000)
    assert process.stdout is not None
    for _ in range(7):
        process.stdout.readline()
    process.kill()
    acknowledged = 7 + len(process.communicate()[0].splitlines())
    assert_whole(archive_url, cases_of("a", acknowledged), at_least=True)
    more = acknowledged + 5
    assert writer(archive_url, "a", more).communicate(timeout=60)[1] == ""
    assert_whole(archive_url, cases_of("a", more))


def test_a_server_killed_and_started_again_is_waited_for(postgres: PostgresServer):
    location = postgres.create_schema("killed")
    process = writer(location, "a", 60)
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(2):
        postgres.kill()
        time.sleep(0.3)
        postgres.start()
        process.stdout.readline()
    told, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and told.splitlines()[-1] == "59"
    assert "trying again" in errors
    assert_whole(location, cases_of("a", 60))


OPERATIONS: dict[str, Callable[[Archive], object]] = {
    "start_run": lambda archive: archive.start_run("r", {}, {}),
    "add_prompts": lambda archive: archive.add_prompts({"h": ("n", "v", "t")}),
    "add_calls": lambda archive: archive.add_calls([call_row("k2")]),
    "add_cases": lambda archive: archive.add_cases("r", [case_row("d")]),
    "add_decision": lambda archive: archive.add_decision("r", decision_row("c")),
    "calls_of": lambda archive: archive.calls_of([sha256("a system")]),
    "known": lambda archive: archive.known("r", ["c"]),
    "cases": lambda archive: list(archive.cases("r")),
    "verify": lambda archive: archive.verify(),
    "finish_run": lambda archive: archive.finish_run("r"),
}


@pytest.mark.parametrize("down", [False, True], ids=["connections lost", "server killed"])
def test_operations_outlive_a_restart_of_the_server(postgres: PostgresServer, down: bool):
    location = postgres.create_schema(f"restarted{down}")
    with Archive.open(location) as archive:
        archive.start_run("r", {}, {})
        archive.add_cases("r", [case_row("c", "human")])
        for name, operation in OPERATIONS.items():
            if not down:
                postgres.disconnect()
                operation(archive)
            elif name in ("add_cases", "calls_of"):
                postgres.kill()
                starting = threading.Timer(0.2, postgres.start)
                starting.start()
                operation(archive)
                starting.join()
            else:
                operation(archive)
        assert archive.verify() == []
        assert archive.known("r", ["c", "d"]) == {"c": "human", "d": "accepted"}
        assert len(list(archive.decisions("r"))) == 1


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
        archive.add_cases("r", [case_row("c")])
        holder.join()
        assert archive.known("r", ["c"]) == {"c": "accepted"}
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
        archive.add_cases("r", [case_row("c")])
        free.set()
        holder.join()
        assert archive.known("r", ["c"]) == {"c": "accepted"}
        assert "trying again" in caplog.text


def test_a_server_that_stays_away_is_given_up(postgres: PostgresServer):
    location = postgres.create_schema("away")
    with Archive.open(location, patience=0.5) as archive:
        postgres.stop()
        try:
            begun = time.monotonic()
            with pytest.raises(ArchiveError, match=r"cannot be reached for 0\.5 s .*PGPASSWORD"):
                archive.start_run("r", {}, {})
            assert 0.5 <= time.monotonic() - begun < 10
        finally:
            postgres.start()
        archive.start_run("r", {}, {})


@pytest.mark.parametrize(
    "name", ["start_run", "add_prompts", "add_calls", "add_cases", "add_decision", "finish_run"]
)
def test_an_acknowledgement_that_was_lost_changes_nothing(
    archive_url: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    with Archive.open(archive_url) as archive:
        archive.start_run("r", {}, {})
        archive.add_cases("r", [case_row("c", "human")])
        once = archive._database._once
        lost: list[object] = []

        def commit_and_lose(*given: Any) -> Any:
            result = once(*given)
            if not lost:
                lost.append(result)
                error = OperationalError(
                    "COMMIT", {}, Exception("gone"), connection_invalidated=True
                )
                raise error
            return result

        monkeypatch.setattr(archive._database, "_transient", lambda error: True)
        monkeypatch.setattr(archive._database, "_once", commit_and_lose)
        OPERATIONS[name](archive)
        monkeypatch.undo()
        assert lost
        after = (archive.runs(), list(archive.current_cases("r")), archive.prompts())
        calls = archive.calls_of([sha256("a system")])
        if name != "start_run":
            OPERATIONS[name](archive)
        assert (archive.runs(), list(archive.current_cases("r")), archive.prompts()) == after
        assert archive.calls_of([sha256("a system")]) == calls
        assert archive.verify() == []
