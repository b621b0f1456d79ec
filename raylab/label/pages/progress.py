"""Progress of an annotation as one line, and its calls and cost beforehand as a table."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from raylab.core.live import log_progress
from raylab.core.log import log_line
from raylab.core.page.table import LINE, Column, Row, Table, print_tables
from raylab.core.printable import duration, pluralize
from raylab.label.protocol.dry_run import Amounts, RoleForecast
from raylab.label.protocol.outcome import Status
from raylab.label.protocol.worker import Tally
from raylab.llm.config import Budget

LINE_SECONDS = 10.0
"""Time between two printed lines."""


class AnnotationProgress:
    """The progress of an annotation: a live bar on a terminal, else a line every ten seconds."""

    def __init__(self, total: int, before: Mapping[str, int] | None = None) -> None:
        """Starts the clock; `before` counts the cases that are archived already, by status."""
        self.total, self.before, self.tally = total, Counter(before or {}), Tally()
        self._start = time.monotonic()

    def show(self, every: float = LINE_SECONDS) -> None:
        """Moves the bar, or prints a line if the last one is at least `every` seconds old."""
        figures = self.figures()
        shown = describe({**figures, "cost": None, "eta_seconds": None}).partition("  ")[2]
        is_answered = self.tally.sent or self.tally.answered or figures["batches"]
        log_progress(
            describe(figures),
            unit="cases",
            figures=shown if is_answered else "waiting for the first answer",
            every=every,
            **figures,
        )

    def figures(self) -> dict[str, Any]:
        """Returns progress and speed since this process started, and cases by status overall.

        `concurrency` is the calls that may be in flight now, 0 before the first answer; `cost` that
        of the calls with a price; `eta_seconds` None if it cannot be estimated; `batches` the calls
        in each batch on its way, the oldest first, and `batch_seconds` the age of that.
        """
        tally, statuses = self.tally, self.before + self.tally.statuses
        seconds = max(time.monotonic() - self._start, 1e-9)
        left, ended = self.total - statuses.total(), tally.statuses.total()
        batches = sorted(batch for each in tally.batches.values() for batch in each)
        return {
            "done": statuses.total(),
            "total": self.total,
            "cases": {status.value: statuses[status] for status in Status},
            "open": len(tally.open_cases),
            "calls_per_second": tally.sent / seconds,
            "tokens": tally.tokens,
            "answered": tally.answered,
            "failures": tally.failures.total(),
            "cost": tally.cost,
            "concurrency": sum(tally.concurrency.values()),
            "batches": [calls for _, calls in batches],
            "batch_seconds": max(time.time() - batches[0][0], 0.0) if batches else None,
            "eta_seconds": seconds * left / ended if left and ended else None,
        }


def describe(figures: Mapping[str, Any]) -> str:
    """Returns the figures of an `AnnotationProgress` on one line, without those that are 0."""
    optional = {
        "batches": lambda calls: (
            f"{sum(calls)} calls in {pluralize(len(calls), 'batch', 'batches')}"
        ),
        "batch_seconds": lambda seconds: f"oldest sent {duration(seconds)} ago",
        "concurrency": lambda count: f"up to {count} at once",
        "open": lambda count: f"{count} left open",
        "answered": lambda count: pluralize(count, "answer known", "answers known"),
        "failures": lambda count: pluralize(count, "attempt failed", "attempts failed"),
        "cost": lambda cost: f"cost {cost:.4g}",
        "eta_seconds": lambda seconds: f"ETA {duration(seconds)}",
    }
    return "  ".join(
        [
            f"{figures['done']}/{figures['total']} cases",
            *(f"{count} {status}" for status, count in figures["cases"].items()),
            f"{figures['calls_per_second']:.1f} calls/s",
            f"{figures['tokens']:,} tokens",
            *(say(figures[name]) for name, say in optional.items() if figures[name]),
        ]
    )


def print_forecast(rows: Sequence[RoleForecast], budget: Budget) -> None:
    """Prints the calls, tokens and cost that a run would take, by role and in total."""
    missing = {"calls": "", "prompt_tokens": "", "reply_tokens": "no limit", "cost": "no price"}
    total, shown = _sum_up(rows), list[Row]()
    for row in (*rows, total):
        ends = (row.least, row.most)
        spans = (_span((getattr(end, key) for end in ends), no) for key, no in missing.items())
        shown.append([row.role, row.model, *spans])
    table = Table(
        "Estimated calls; nothing was sent. From: no second turn, no adjudication, short replies. "
        "To: all of them, and the longest replies. Equal texts are asked about once. A second turn "
        "asks again after a reply that cannot be read",
        ["role", Column("model", text=True), "calls", "tokens sent", "tokens of replies", "cost"],
        [*shown[:-1], LINE, shown[-1]],
    )
    costs = [total.least.cost, total.most.cost]
    print_tables(table, roles=[asdict(row) for row in rows], cost=costs)
    _warn_of(budget, total.least)


def log_forecast(rows: Sequence[RoleForecast], budget: Budget) -> None:
    """Prints the calls and cost that a run would take, on one line."""
    total = _sum_up(rows)
    calls, costs = [total.least.calls, total.most.calls], [total.least.cost, total.most.cost]
    price = "" if None in costs else f", cost {_span(costs)}"
    log_line(
        f"estimate: {_span(calls)} calls{price}; dry_run=true shows it by role and stops",
        calls=calls,
        cost=costs,
    )
    _warn_of(budget, total.least)


def _warn_of(budget: Budget, least: Amounts) -> None:
    """Warns of a budget that is used up before the end, whatever the models answer."""
    tokens = least.prompt_tokens + (least.reply_tokens or 0)
    for key, needed in (("tokens", tokens), ("money", least.cost)):
        limit = getattr(budget, key)
        if limit is not None and needed is not None and limit < needed:
            log_line(
                f"warning: llm.budget.{key}={limit:,} ends the run early: without archived answers "
                f"it takes about {needed:,.6g} or more",
                logging.WARNING,
            )


def _sum_up(rows: Sequence[RoleForecast]) -> RoleForecast:
    """Returns the forecast of all roles together."""
    return RoleForecast("all", "", _add([r.least for r in rows]), _add([r.most for r in rows]))


def _add(amounts: Sequence[Amounts]) -> Amounts:
    replies, costs = [each.reply_tokens for each in amounts], [each.cost for each in amounts]
    return Amounts(
        sum(each.calls for each in amounts),
        sum(each.prompt_tokens for each in amounts),
        None if None in replies else sum(filter(None, replies)),
        None if None in costs else math.fsum(filter(None, costs)),
    )


def _span(ends: Iterable[float | None], missing: str = "") -> str:
    """Returns the two ends of a range."""
    low, high = (
        missing if end is None else f"{end:,}" if isinstance(end, int) else f"{end:,.4g}"
        for end in ends
    )
    return low if low == high else f"{low} to {high}"
