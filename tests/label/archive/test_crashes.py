import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from raylab.core.errors import ArchiveError
from raylab.label.archive.store import Archive
from tests.label.archive.postgres import PostgresServer
from tests.label.archive.rows import (
    add_calls,
    call_row,
    case_row,
    cases_of,
    decision_row,
    execute,
    sha256,
    statuses,
)

ROOT = Path(__file__).parents[3]
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
        assert keys <= {call.reply.key for call in archive.calls_of([sha256("a system")])}


def written_by(name: str, batches: int) -> set[str]:
    return {f"{name}{n}" for n in range(batches * SIZE)} | {f"shared{n}" for n in range(batches)}


def test_processes_write_one_run_at_once_and_a_killed_one_loses_nothing(archive_url: str):
    command = [sys.executable, "-W", "error", "-m", "tests.label.archive.test_crashes", archive_url]
    killed, other = (
        subprocess.Popen([*command, name, batches], stdout=-1, stderr=-1, text=True, cwd=ROOT)
        for name, batches in (("a", "100000"), ("b", "25"))
    )
    assert killed.stdout is not None
    for _ in range(7):
        killed.stdout.readline()
    killed.kill()
    acknowledged = 7 + len(killed.communicate()[0].splitlines())
    written, told = other.communicate(timeout=300)
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
        written.get(timeout=300)
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
}


def state(archive: Archive, location: str) -> list[object]:
    calls = archive.calls_of([sha256("a system")])
    prompts = execute(location, "SELECT * FROM prompts")
    return [archive.runs(), list(archive.run("r").cases()), prompts, calls]


def test_a_lock_that_is_held_long_is_outlasted_or_given_up(
    archive_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("raylab.label.archive.database.LOCK_SECONDS", 0.1)
    held, free = threading.Event(), threading.Event()

    def hold(connection: Connection) -> None:
        connection.execute(text("UPDATE runs SET holder = holder"))
        held.set()
        free.wait(300)

    with Archive.open(archive_url) as archive:
        archive.start_run("r", {}, {})
        with Archive.open(archive_url) as holder, ThreadPoolExecutor() as pool:
            pool.submit(holder._database.write, hold)
            assert held.wait(300)
            with monkeypatch.context() as hasty:
                hasty.setattr("raylab.label.archive.database.PATIENCE_SECONDS", 0.3)
                with pytest.raises(ArchiveError, match=r"cannot be used for 0\.3 s \(.*lock"):
                    archive.run("r").add_cases([case_row("c")])
            assert statuses(archive) == {}
            threading.Timer(0.5, free.set).start()
            archive.run("r").add_cases([case_row("c")])
        assert statuses(archive) == {"c": "accepted"} and "trying again" in caplog.text


def test_an_owner_whose_server_restarted_loses_its_run_to_the_next(postgres: PostgresServer):
    location = postgres.create_schema("unlocked")
    with Archive.open(location) as archive:
        archive.start_run("r", {}, {})
        first = archive.run("r").own()
        assert first.take()
        postgres.disconnect()
        with archive.run("r").own() as second:
            first.end()
            assert execute(location, "SELECT owner FROM runs") == [(second.token,)]


@pytest.mark.parametrize("operation", WRITING)
def test_an_acknowledgement_that_was_lost_changes_nothing(
    operation: str, archive_url: str, monkeypatch: pytest.MonkeyPatch
):
    with Archive.open(archive_url) as archive:
        archive.start_run("r", {}, {})
        archive.run("r").add_cases([case_row("c", "human")])
        # Every transaction is committed, is not acknowledged, and is repeated.
        once, lost = archive._database._once, Mock(side_effect=cycle((True, False)))

        def commit_and_lose(*given: Any) -> Any:
            result = once(*given)
            if lost():
                raise OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)
            return result

        with monkeypatch.context() as patch:
            patch.setattr(archive._database.dialect, "is_transient", lambda *given: True)
            patch.setattr(archive._database, "_once", commit_and_lose)
            WRITING[operation](archive)
        assert lost.called
        after = state(archive, archive_url)
        WRITING[operation](archive)
        assert state(archive, archive_url) == after


if __name__ == "__main__":
    for done in write(sys.argv[1], sys.argv[2], int(sys.argv[3])):
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()
