"""Pairs of models: their table on a page, and the same as CSV and LaTeX."""

from collections.abc import Iterable

import pandas as pd

from raylab.benchmark.checks.differences import Difference
from raylab.benchmark.pages.sentences import interval_points, signed_points
from raylab.core.page.table import BEST, Cell, Column, Row, Table
from raylab.core.stats import Interval

TEST_COLUMNS = ["points", Column("95 % interval", text=True), "p", "p (Holm)"]
COLUMNS = ["model", Column("less", text=True), *TEST_COLUMNS, Column("real", text=True)]
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)
"""The characters that mean something else in LaTeX."""


def pair_table(title: str, pairs: Iterable[Difference], notes: str) -> Table:
    """Returns differences with their intervals, p-values and decisions, a row each."""
    return Table(title, COLUMNS, [_row(pair) for pair in pairs], notes)


def pair_cell(pair: Difference | None) -> Cell:
    """Returns a difference in points, bold if it is real; empty if there is none."""
    if pair is None or pair.difference is None:
        return Cell("")
    return Cell(signed_points(pair.difference), look=BEST if pair.apart else "")


def pair_frame(pairs: Iterable[Difference]) -> pd.DataFrame:
    """Returns pairs, a row each, with the fields of `Difference`.

    The interval is in the columns `low` and `high`.
    """
    table = pd.DataFrame(map(dict, pairs), columns=[*Difference.model_fields])
    ends = [pair or (None, None) for pair in table.pop("interval")]
    return table.join(pd.DataFrame(ends, columns=["low", "high"]))


def pair_latex(pairs: Iterable[Difference]) -> str:
    """Returns pairs as a table of LaTeX, differences in points."""
    head = ("Model", "Less", "Points", r"95\,\% interval", "$p$", "$p$ (Holm)")
    return as_latex("llrrrr", head, [_latex_row(pair) for pair in pairs])


def as_latex(alignment: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table of LaTeX for the package booktabs; cells are LaTeX already."""
    lines = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", rf"{' & '.join(head)} \\"]
    lines += [r"\midrule", *(rf"{' & '.join(row)} \\" for row in rows), r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def test_cells(interval: Interval | None, reason: str | None, p: float, adjusted: float) -> Row:
    """Returns the interval in points, or why there is none, and the p-values of a test."""
    between = interval_points(interval) or Cell("-", small=reason or "")
    return [between, f"{p:.2g}", f"{adjusted:.2g}"]


def _row(pair: Difference) -> Row:
    decision = "yes" if pair.apart else "equivalent" if pair.equivalent else "not shown"
    tested = test_cells(pair.interval, pair.reason, pair.p, pair.adjusted)
    return [pair.first, pair.second, pair_cell(pair), *tested, decision]


def _latex_row(pair: Difference) -> Iterable[str]:
    yield from (name.translate(LATEX) for name in (pair.first, pair.second))
    yield "--" if pair.difference is None else f"${signed_points(pair.difference)}$"
    yield from (interval_points(pair.interval) or "--", f"{pair.p:.3g}", f"{pair.adjusted:.3g}")
