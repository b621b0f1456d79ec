"""Owners of runs, on each database."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from raylab.archive.database import Clock
from raylab.archive.ownership import LEASE, Ownership, ProcessName
from raylab.archive.store import Archive
from raylab.errors import ArchiveError, OwnerError
from tests.archive.rows import NOON, execute

ROOT = Path(__file__).parents[2]
OWNER = """
import sys
from raylab.archive.store import Archive
with Archive.open(sys.argv[1]) as archive, archive.run("r").own():
    print("owns", flush=True)
    sys.stdin.readline()
"""


class SteppedClock:
    """A clock that moves when it is told to, and by its sleeps."""

    def __init__(self) -> None:
        self.time = NOON

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.time, monotonic=lambda: 0.0, sleep=self.sleep)


@pytest.fixture
def stepped() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def timed(archive: Archive, archive_url: str, stepped: SteppedClock) -> Iterator[Archive]:
    """The archive, opened with a clock of its own."""
    with Archive.open(archive_url, clock=stepped.clock) as timed:
        yield timed


def test_a_run_has_one_owner_until_it_ends(archive: Archive) -> None:
    with archive.run("r").own():
        with pytest.raises(OwnerError, match=r"run r of archive .* is worked on by .*process"):
            archive.run("r").own().__enter__()
        archive.start_run("other", {}, {})
        with archive.run("other").own():
            pass
    with archive.run("r").own() as owner:
        owner.renew()
        owner.check()


def test_the_error_says_who_owns_the_run_since_when_and_until_when(
    timed: Archive, stepped: SteppedClock
) -> None:
    first = timed.run("r").own()
    assert first.take() is None
    stepped.sleep(5)
    first.renew()
    me = ProcessName.current()
    with pytest.raises(OwnerError) as raised:
        timed.run("r").own().__enter__()
    said = str(raised.value)
    assert f"process {me.pid} on {me.host}" in said and me.command in said
    assert "since 2026-03-01 12:00:00 UTC, at least until 2026-03-01 12:01:05 UTC" in said
    assert "wait=true" in said


def test_a_run_is_taken_over_when_its_lease_has_expired(
    timed: Archive, stepped: SteppedClock
) -> None:
    slept, woken = timed.run("r").own(), timed.run("r").own()
    assert slept.take() is None
    stepped.sleep(LEASE.total_seconds() - 1)
    assert woken.take() is not None
    stepped.sleep(1)
    assert woken.take() is None
    with pytest.raises(OwnerError, match=r"run r of archive .* was taken over"):
        slept.renew()
    with pytest.raises(OwnerError):
        slept.check()
    slept.end()
    woken.renew()


def test_who_waits_goes_on_after_the_owner(timed: Archive, stepped: SteppedClock) -> None:
    first = timed.run("r").own()
    assert first.take() is None
    with timed.run("r").own(wait=True) as second:
        assert stepped.time == NOON + LEASE
        second.renew()


def test_a_dead_process_is_taken_over_at_once(archive: Archive, archive_url: str) -> None:
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
    with archive.run("r").own():
        pass


def test_only_a_process_of_this_machine_and_start_is_known_to_be_dead() -> None:
    me = ProcessName.current()
    vars_of = {name: getattr(me, name) for name in vars(me)}
    assert not me.is_dead()
    assert ProcessName(**{**vars_of, "started": me.started - 60}).is_dead()
    assert not ProcessName(**{**vars_of, "machine": "another", "started": 0.0}).is_dead()
    assert not ProcessName(**{**vars_of, "machine": "", "started": 0.0}).is_dead()


def test_a_run_that_is_not_there_has_no_owner(archive: Archive) -> None:
    with pytest.raises(ArchiveError, match="has no run missing"):
        archive.run("missing").own()


def test_what_an_owner_had_in_flight_can_be_sent_again_by_the_next_and_stays_counted(
    archive: Archive, archive_url: str
) -> None:
    row = (
        "INSERT INTO attempts VALUES ('{0}', '{0}', 1, '{1}', '', 'e', 'm', 7, 3, 0.5, "
        "'2026-03-01T12:00:00.000000+00:00', '2026-03-01T12:02:00.000000+00:00', 'sent')"
    )
    gone, going = archive.run("r").own(token="gone"), archive.run("r").own(token="going")
    execute(archive_url, row.format("a", "gone"))
    assert isinstance(going, Ownership) and going.take() is None
    execute(archive_url, row.format("b", "going"))
    states = "SELECT id, state FROM attempts ORDER BY id"
    assert execute(archive_url, states) == [("a", "unknown"), ("b", "sent")]
    going.end()
    gone.end()
    assert execute(archive_url, states) == [("a", "unknown"), ("b", "unknown")]
