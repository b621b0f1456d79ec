"""Progress of work in parts: what is done of how many, and how long the rest will take."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from raylab.background import running
from raylab.log import log_line
from raylab.report.table import duration, percent
from raylab.workers import listening

LINE_SECONDS = 30.0
"""Longest time without a line."""


@contextmanager
def watch(total: int, noun: str, parts: int | None = None) -> Generator["Progress"]:
    """Prints a line at least every `LINE_SECONDS` while in use.

    Args:
        total: What is to be done, more than 0.
        noun: Its name in the plural, such as `tasks`.
        parts: Number of parts of about like size that do it; None takes `total`.
    """
    progress, over = Progress(total, noun, parts or total), threading.Event()
    with listening(progress.advance), running(partial(progress.beat, over), stop=over.set):
        yield progress


class Progress:
    """What is done of some work, with its clock."""

    def __init__(self, total: int, noun: str, parts: int) -> None:
        """Starts the clock; see `watch`."""
        self._total, self._noun, self._of_part = total, noun, total / parts
        self._done, self._share = 0, 0.0
        self._start = self._shown = time.monotonic()

    def advance(self, share: float) -> None:
        """Notes which share of the part under way is done."""
        self._share = share

    def end(self, done: int, message: str = "", **fields: Any) -> None:
        """Adds what a part did, and prints its message if it has one."""
        self._done, self._share = self._done + done, 0.0
        if message:
            width = len(str(self._total))
            self._print(f"[{self._done:>{width}}/{self._total}] {message}", **fields)

    def beat(self, over: threading.Event) -> None:
        """Prints lines as they are due until the event is set."""
        while not over.wait(self._shown + LINE_SECONDS - time.monotonic()):
            seconds = time.monotonic() - self._start
            if time.monotonic() >= self._shown + LINE_SECONDS:
                more = f" and {percent(self._share)} of the next" if self._share else ""
                done = f"{self._done} of {self._total} {self._noun}{more}"
                self._print(f"  {done} after {duration(seconds)}", seconds=seconds)

    def _print(self, message: str, **fields: Any) -> None:
        self._shown = time.monotonic()
        done = self._done + self._share * self._of_part
        eta = (self._shown - self._start) * (self._total - done) / done if done else None
        if eta is not None:
            message = f"{message}, ETA {duration(eta)}"
        log_line(message, done=self._done, total=self._total, eta_seconds=eta, **fields)
