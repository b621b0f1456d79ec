"""Pairs of models: their table on a page, and the same as CSV and LaTeX."""

from collections.abc import Iterable

import pandas as pd

from raylab.benchmark.checks.differences import Difference
from raylab.core.page.table import BEST, Cell, Column, Row, Table

COLUMNS = [
    "model",
    Column("less", text=True),
    "points",
    Column("95 % interval", text=True),
    "p",
    "p (Holm)",
    Column("real", text=True),
]
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)
"""The characters that mean something else in LaTeX."""


def pair_table(title: str, pairs: Iterable[Difference], notes: str) -> Table:
    """Returns differences with their intervals, p-values and decisions, a row each."""
    return Table(title, COLUMNS, [_row(pair) for pair in pairs], notes)


def pair_cell(pair: Difference | None) -> Cell:
    """Returns a difference in points, bold if it is real; empty if there is none."""
    if pair is None or pair.difference is None:
        return Cell("")
    return Cell(f"{100 * pair.difference:+.1f}", look=BEST if pair.apart else "")


def pair_frame(pairs: Iterable[Difference]) -> pd.DataFrame:
    """Returns pairs, a row each, with the fields of `Difference`.

    The interval is in the columns `low` and `high`.
    """
    rows = [
        pair.model_dump(exclude={"interval"})
        | dict(zip(("low", "high"), pair.interval or (None, None), strict=True))
        for pair in pairs
    ]
    columns = [name for name in Difference.model_fields if name != "interval"]
    return pd.DataFrame(rows, columns=[*columns, "low", "high"])


def pair_latex(pairs: Iterable[Difference]) -> str:
    """Returns pairs as a table of LaTeX, differences in points."""
    head = ("Model", "Less", "Points", r"95\,\% interval", "$p$", "$p$ (Holm)")
    return as_latex("llrrrr", head, [_latex_row(pair) for pair in pairs])


def as_latex(alignment: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table of LaTeX for the package booktabs; cells are LaTeX already."""
    lines = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", rf"{' & '.join(head)} \\"]
    lines += [r"\midrule", *(rf"{' & '.join(row)} \\" for row in rows), r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def _between(pair: Difference) -> str:
    if pair.interval is None:
        return ""
    return "{:+.1f} to {:+.1f}".format(*(100 * end for end in pair.interval))


def _row(pair: Difference) -> Row:
    between = _between(pair) or Cell("-", small=pair.reason or "")
    decision = "yes" if pair.apart else "equivalent" if pair.equivalent else "not shown"
    figures = (between, f"{pair.p:.2g}", f"{pair.adjusted:.2g}")
    return [pair.first, pair.second, pair_cell(pair), *figures, decision]


def _latex_row(pair: Difference) -> Iterable[str]:
    yield from (name.translate(LATEX) for name in (pair.first, pair.second))
    yield "--" if pair.difference is None else f"${100 * pair.difference:+.1f}$"
    yield from (_between(pair) or "--", f"{pair.p:.3g}", f"{pair.adjusted:.3g}")
