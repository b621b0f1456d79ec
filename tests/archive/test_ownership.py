"""Owners of runs, on each database."""

import os
import platform
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from raylab.archive import ledger
from raylab.archive.database import utc_now
from raylab.archive.store import Archive
from raylab.errors import ArchiveError, OwnerError
from tests.archive.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
OWNER = """
import sys
from raylab.archive.store import Archive
with Archive.open(sys.argv[1]) as archive, archive.run("r").own():
    print("owns", flush=True)
    sys.stdin.readline()
"""


def test_a_run_has_one_owner_until_it_ends(archive: Archive) -> None:
    with archive.run("r").own():
        with pytest.raises(OwnerError, match=r"run r of archive .* is worked on by .*process"):
            archive.run("r").own().__enter__()
        archive.start_run("other", {}, {})
        with archive.run("other").own():
            pass
    with archive.run("r").own():
        pass


def test_the_error_says_who_owns_the_run_and_the_way_out(archive: Archive) -> None:
    with archive.run("r").own(), pytest.raises(OwnerError) as raised:
        archive.run("r").own().__enter__()
    assert f"(process {os.getpid()} on {platform.node()})" in str(raised.value)
    assert Path(sys.argv[0]).name in str(raised.value) and "wait=true" in str(raised.value)


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_clock_that_leaps_takes_no_run(hours: int, archive: Archive, archive_url: str) -> None:
    leaped = timedelta(hours=hours)
    with (
        archive.run("r").own(),
        Archive.open(archive_url, now=lambda: utc_now() + leaped) as other,
    ):
        with pytest.raises(OwnerError):
            other.run("r").own().__enter__()


def test_who_waits_goes_on_after_the_owner(
    archive: Archive, archive_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "POLL_SECONDS", 0.01)
    first = archive.run("r").own()
    assert first.take()
    threading.Timer(0.2, first.end).start()
    with archive.run("r").own(wait=True):
        with pytest.raises(OwnerError):
            archive.run("r").own().__enter__()


def test_a_killed_process_owns_nothing(archive: Archive, archive_url: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, archive_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"owns\n"
        with pytest.raises(OwnerError, match=f"process {child.pid} on"):
            archive.run("r").own().__enter__()
        child.kill()
        child.wait()
        # A server notices a moment later that the connection is gone.
        with archive.run("r").own(wait=True):
            pass


def test_a_run_that_is_not_there_has_no_owner(archive: Archive) -> None:
    with pytest.raises(ArchiveError, match="has no run missing"):
        archive.run("missing").own()


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
