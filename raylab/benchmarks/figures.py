"""Figures of repeated measurements: taking, summarising and showing them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

from raylab.errors import ConfigError
from raylab.runs.records import Part
from raylab.runs.run import Run

T = TypeVar("T")


class Spread(Part):
    """A figure over the rounds of a benchmark."""

    min: float
    median: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Returns the spread of one or more values."""
        return cls(min=min(values), median=statistics.median(values))


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Returns the seconds that `work` takes, and its result."""
    start = time.perf_counter()
    done = work()
    return time.perf_counter() - start, done


def local_directory(run: Run, part: str) -> Path:
    """Returns the directory of a run.

    Raises:
        ConfigError: the directory is not local.
    """
    if not run.is_local:
        raise ConfigError(f"the benchmark of {part} needs a local directory as storage=")
    return Path(run.path)


def spread_table(
    title: str,
    rows_are: str,
    columns: Mapping[str, tuple[str, str]],
    rows: Mapping[str, Any],
) -> Table:
    """Returns a table of minima and medians.

    Args:
        title: of the table.
        rows_are: heading of the first column, which names the rows.
        columns: field and number format of each further column, by its heading.
        rows: the figures by name, whose fields are spreads.
    """
    table = Table(title=title)
    table.add_column(rows_are)
    for head in columns:
        table.add_column(head, justify="right")
    for name, figures in rows.items():
        cells = [_cell(getattr(figures, field), form) for field, form in columns.values()]
        table.add_row(name, *cells)
    return table


def _cell(spread: Any, form: str) -> str:
    return f"{form.format(spread.min)} / {form.format(spread.median)}"
