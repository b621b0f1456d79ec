import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
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
    cases_of,
    decision_row,
    execute,
    sha256,
    sqlalchemy_url,
    statuses,
)

ROOT = Path(__file__).parents[2]
SIZE = 5


def write(location: str, name: str, batches: int) -> Iterator[int]:
    """Writes batches into the run `r`, and yields the number of each when it is in.

    The cases are NAME0, NAME1 ... and, in every batch, one `shared` that all writers write.
    """
    with Archive.open(location) as archive:
        archive.start_run("r", {}, {})
        for number in range(batches):
            cases = [case_row(f"{name}{number * SIZE + index}") for index in range(SIZE)]
            add_calls(archive, [call_row(case.case) for case in cases])
            archive.run("r").add_cases([*cases, case_row(f"shared{number}", written_by=name)])
            yield number


def assert_whole(location: str, expected: set[str], at_least: bool = False) -> None:
    """The run has these cases, once each, in order, and a call for each but the shared."""
    with Archive.open(location) as archive:
        cases = cases_of(archive)
        names = {case.case for case in cases}
        assert len(names) == len(cases)
        assert expected <= names if at_least else expected == names
        assert [case.sequence for case in cases] == list(range(1, len(cases) + 1))
        keys = {sha256(case) for case in expected if not case.startswith("shared")}
        assert keys <= {call.key for call in archive.calls_of([sha256("a system")])}


def written_by(name: str, batches: int) -> set[str]:
    return {f"{name}{n}" for n in range(batches * SIZE)} | {f"shared{n}" for n in range(batches)}


def test_processes_write_one_run_at_once_and_a_killed_one_loses_nothing(archive_url: str):
    command = [sys.executable, "-W", "error", "-m", "tests.archive.test_crashes", archive_url]
    killed, other = (
        subprocess.Popen([*command, name, batches], stdout=-1, stderr=-1, text=True, cwd=ROOT)
        for name, batches in (("a", "100000"), ("b", "25"))
    )
    assert killed.stdout is not None
    for _ in range(7):
        killed.stdout.readline()
    killed.kill()
    acknowledged = 7 + len(killed.communicate()[0].splitlines())
    written, told = other.communicate(timeout=60)
    assert (other.returncode, written) == (0, "".join(f"{n}\n" for n in range(25)))
    # On a busy machine a writer may wait for the other long enough to say so; nothing else is told.
    assert all(line.endswith("; trying again") for line in told.splitlines()), told
    assert_whole(archive_url, written_by("a", acknowledged) | written_by("b", 25), at_least=True)
    assert execute(archive_url, "SELECT count(*) FROM archive") == [(1,)]
    more = acknowledged + 5
    assert list(write(archive_url, "a", more)) == list(range(more))
    assert_whole(archive_url, written_by("a", more) | written_by("b", 25))


def test_a_server_killed_and_started_again_is_waited_for(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
):
    location = postgres.create_schema("killed")
    written: SimpleQueue[int] = SimpleQueue()

    def write_all() -> None:
        for number in write(location, "a", 60):
            written.put(number)

    with Archive.open(location) as archive:
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
    assert_whole(location, written_by("a", 60))


WRITING: dict[str, Callable[[Archive], object]] = {
    "start_run": lambda archive: archive.start_run("r", {}, {}),
    "add_prompts": lambda archive: archive.run("r").add_prompts({"h": ("n", "v", "t")}),
    "add_calls": lambda archive: add_calls(archive, [call_row("k2")]),
    "add_cases": lambda archive: archive.run("r").add_cases([case_row("d")]),
    "add_decision": lambda archive: archive.run("r").reviews().add(decision_row("c")),
    "finish_run": lambda archive: archive.run("r").finish(),
}


def state(archive: Archive, location: str) -> list[object]:
    calls = archive.calls_of([sha256("a system")])
    prompts = execute(location, "SELECT * FROM prompts")
    return [archive.runs(), list(archive.run("r").cases()), prompts, calls]


@contextmanager
def holding_the_run(location: str) -> Generator[threading.Event]:
    """Holds the lock of the run until an event that it yields."""
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        engine = create_engine(sqlalchemy_url(location), isolation_level="AUTOCOMMIT")
        with contextlib.suppress(OperationalError), engine.connect() as connection:
            connection.execute(text("BEGIN" if "://" in location else "BEGIN IMMEDIATE"))
            connection.execute(text("UPDATE runs SET finished = finished"))
            held.set()
            free.wait(30)
            connection.execute(text("ROLLBACK"))
        engine.dispose()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    yield free
    free.set()
    thread.join()


def test_a_lock_that_is_held_long_is_outlasted_or_given_up(
    archive_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("raylab.archive.database.LOCK_SECONDS", 0.1)
    with Archive.open(archive_url) as archive, Archive.open(archive_url, patience=0.3) as hasty:
        archive.start_run("r", {}, {})
        with holding_the_run(archive_url) as free:
            with pytest.raises(ArchiveError, match=r"cannot be used for 0\.3 s \(.*lock"):
                hasty.run("r").add_cases([case_row("c")])
            assert statuses(hasty) == {}
            threading.Timer(0.5, free.set).start()
            archive.run("r").add_cases([case_row("c")])
        assert statuses(archive) == {"c": "accepted"} and "trying again" in caplog.text


def test_a_connection_lost_within_a_statement_is_made_again(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
):
    location = postgres.create_schema("ended")
    with Archive.open(location) as archive:
        archive.start_run("r", {}, {})
        with holding_the_run(location):
            threading.Timer(0.3, postgres.disconnect).start()
            archive.run("r").add_cases([case_row("c")])
        assert statuses(archive) == {"c": "accepted"} and "trying again" in caplog.text


def test_an_owner_whose_server_restarted_loses_its_run_to_the_next(
    postgres: PostgresServer,
) -> None:
    with Archive.open(postgres.create_schema("unlocked")) as archive:
        archive.start_run("r", {}, {})
        first = archive.run("r").own()
        assert first.take()
        postgres.disconnect()
        with archive.run("r").own() as second:
            first.end()
            (row,) = archive._database.read(
                lambda connection: connection.exec_driver_sql("SELECT owner FROM runs").all()
            )
            assert row.owner == second.token


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
        for name, operation in WRITING.items():
            lost = losing_one_acknowledgement(archive, monkeypatch)
            operation(archive)
            monkeypatch.undo()
            assert lost, name
            after = state(archive, archive_url)
            operation(archive)
            assert state(archive, archive_url) == after, name


if __name__ == "__main__":
    for done in write(sys.argv[1], sys.argv[2], int(sys.argv[3])):
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()
