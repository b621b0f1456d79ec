"""Progress of work in parts: the amount done, the total, and the remaining time."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from raylab.core.background import running
from raylab.core.live import log_progress, progress
from raylab.core.printable import duration
from raylab.core.workers import listening

LINE_SECONDS, LOOK_SECONDS = 30.0, 0.5
"""Longest time between lines, and between looks at the progress."""


@contextmanager
def watch(total: int, noun: str, parts: int | None = None) -> Generator["Progress"]:
    """Prints a line at least every `LINE_SECONDS` while in use.

    Args:
        total: The amount of work, more than 0.
        noun: Its unit in the plural, such as `tasks`.
        parts: Number of parts of similar size; None takes `total`.
    """
    work, over = Progress(total, noun, parts or total), threading.Event()
    beat = partial(work.beat, over)
    with progress(), listening(work.advance), running(beat, stop=over.set):
        yield work


class Progress:
    """The progress of some work, with its clock."""

    def __init__(self, total: int, noun: str, parts: int) -> None:
        """Starts the clock; see `watch`."""
        self._total, self._noun, self._of_part = total, noun, total / parts
        self._done, self._share = 0, 0.0
        self._start = time.monotonic()

    def advance(self, share: float) -> None:
        """Records the share of the current part that is done."""
        self._share = share

    def end(self, done: int, message: str = "", **fields: Any) -> None:
        """Adds the work of a part, and prints its message if it has one."""
        self._done, self._share = self._done + done, 0.0
        if message:
            width = len(str(self._total))
            line = f"[{self._done:>{width}}/{self._total}] {message}"
            self._tell(line, figures=message, **fields)

    def beat(self, over: threading.Event) -> None:
        """Prints the progress until the event is set."""
        while not over.wait(min(LOOK_SECONDS, LINE_SECONDS)):
            seconds = time.monotonic() - self._start
            share = (self._done + self._share * self._of_part) / self._total
            done = f"{100 * share:.0f} % of {self._total:,} {self._noun}"
            line = f"  {done} after {duration(seconds)}"
            self._tell(line, every=LINE_SECONDS, seconds=seconds)

    def _tell(self, message: str, **fields: Any) -> None:
        done = self._done + self._share * self._of_part
        seconds = time.monotonic() - self._start
        eta = seconds * (self._total - done) / done if done else None
        if eta is not None:
            message = f"{message}, ETA {duration(eta)}"
        log_progress(
            message, done=self._done, total=self._total, unit=self._noun, eta_seconds=eta, **fields
        )
