"""Rates of raylab and a plain baseline, measured in turn and shown as a table."""

import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import ClassVar

from raylab.core.log import log_line
from raylab.core.page.table import Table, print_tables
from raylab.core.runs.records import Record
from raylab.core.runs.run import METRICS, Run
from raylab.together.config import BenchmarkConfig


class BenchmarkRates(Record):
    """The rates of a benchmark: its `metrics.json`."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 5
    unit: str
    """Of the rates, such as samples/s."""
    conditions: str
    """Machine and sizes."""
    rates: dict[str, tuple[tuple[float, float], ...]]
    """Of raylab and of its baseline in each round, by what was measured."""


Rate = Callable[[int], float]
"""Measures a rate in the round of this number, from 0."""
Compare = Callable[[str, Rate, Rate], None]
"""Measures raylab and its baseline, and stores the rates under a name."""


def rate(work: Callable[[], float]) -> float:
    """Returns the amount per second of some work, which returns its amount."""
    start = time.perf_counter()
    amount = work()
    return amount / (time.perf_counter() - start)


@contextmanager
def benchmark(config: BenchmarkConfig, unit: str, conditions: str) -> Generator[Compare]:
    """Yields a function that compares rates over rounds; prints a table of them at the end."""
    run = Run.open(config)
    record = BenchmarkRates(unit=unit, conditions=conditions, rates={})
    log_line(conditions)

    def compare(name: str, raylab: Rate, baseline: Rate) -> None:
        pairs: list[tuple[float, float]] = []
        for number in range(config.rounds):
            fast, plain = raylab(number), baseline(number)
            pairs.append((fast, plain))
            log_line(
                f"{name} round {number + 1}/{config.rounds}: {_shorten(fast)} {unit}, baseline "
                f"{_shorten(plain)}, {_shorten(fast / plain)} times",
                benchmark=name,
                done=number + 1,
                total=config.rounds,
                raylab=fast,
                baseline=plain,
            )
        record.rates[name] = tuple(pairs)
        run.write_record(record)

    yield compare
    rows: list[list[str]] = []
    for name, pairs in record.rates.items():
        columns = [*zip(*pairs, strict=True), [fast / plain for fast, plain in pairs]]
        spreads = ((min(rates), statistics.median(rates), max(rates)) for rates in columns)
        rows.append([name, *(" / ".join(map(_shorten, spread)) for spread in spreads)])
    title = f"{conditions}; minimum / median / maximum of the rounds"
    head = ["", f"raylab, {unit}", f"baseline, {unit}", "times as fast"]
    print_tables(Table(title, head, rows), **record.model_dump())
    run.finish()


def _shorten(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
