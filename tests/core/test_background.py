"""Threads and listeners that outlive what fails."""

import threading

import pytest

from raylab.core.background import Listeners, running


def test_work_runs_beside_the_block_until_it_is_stopped() -> None:
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait()

    with running(work, stop=over.set):
        assert begun.wait(60)
        assert not over.is_set()
    assert over.is_set()


def test_an_error_of_the_work_is_raised_where_the_block_ends() -> None:
    reached: list[int] = []
    with pytest.raises(ZeroDivisionError), running(lambda: 1 / 0, stop=lambda: None):
        reached.append(1)
    assert reached == [1]


def test_an_error_of_the_block_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError, match="of the block"), running(lambda: 1 / 0, stop=lambda: None):
        raise KeyError("of the block")
    assert [record.message for record in caplog.records] == ["division by zero"]


class Disk(list[int]):
    """The states that a listener stored, which fails while the disk is full."""

    full = False

    def write(self, state: int) -> None:
        if self.full:
            raise OSError("disk full")
        self.append(state)


def test_a_failure_stops_no_listener_and_is_made_good(caplog: pytest.LogCaptureFixture) -> None:
    disk, seen = Disk(), Disk()
    listeners = Listeners({"file": disk.write, "progress": seen.write})
    for state in range(1, 5):
        disk.full = state in (2, 3)
        listeners.tell(state)
    listeners.finish()
    assert seen == [1, 2, 3, 4]
    # States 2 and 3 failed; 4 holds them, so nothing is written again at the end.
    assert disk == [1, 4]
    assert [record.message for record in caplog.records] == ["file: disk full; it is tried again"]


def test_what_fails_to_the_end_is_raised_and_the_rest_is_written() -> None:
    disk, other = Disk(), Disk()
    listeners = Listeners({"file": disk.write, "curves": other.write})
    disk.full = other.full = True
    listeners.tell(1)
    other.full = False
    with pytest.raises(OSError, match="disk full"):
        listeners.finish()
    assert other == [1]
