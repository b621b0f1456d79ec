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
from raylab.errors import OwnerError
from tests.archive.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
OWNER = """
import sys
from raylab.archive.store import Archive
with Archive.open(sys.argv[1]) as archive, archive.run("r").own():
    print("owns", flush=True)
    sys.stdin.readline()
"""


def test_a_run_has_one_owner_whom_the_error_names_until_it_ends(
    archive: Archive, archive_url: str
) -> None:
    archive.start_run("other", {}, {})
    with archive.run("r").own(), archive.run("other").own():
        for hours in (-2, 0, 2):
            leaped = utc_now() + timedelta(hours=hours)
            with Archive.open(archive_url) as later:
                later._database.now = lambda leaped=leaped: leaped
                with pytest.raises(OwnerError) as raised:
                    later.run("r").own().__enter__()
    message = str(raised.value)
    assert "run r of archive" in message and "wait=true" in message
    assert f"(process {os.getpid()} on {platform.node()})" in message
    assert Path(sys.argv[0]).name in message
    with archive.run("r").own():
        pass
    assert archive_url.startswith("postgresql") or not [*Path(archive_url).parent.glob("*.lock")]


def test_who_waits_goes_on_after_the_owner(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "POLL_SECONDS", 0.01)
    first = archive.run("r").own()
    assert first.take()
    threading.Timer(0.2, first.end).start()
    with archive.run("r").own(wait=True), pytest.raises(OwnerError):
        archive.run("r").own().__enter__()


def test_a_killed_process_owns_nothing(archive: Archive, archive_url: str) -> None:
    command = [sys.executable, "-c", OWNER, archive_url]
    with subprocess.Popen(command, stdin=-1, stdout=-1, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"owns\n"
        with pytest.raises(OwnerError, match=f"process {child.pid} on"):
            archive.run("r").own().__enter__()
        child.kill()
        child.wait()
        # A server notices a moment later that the connection is gone.
        with archive.run("r").own(wait=True):
            pass


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
