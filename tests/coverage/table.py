"""Coverage: how often 95 % intervals hold a truth that is known, and the table of it in a file."""

import statistics
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.tables import markdown

COVERAGE = "coverage"
"""Property of a test that holds the coverage of a figure in a setting: figure, shares of the
simulations with an interval, and of these with one that held the truth."""
HEADER = ("figure", "settings with an interval", "least", "median", "greatest")
TOLERANCE = 1e-9
FEWEST = 0.1
"""Share of the simulations with an interval below which a setting counts as one without."""
LEAST = 0.88
"""Least coverage that a setting may show: 0.93 less some standard errors of its simulations."""
MARKS = [pytest.mark.slow, pytest.mark.coverage]

Array = NDArray[np.float64]
Record = Callable[[str, object], None]
Row = tuple[str, float, float]


def generator(*setting: object) -> np.random.Generator:
    """The random numbers of a setting."""
    return np.random.default_rng(zlib.crc32(" ".join(map(str, setting)).encode()))


@dataclass
class Hits:
    """Counts of simulations of one figure in one setting."""

    tried: int = 0
    given: int = 0
    held: int = 0

    def add(self, interval: tuple[float, float] | None, truth: float) -> None:
        """Counts a simulation, whose interval is None if the figure has none."""
        self.tried += 1
        if interval is not None:
            self.given += 1
            self.held += interval[0] - TOLERANCE <= truth <= interval[1] + TOLERANCE

    def row(self, figure: str) -> Row:
        """Returns the value of the property `COVERAGE`."""
        return figure, self.given / self.tried, self.held / max(self.given, 1)


def check(hits: Mapping[str, Hits], record: Record, fewest: float = FEWEST) -> None:
    """Records the coverage by figure; of enough simulations with an interval it is `LEAST`."""
    tried = {name: hit for name, hit in hits.items() if hit.tried}
    for name, hit in tried.items():
        record(COVERAGE, hit.row(name))
    counted = {n: hit for n, hit in tried.items() if hit.given >= max(1, fewest * hit.tried)}
    assert all(hit.held / hit.given >= LEAST for hit in counted.values()), counted


def as_table(rows: Iterable[Row]) -> str:
    """Returns a Markdown table of the figures, over all their settings."""
    by_figure: dict[str, list[Row]] = {}
    for row in rows:
        by_figure.setdefault(row[0], []).append(row)
    lines: list[tuple[str, ...]] = [HEADER]
    for figure, members in by_figure.items():
        held = [share for _, given, share in members if given and given >= FEWEST]
        shares = (min(held), statistics.median(held), max(held)) if held else ()
        shown = [f"{share:.2f}" for share in shares] or [""] * 3
        lines.append((figure, f"{len(held)} of {len(members)}", *shown))
    return markdown(lines)
