"""Progress of an annotation as one line, and its calls and cost beforehand as a table."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.live import Live
from rich.text import Text

from raylab.annotation.dry_run import RoleForecast
from raylab.annotation.outcome import Status
from raylab.annotation.worker import Tally
from raylab.log import console, log_line, structured
from raylab.report.table import RULE, Column, Row, Table, counted, duration, print_tables

LINE_SECONDS = 10.0
"""Time between two printed lines."""


@dataclass(frozen=True)
class AnnotationFigures:
    """Progress and speed of an annotation since this process started.

    Attributes:
        done: cases that ended, those of earlier sessions included.
        total: cases of the run.
        cases: cases that ended, by status.
        open: cases that were tried and stay open.
        calls_per_second: calls that an endpoint answered.
        tokens: tokens of these calls, in requests and replies.
        answered: calls that the archive answered.
        failures: attempts that failed.
        cost: cost of the calls that have a price.
        concurrency: calls that may be in flight now; 0 before the first answer.
        eta_seconds: seconds until all cases have ended; None if that cannot be estimated.
    """

    done: int
    total: int
    cases: dict[str, int]
    open: int
    calls_per_second: float
    tokens: int
    answered: int
    failures: int
    cost: float
    concurrency: int
    eta_seconds: float | None

    def __str__(self) -> str:
        """Returns the figures on one line, without those that are 0."""
        parts = [
            f"{self.done}/{self.total} cases",
            *(f"{count} {status}" for status, count in self.cases.items()),
            f"{self.calls_per_second:.1f} calls/s",
            f"{self.tokens:,} tokens",
        ]
        if self.concurrency:
            parts.append(f"up to {self.concurrency} at once")
        if self.open:
            parts.append(f"{self.open} left open")
        if self.answered:
            parts.append(counted(self.answered, "answer known", "answers known"))
        if self.failures:
            parts.append(counted(self.failures, "attempt failed", "attempts failed"))
        if self.cost:
            parts.append(f"cost {self.cost:.4g}")
        if self.eta_seconds is not None:
            parts.append(f"ETA {duration(self.eta_seconds)}")
        return "  ".join(parts)


class AnnotationProgress:
    """The progress line of an annotation: live on a terminal, else printed every ten seconds."""

    def __init__(self, total: int, before: Mapping[str, int] | None = None) -> None:
        """Starts the clock.

        Args:
            total: cases of the run.
            before: cases that are in the archive already, by status.
        """
        self.total, self.before, self.tally = total, Counter(before or {}), Tally()
        out = console()
        self._live = Live(console=out, refresh_per_second=4, transient=True)
        self._is_live = out.is_terminal and not structured()
        self._start = self._printed = time.monotonic()

    def __enter__(self) -> "AnnotationProgress":
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        self._print()

    def show(self) -> None:
        """Updates the line, or prints one when it is due."""
        if self._is_live:
            self._live.update(Text(str(self.figures())))
        elif time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            self._print()

    def figures(self) -> AnnotationFigures:
        """Returns the current figures."""
        tally, statuses = self.tally, self.before + self.tally.statuses
        seconds = max(time.monotonic() - self._start, 1e-9)
        left, ended = self.total - statuses.total(), tally.statuses.total()
        return AnnotationFigures(
            done=statuses.total(),
            total=self.total,
            cases={status.value: statuses[status] for status in Status},
            open=0 if tally.open_cases is None else tally.open_cases.count,
            calls_per_second=tally.sent / seconds,
            tokens=tally.tokens,
            answered=tally.known,
            failures=tally.failures.total(),
            cost=tally.cost,
            concurrency=sum(tally.concurrency.values()),
            eta_seconds=seconds * left / ended if left and ended else None,
        )

    def _print(self) -> None:
        figures = self.figures()
        log_line(str(figures), **asdict(figures))


def print_forecast(rows: Sequence[RoleForecast]) -> None:
    """Prints what a run would come to, by role and in total."""
    title = (
        "Calls that a run would make; nothing was sent. From: no second turn, no adjudication, "
        "short replies. To: all of them, and the longest replies"
    )
    shown: list[Row] = []
    for row in rows:
        ends = (row.least, row.most)
        shown.append(
            [
                row.role,
                row.model,
                _span([end.calls for end in ends]),
                _span([end.prompt_tokens for end in ends]),
                _span([end.reply_tokens for end in ends], "no limit"),
                _span([end.cost for end in ends], "no price"),
            ]
        )
    costs = [
        None if None in (cost := [end.cost for end in ends]) else math.fsum(filter(None, cost))
        for ends in ([row.least for row in rows], [row.most for row in rows])
    ]
    calls = [sum(row.least.calls for row in rows), sum(row.most.calls for row in rows)]
    shown += [RULE, ["all", "", _span(calls), "", "", _span(costs, "no price")]]
    columns = ["role", Column("model", text=True), "calls", "tokens sent", "tokens of replies"]
    table = Table(title, [*columns, "cost"], shown)
    print_tables(table, roles=[asdict(row) for row in rows], cost=costs)


def _span(ends: Sequence[float | None], missing: str = "") -> str:
    """Returns the two ends of a range."""
    low, high = (
        missing if end is None else f"{end:,}" if isinstance(end, int) else f"{end:,.4g}"
        for end in ends
    )
    return low if low == high else f"{low} to {high}"
