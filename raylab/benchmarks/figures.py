"""Rates of raylab and of a plain baseline: measuring them by turns, and showing them."""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from rich.table import Table

from raylab.errors import ConfigError
from raylab.log import log_line, log_tables
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run

T = TypeVar("T")


class Spread(Part):
    """A figure over the rounds of a benchmark."""

    min: float
    median: float
    max: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        """Returns the spread of one or more values."""
        return cls(min=min(values), median=statistics.median(values), max=max(values))


class Rates(Part):
    """Work per second of raylab and of its baseline, over rounds of both by turns."""

    raylab: Spread
    baseline: Spread
    ratio: Spread
    """That of raylab divided by that of the baseline in the same round."""


class BenchmarkRates(Record):
    """What a part of the benchmark measured."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 4
    unit: str
    """Of the rates, such as samples/s."""
    conditions: str
    """Machine and sizes."""
    rates: dict[str, Rates]


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Returns the seconds that `work` takes, and its result."""
    start = time.perf_counter()
    done = work()
    return time.perf_counter() - start, done


def compare(
    name: str,
    unit: str,
    rounds: int,
    raylab: Callable[[int], float],
    baseline: Callable[[int], float],
) -> Rates:
    """Measures the rates of both in each round, which is numbered from 0, and logs them."""
    pairs: list[tuple[float, float]] = []
    for number in range(rounds):
        fast, plain = raylab(number), baseline(number)
        pairs.append((fast, plain))
        log_line(
            f"{name} round {number + 1}/{rounds}: {_shown(fast)} {unit}, baseline "
            f"{_shown(plain)}, {_shown(fast / plain)} times",
            benchmark=name,
            done=number + 1,
            total=rounds,
            raylab=fast,
            baseline=plain,
        )
    return Rates(
        raylab=Spread.over([fast for fast, _ in pairs]),
        baseline=Spread.over([plain for _, plain in pairs]),
        ratio=Spread.over([fast / plain for fast, plain in pairs]),
    )


def finish_benchmark(run: Run, record: BenchmarkRates) -> None:
    """Prints the table of a record that is stored, and finishes its run."""
    log_tables(_table(record), **record.model_dump())
    run.finish()


def _table(record: BenchmarkRates) -> Table:
    table = Table(title=f"{record.conditions}; minimum / median / maximum of the rounds")
    table.add_column("")
    for head in (f"raylab, {record.unit}", f"baseline, {record.unit}", "times as fast"):
        table.add_column(head, justify="right")
    for name, rate in record.rates.items():
        table.add_row(name, _cell(rate.raylab), _cell(rate.baseline), _cell(rate.ratio))
    return table


def _cell(spread: Spread) -> str:
    return " / ".join(map(_shown, (spread.min, spread.median, spread.max)))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def local_directory(run: Run, part: str) -> Path:
    """Returns the directory of a run.

    Raises:
        ConfigError: the directory is not local.
    """
    if not run.is_local:
        raise ConfigError(f"the benchmark of {part} needs a local directory as storage=")
    return Path(run.path)
