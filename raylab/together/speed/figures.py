"""Rates of raylab and a plain baseline, measured in turn and shown as a table."""

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from raylab.core.log import log_line
from raylab.core.page.table import Table, print_tables
from raylab.core.runs.records import Part, Record
from raylab.core.runs.run import METRICS, Run
from raylab.together.config import BenchmarkConfig


class Spread(Part):
    """A figure over the rounds of a benchmark."""

    min: float
    median: float
    max: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        """Returns the spread of one or more values."""
        return cls(min=min(values), median=statistics.median(values), max=max(values))

    def __str__(self) -> str:
        """Returns the three figures."""
        return " / ".join(map(_shorten, (self.min, self.median, self.max)))


class Rates(Part):
    """Work per second of raylab and its baseline, over alternating rounds."""

    raylab: Spread
    baseline: Spread
    ratio: Spread
    """Raylab's rate over that of the baseline in the same round."""


class BenchmarkRates(Record):
    """The rates of a benchmark: its `metrics.json`."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 4
    unit: str
    """Of the rates, such as samples/s."""
    conditions: str
    """Machine and sizes."""
    rates: dict[str, Rates]


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
        record.rates[name] = Rates(
            raylab=Spread.over([fast for fast, _ in pairs]),
            baseline=Spread.over([plain for _, plain in pairs]),
            ratio=Spread.over([fast / plain for fast, plain in pairs]),
        )
        run.write_record(record)

    yield compare
    table = Table(
        f"{conditions}; minimum / median / maximum of the rounds",
        ["", f"raylab, {unit}", f"baseline, {unit}", "times as fast"],
        [[name, *(str(spread) for _, spread in rates)] for name, rates in record.rates.items()],
    )
    print_tables(table, **record.model_dump())
    run.finish()


def _shorten(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
