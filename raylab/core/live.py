"""Progress of long work: a live bar on a terminal, else a line from time to time.

`watch` counts work in parts, with the remaining time; `progress` and `log_progress` show the rest.
"""

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raylab.core.background import running
from raylab.core.log import console, log_line, prints_json
from raylab.core.printable import duration, printable
from raylab.core.workers import listening

REFRESHES = 4
"""Refreshes of the bar a second."""
LINE_SECONDS, LOOK_SECONDS = 30.0, 0.5
"""Longest time between the lines of `watch`, and between its looks at the progress."""


@contextmanager
def bars() -> Generator[None]:
    """Shows progress as live bars while in use, if the output is a terminal that can."""
    out = console()
    is_live = out.is_terminal and not out.is_dumb_terminal and not prints_json()
    _state.out = out if is_live else None
    try:
        yield
    finally:
        _state.out = None


@contextmanager
def progress() -> Generator[None]:
    """Shows the progress of some work while in use; on a terminal its last line stays.

    Within the progress of larger work it does nothing.
    """
    out = _state.out
    if _state.bar is not None or out is None:
        _state.shown = time.monotonic()
        yield
        return
    bar = _state.bar = _Bar()
    # A standard error that is no terminal stays apart from the output.
    live = Live(
        bar,
        console=out,
        refresh_per_second=REFRESHES,
        transient=True,
        redirect_stderr=sys.stderr.isatty(),
    )
    try:
        with live:
            yield
    finally:
        _state.bar = None
        if bar.message:
            log_line(bar.message)


def log_progress(
    message: str,
    /,
    *,
    done: int,
    total: int,
    unit: str,
    figures: str = "",
    every: float = 0.0,
    **fields: Any,
) -> None:
    """Moves the live bar; without one prints a line, or one JSON object with `log=json`.

    Args:
        message: The line, for people.
        done: Units done, of `total`.
        total: Units in all.
        unit: Name of the unit in the plural, such as `steps`.
        figures: The last figures, below the bar; empty keeps the present ones.
        every: Minimum seconds between two lines; 0 prints all.
        **fields: Further data, as for `log_line`; the bar shows `cost` and `eta_seconds`.
    """
    now, bar = time.monotonic(), _state.bar
    if bar is None:
        if now >= _state.shown + every:
            _state.shown = now
            log_line(message, done=done, total=total, **fields)
        return
    # Work that begins anew, such as the next training of a pipeline, has a rate of its own.
    if bar.start is None or done < bar.start[1]:
        bar.start = now, done
    bar.message, bar.figures, bar.cost = message, figures or bar.figures, fields.get("cost")
    bar.done, bar.total, bar.unit = done, total, unit
    left = fields.get("eta_seconds")
    if left is None and (rate := bar.rate(now)):
        left = (total - done) / rate
    bar.end = None if left is None else now + left


@dataclass
class _Bar:
    """A bar with the work done, its rate and the time left, above the last figures."""

    message: str = ""
    figures: str = ""
    done: float = 0.0
    total: int = 0
    unit: str = ""
    cost: float | None = None
    start: tuple[float, float] | None = None
    """Time and amount of work from which the rate counts."""
    end: float | None = None

    def rate(self, now: float) -> float:
        start, done = self.start or (now, 0.0)
        return (self.done - done) / (now - start) if now > start else 0.0

    def __rich__(self) -> Group:
        now = time.monotonic()
        counts = [f"{self.done:,.0f}/{self.total:,} {self.unit}"]
        if rate := self.rate(now):
            counts.append(f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min")
        if self.end is not None:
            counts.append(f"ETA {duration(max(self.end - now, 0.0))}")
        if self.cost:
            counts.append(f"cost {self.cost:.4g}")
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        bar = ProgressBar(total=max(self.total, 1), completed=self.done, pulse=not self.unit)
        line.add_row(bar, "  ".join(counts) if self.unit else "starting")
        text = printable(self.figures or self.message.strip())
        return Group(line, Text(text, no_wrap=True, overflow="ellipsis"))


class _State:
    """The output of this process: its terminal and bar, if any, and when a line was printed."""

    out: Console | None = None
    bar: _Bar | None = None
    shown = 0.0


_state = _State()


@contextmanager
def watch(total: int, noun: str, parts: int | None = None) -> Generator["Progress"]:
    """Prints a line at least every `LINE_SECONDS` while in use.

    Args:
        total: The amount of work, more than 0.
        noun: Its unit in the plural, such as `tasks`.
        parts: Number of parts of similar size; None takes `total`.
    """
    work, over = Progress(total, noun, parts or total), threading.Event()
    with progress(), listening(work.advance), running(partial(work.beat, over), stop=over.set):
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
