"""Progress of long work: a live bar on a terminal, else a line from time to time."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raylab.core.log import console, log_line, prints_json
from raylab.core.printable import duration, printable

REFRESHES = 4
"""Refreshes of the bar a second."""


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
        done: Units done.
        total: Units in all.
        unit: Name of the unit in the plural, such as `steps`.
        figures: The last figures, below the bar; empty keeps the present ones.
        every: Fewest seconds between two lines; 0 prints each.
        **fields: Further data, as for `log_line`; the bar shows `cost` and `eta_seconds`.
    """
    if _state.bar is not None:
        _state.bar.move(message, done, total, unit, figures, fields)
    elif (now := time.monotonic()) >= _state.shown + every:
        _state.shown = now
        log_line(message, done=done, total=total, **fields)


class _Bar:
    """A bar with the work done, its rate and the time left, above the last figures."""

    def __init__(self) -> None:
        self.message = self._figures = ""
        self._done, self._total, self._unit = 0.0, 0, ""
        self._cost: float | None = None
        self._start: tuple[float, float] | None = None
        self._end: float | None = None

    def move(
        self,
        message: str,
        done: float,
        total: int,
        unit: str,
        figures: str,
        fields: dict[str, Any],
    ) -> None:
        now = time.monotonic()
        if self._start is None or done < self._start[1]:
            self._start = now, done
        self.message, self._figures = message, figures or self._figures
        self._done, self._total, self._unit = done, total, unit
        self._cost = fields.get("cost")
        left = fields.get("eta_seconds")
        if left is None and (rate := self._rate(now)):
            left = (total - done) / rate
        self._end = None if left is None else now + left

    def _rate(self, now: float) -> float:
        start, done = self._start or (now, 0.0)
        return (self._done - done) / (now - start) if now > start else 0.0

    def __rich__(self) -> Group:
        now = time.monotonic()
        counts = [f"{self._done:,.0f}/{self._total:,} {self._unit}"]
        if rate := self._rate(now):
            counts.append(f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min")
        if self._end is not None:
            counts.append(f"ETA {duration(max(self._end - now, 0.0))}")
        if self._cost:
            counts.append(f"cost {self._cost:.4g}")
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        bar = ProgressBar(total=max(self._total, 1), completed=self._done, pulse=not self._unit)
        line.add_row(bar, "  ".join(counts) if self._unit else "starting")
        below = Text(printable(self._figures or self.message.strip()), no_wrap=True)
        below.overflow = "ellipsis"
        return Group(line, below)


class _State:
    """The output of this process: its terminal and bar, if any, and when a line was printed."""

    out: Console | None = None
    bar: _Bar | None = None
    shown = 0.0


_state = _State()
