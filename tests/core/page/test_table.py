"""Tables, figures and lines in the terminal; `test_page.py` renders tables in HTML."""

from io import StringIO

import pytest
from rich.console import Console

from raylab.benchmark.pages.quality import log_lines
from raylab.core.page.table import (
    LINE,
    Cell,
    Column,
    Table,
    as_rich,
    figure_cell,
    shades,
    share_cell,
    shorten,
)
from raylab.core.printable import duration, join_names, pluralize
from raylab.core.runs.records import Figure, Measure
from raylab.label.pages.progress import AnnotationProgress, describe
from raylab.label.protocol.worker import Tally
from tests.benchmark.figures.qualities import quality
from tests.core.page.pages import rows_of

AGREEMENT = Measure("alpha", "number")


def estimate(
    value: float | None, interval: tuple[float, float] | None = None, reason: str | None = None
) -> Figure:
    return Figure(value=value, interval=interval, count=9, reason=reason)


def test_a_table_is_printed_with_intervals_in_brackets_and_without_what_is_of_pages():
    columns = ["name", "share", Column("why", text=True), Column("formula", page_only=True)]
    rows = [["a", Cell("50.0 %", "15.0 to 85.0"), "since", "x"], LINE, ["b", "-", "", "y"]]
    table = Table("Shares", columns, rows)
    assert rows_of(table) == [
        ["name", "share", "why"],
        ["a", "50.0 % [15.0 to 85.0]", "since"],
        ["b", "-", ""],
    ]
    assert len(table.bodies) == 2
    assert rows_of(Table("Shares", columns, rows, dense=True))[1] == ["a", "50.0 %", "since"]


def test_foreign_text_is_printed_as_it_is_or_written_out():
    hostile = "[/red][bold]x :smile: \x1b]0;title\x07 \u202eevil \ud800"
    shown = "[/red][bold]x :smile: \\x1b]0;title\\x07 \\u202eevil \\ud800"
    out = StringIO()
    table = Table(hostile, ["", hostile], [[hostile, Cell(hostile, hostile)]])
    Console(file=out, width=400).print(as_rich(table))
    assert out.getvalue().count(shown) == 5


def test_the_longer_side_of_a_table_goes_down_and_wide_ones_continue():
    table = Table("T", ["", *"abc"], [["r", *"123"], ["s", *"456"]])
    rows = rows_of(table.upright)
    assert rows == [["", "r", "s"], ["a", "1", "4"], ["b", "2", "5"], ["c", "3", "6"]]
    assert table.upright.upright == table.upright
    first, second = table.split(2)
    assert (first.title, rows_of(first)[1]) == ("T", ["r", "1", "2"])
    assert (second.title, rows_of(second)[1]) == ("T, continued", ["r", "3"])


def test_figures_have_their_interval_or_say_why_not():
    assert share_cell(estimate(None)) == figure_cell(AGREEMENT, None) == Cell("-")
    assert share_cell(estimate(0.5)) == Cell("50.00 %")
    shown = share_cell(estimate(0.5, (0.15, 0.85)), 1234)
    assert shown == Cell("50.0 %", "15.0 to 85.0 of 1,234", bar=(0.15, 0.5, 0.85))
    few = estimate(0.25, reason="3 cases")
    assert figure_cell(AGREEMENT, few) == Cell("0.250", "no interval: 3 cases")
    assert figure_cell(AGREEMENT, estimate(None, reason="none")) == Cell("undefined", "none")
    # The drawn interval ends where the scale does; a figure below 0 has none.
    shown = figure_cell(AGREEMENT, estimate(0.25, (-0.25, 0.5)))
    assert shown == Cell("0.250", "-0.250 to 0.500", bar=(0.0, 0.25, 0.5))
    assert figure_cell(AGREEMENT, estimate(-0.25, (-0.5, 0.5))).bar is None
    edits = Measure("edits", "number", "lower")
    assert figure_cell(edits, estimate(0.5, (0.25, 0.75))).bar is None
    assert figure_cell(Measure("calls", "count"), 1234) == Cell("1,234")
    assert figure_cell(Measure("a call", "seconds"), 100.0) == Cell("2 min")


def test_words_of_counts_lists_and_names():
    assert [pluralize(n, "case") for n in (0, 1, 1234)] == ["0 cases", "1 case", "1,234 cases"]
    assert pluralize(2, "case waits", "cases wait") == "2 cases wait"
    assert join_names(["a", "b"]) == "a and b"
    assert join_names(list("abcdef")) == "a, b, c, d and 2 more"
    assert shorten("abcdefghij", 5) == "ab…ij" and shorten("abcdef", 6) == "abcdef"
    spoken = {0: "0 s", 0.123: "0.12 s", 89: "89 s", 90: "2 min", 11100: "3 h 05 min"}
    assert {seconds: duration(seconds) for seconds in spoken} == spoken


def test_shades_span_the_values_that_there_are():
    assert shades([0.2, None, 0.4]) == pytest.approx([0.1, None, 1.0])


def test_the_line_says_how_far_and_how_fast_without_what_is_zero() -> None:
    progress = AnnotationProgress(10, {"accepted": 2})
    assert describe(progress.figures()) == (
        "2/10 cases  2 accepted  0 adjudicated  0 human  0 failed  0.0 calls/s  0 tokens"
    )
    tally = Tally(sent=40, answered=3, tokens=12345, cost=0.25, concurrency={0: 10, 1: 12})
    tally.statuses.update({"accepted": 3, "human": 1})
    tally.failures.update({"timeout": 2})
    progress.tally.add(tally)
    # The second worker has lowered its share since.
    progress.tally.add(Tally(concurrency={1: 9}))
    line = describe(progress.figures())
    assert line.startswith("6/10 cases  5 accepted  0 adjudicated  1 human  0 failed  ")
    assert "12,345 tokens  up to 19 at once  3 answers known  2 attempts failed  cost 0.25" in line


def test_users_find_models_and_metrics_by_their_lines() -> None:
    *_, novelty = log_lines(quality())
    assert novelty == "Benchmark novelty: not computed, no prior benchmark was given"
    flat = quality(models={"m": 0.75}, generations={}, figures={})
    assert list(log_lines(flat)) == ["Model 'm' mean accuracy: 0.7500"]
    counted = flat.model_copy(update={"file_counts": {"m": 4}})
    assert list(log_lines(counted)) == ["Model 'm' mean accuracy over 4 JSON files: 0.7500"]
