"""Coverage: how often 95 % intervals hold a truth that is known, and the table of it in a file."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from tests.tables import markdown

COVERAGE = "coverage"
"""Property of a test that holds the coverage of a figure in a setting: figure, shares of the
simulations with an interval, and of these with one that held the truth."""
HEADER = ("figure", "settings with an interval", "least", "median", "greatest")
TOLERANCE = 1e-9
FEWEST = 0.1
"""Share of the simulations with an interval below which a setting counts as one without."""

Row = tuple[str, float, float]


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

    @property
    def has_intervals(self) -> bool:
        """True if enough of the simulations have an interval."""
        return self.given > 0 and self.given >= FEWEST * self.tried

    def row(self, figure: str) -> Row:
        """Returns the value of the property `COVERAGE`."""
        return figure, self.given / self.tried, self.held / max(self.given, 1)


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
