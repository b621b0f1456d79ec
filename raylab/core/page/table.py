"""Tables as values: rendered here for the terminal, and by one macro on pages.

Also the formats of figures, in tables and sentences.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from raylab.core.log import console, log_line, prints_json
from raylab.core.printable import duration, printable
from raylab.core.runs.records import Figure, Measure

MISSING, BEST = "missing", "best"
"""Looks of a cell: a problem, and the best value."""
LOOKS = {MISSING: "red", BEST: "bold green"}
"""Styles of the looks in the terminal."""
HUES = 8
"""Colours of labels in the style sheet."""
DARK = 0.5
"""Shade from which the terminal prints a cell in bold."""


def hues(labels: Iterable[str]) -> Mapping[str, str]:
    """Returns the look of each label of a codebook, by its place; none of other texts."""
    return defaultdict(str, {name: f"hue-{n % HUES}" for n, name in enumerate(labels)})


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: Its content.
        small: An interval or a remark: in small letters on a page, in brackets in the terminal.
        look: `MISSING`, `BEST` or another class of the style sheet; empty for plain text.
        shade: Depth of its colour, in [0, 1]; None without one.
        bar: Low end, value and high end of an interval in [0, 1], drawn on a page; None without
            one.
    """

    text: str
    small: str = ""
    look: str = ""
    shade: float | None = None
    bar: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Column:
    """A column of a table; the first and those of text are aligned left.

    Attributes:
        label: Its name.
        text: True for text, which wraps.
        page_only: True if the terminal leaves it out.
    """

    label: str
    text: bool = False
    page_only: bool = False


Row = Sequence[Cell | str]
LINE: Row = ()
"""A line between two groups of rows."""


@dataclass(frozen=True)
class Table:
    """A table for the terminal and for pages.

    Attributes:
        title: Its name, above it in the terminal.
        columns: A plain label is that of a column of figures.
        rows: As many cells each as there are columns, or `LINE`.
        notes: Explanations, above it on a page.
        dense: Keep it narrow: small letters on a page, no small text in the terminal.
    """

    title: str
    columns: Sequence[Column | str]
    rows: Sequence[Row]
    notes: str = ""
    dense: bool = False

    @property
    def head(self) -> list[Column]:
        """The columns."""
        return [Column(column) if isinstance(column, str) else column for column in self.columns]

    @property
    def bodies(self) -> list[list[list[Cell]]]:
        """Groups of rows of cells."""
        groups: list[list[list[Cell]]] = [[]]
        for row in self.rows:
            if row:
                groups[-1].append([Cell(cell) if isinstance(cell, str) else cell for cell in row])
            else:
                groups.append([])
        return [group for group in groups if group]

    @property
    def upright(self) -> "Table":
        """The table, transposed if that is narrower. It must have no `LINE`."""
        if len(self.columns) <= len(self.rows) + 1:
            return self
        text = any(column.text for column in self.head)
        columns = ["", *(Column(str(row[0]), text=text) for row in self.rows)]
        rows = [
            [column.label, *(row[place] for row in self.rows)]
            for place, column in enumerate(self.head)
        ]
        return replace(self, columns=columns, rows=rows[1:])

    def split(self, most: int) -> Iterator["Table"]:
        """Yields tables of the first column and at most `most` others."""
        for start in range(1, max(len(self.columns), 2), most):
            wanted = slice(start, start + most)
            yield replace(
                self,
                title=f"{self.title}{', continued' if start > 1 else ''}",
                columns=[*self.columns[:1], *self.columns[wanted]],
                rows=[[*row[:1], *row[wanted]] for row in self.rows],
            )


def as_rich(table: Table) -> RichTable:
    """Returns a table for the terminal, which prints texts as they are, never as markup."""
    shown = RichTable(title=Text(printable(table.title)))
    wanted = [place for place, column in enumerate(table.head) if not column.page_only]
    for place in wanted:
        column = table.head[place]
        justify = "left" if column.text or not place else "right"
        shown.add_column(Text(printable(column.label)), justify=justify)
    for group in table.bodies:
        for row in group:
            texts = list[Text]()
            for cell in (row[place] for place in wanted):
                is_small = cell.small and not table.dense
                small = f"{' ' if cell.text else ''}[{cell.small}]" if is_small else ""
                style = LOOKS.get(cell.look, "")
                if cell.shade is not None and cell.shade >= DARK:
                    style = f"{style} bold"
                texts.append(Text(printable(cell.text + small), style))
            shown.add_row(*texts)
        shown.add_section()
    return shown


def print_tables(*tables: Table, **fields: Any) -> None:
    """Prints tables; with `log=json` their titles, and the data behind them as `fields`."""
    if prints_json():
        log_line("; ".join(printable(table.title) for table in tables), **fields)
        return
    for table in tables:
        console().print(as_rich(table))


def percent(value: float | None) -> str:
    """Returns a share as a percentage; a dash if it is missing."""
    return "-" if value is None else f"{100 * value:.2f} %"


def number(value: float | None) -> str:
    """Returns a number to four decimals; a dash if it is missing."""
    return "-" if value is None else f"{value:.4f}"


def share_cell(figure: Figure, total: int = 0) -> Cell:
    """Returns a share in percent, or a dash, with its interval and the total, if given."""
    count = f"of {total:,}" if total else ""
    if figure.value is None or figure.interval is None:
        return Cell(percent(figure.value), count)
    low, high = figure.interval
    between = f"{100 * low:.1f} to {100 * high:.1f} {count}".strip()
    return Cell(f"{100 * figure.value:.1f} %", between, bar=_bar(figure))


def figure_cell(measure: Measure, figure: Figure | float | None) -> Cell:
    """Returns a figure in the format of its measure, with its interval or why there is none.

    Intervals are drawn for shares, and for numbers where more is better, which are best at 1.
    """
    if figure is None:
        return Cell("-")
    if isinstance(figure, int | float):
        return Cell(_as_number(measure, figure))
    if measure.form == "share":
        return share_cell(figure)
    if figure.value is None:
        return Cell("undefined", figure.reason or "")
    text = f"{figure.value:.3f}" if measure.form == "number" else _as_number(measure, figure.value)
    if figure.interval is None:
        return Cell(text, f"no interval: {figure.reason}" if figure.reason else "")
    between = "{:.3f} to {:.3f}".format(*figure.interval)
    return Cell(text, between, bar=_bar(figure) if measure.better == "higher" else None)


def _as_number(measure: Measure, value: float) -> str:
    match measure.form:
        case "share":
            return percent(value)
        case "seconds":
            return duration(value)
        case "count":
            return f"{value:,.0f}"
        case "number":
            return f"{value:,.4g}"


def _bar(figure: Figure) -> tuple[float, float, float] | None:
    """Returns low end, value and high end of a figure; None if it is outside [0, 1]."""
    value, interval = figure.value, figure.interval
    if value is None or interval is None or not 0 <= value <= 1:
        return None
    return max(interval[0], 0.0), value, min(interval[1], 1.0)


def shorten(text: str, length: int) -> str:
    """Returns `text` with an ellipsis in its middle if it is longer than `length` characters."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[head + 1 - length :]}"


def shades(values: Iterable[float | None]) -> list[float | None]:
    """Returns the depth of each value between the lowest and the highest; None stays None."""
    values = list(values)
    present = [value for value in values if value is not None]
    low, high = min(present, default=0.0), max(present, default=0.0)
    return [None if v is None else 0.1 + 0.9 * (v - low) / ((high - low) or 1.0) for v in values]
