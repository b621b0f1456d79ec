"""The comparison of runs for people: tables on the terminal, and a page."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from raylab.config.jobs import ReportConfig
from raylab.log import log_line, log_tables
from raylab.quality.metrics import METRICS as QUALITY_METRICS
from raylab.report.annotation import shown_seconds
from raylab.report.charts.intervals import interval_plot
from raylab.report.charts.theme import SERIES, shortened
from raylab.report.comparison.compared import Comparison, Figures
from raylab.report.comparison.reading import compare, find_runs
from raylab.report.page import MONITOR, PAGE, counted, curves, listed, render, write_page
from raylab.report.tables import percent
from raylab.runs.measures import Measure
from raylab.runs.run import REPORT, Run

COLUMNS = 6
"""Most columns of a table on the terminal; the rest continue in further tables."""
LONGEST_VALUE = 60
"""Most characters shown of a configuration value."""
LONGEST_FACT = 26
"""Most characters shown of a fact about a run: a whole time, the start of a commit."""
PLOTTED = {
    "benchmarks": tuple(QUALITY_METRICS),
    "annotations": (
        "annotators.A.evaluation.pass_rate",
        "annotators.B.evaluation.pass_rate",
        "agreement.exact",
        "agreement.alpha",
        "gold.final.roots",
    ),
}
"""Measures that are drawn with their intervals."""


def report_runs(config: ReportConfig) -> None:
    """Compares the runs of `config`, prints tables, and writes `report.html` and `report.json`.

    Raises:
        RunError: There is no such run, or the name of this one is taken.
        DataError: A file of a run cannot be read.
    """
    comparison = compare(find_runs(config.runs, config.storage))
    run = Run.open(config, config.job)
    report = comparison.report()
    run.write_record(report)
    write_page(run, render_comparison(run.name, run.uri, comparison))
    run.finish()
    log_tables(*comparison_tables(comparison), comparison=report.model_dump(mode="json"))
    for caveat in comparison.caveats:
        log_line(caveat)
    log_line(f"report {run / PAGE} and {REPORT}", uri=run.uri)


@dataclass(frozen=True)
class Cell:
    """A cell of a grid.

    Attributes:
        text: Its content.
        interval: 95 % interval of the figure; empty without one.
        best: True for the best of its measure.
    """

    text: str
    interval: str = ""
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table whose longer side runs down, readable with any number of runs."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[Cell]]

    @classmethod
    def of(
        cls,
        title: str,
        facts: Sequence[str],
        runs: Sequence[str],
        cell: Callable[[str, str], Cell],
        named: Callable[[str], str] = str,
    ) -> "Grid":
        """Arranges the cells by fact and run; `named` returns the name of a fact."""
        names = [named(fact) for fact in facts]
        if len(runs) > len(facts):
            return cls(title, runs, names, [[cell(fact, run) for fact in facts] for run in runs])
        return cls(title, names, runs, [[cell(fact, run) for run in runs] for fact in facts])


def comparison_tables(comparison: Comparison) -> Iterator[Table]:
    """Yields the tables of a comparison for the terminal; the best values are bold."""
    for grid in (runs_grid(comparison), *map(figures_grid, comparison.figures)):
        yield from _tables(grid)
    for job in comparison.differences:
        yield from _tables(differences_grid(comparison, job))
    yield from _tables(provenance_grid(comparison))


def render_comparison(name: str, uri: str, comparison: Comparison) -> str:
    """Renders the page, a complete HTML document; names and messages in it are escaped."""
    monitors = [run.config.get("training.monitor") for run in comparison.runs.values()]
    return render(
        "comparison.html",
        name=name,
        uri=uri,
        lead=list(_summary(comparison)),
        caveats=comparison.caveats,
        sections=dict(_sections(comparison)),
        runs=runs_grid(comparison),
        figures=[(one.key, figures_grid(one), _plots(one)) for one in comparison.figures],
        curves=curves(comparison.histories, next(filter(None, monitors), MONITOR)),
        drawn=len(comparison.histories),
        coloured=len(SERIES),
        differences=[differences_grid(comparison, job) for job in comparison.differences],
        provenance=provenance_grid(comparison),
    )


def runs_grid(comparison: Comparison) -> Grid:
    """Returns the kind and the state of each run, with the reason if it cannot be compared."""

    def cell(fact: str, label: str) -> Cell:
        run = comparison.runs[label]
        if fact == "job":
            return Cell(run.job or "-")
        state = "finished" if run.finished else "not finished"
        return Cell(f"{state}: {run.problem}" if run.problem else state)

    labels = list(comparison.runs)
    rows = [[cell(fact, label) for fact in ("job", "state")] for label in labels]
    return Grid("Runs", labels, ["job", "state"], rows)


def figures_grid(figures: Figures) -> Grid:
    """Returns figures of one kind; the best of each measure is marked."""
    best = {
        key: measure.best([of[key].value if key in of else None for of in figures.values.values()])
        for key, measure in figures.measures.items()
    }

    def cell(key: str, label: str) -> Cell:
        estimate = figures.values[label].get(key)
        if estimate is None or estimate.value is None:
            return Cell("-")
        measure, value, interval = figures.measures[key], estimate.value, estimate.interval
        between = "" if interval is None else " to ".join(_end(measure, end) for end in interval)
        return Cell(_shown(measure, value, interval is not None), between, value == best[key])

    measures = figures.measures
    return Grid.of(
        figures.title, list(measures), list(figures.values), cell, lambda key: measures[key].label
    )


def differences_grid(comparison: Comparison, job: str) -> Grid:
    """Returns the keys of the configuration in which the runs of a job differ."""
    different = comparison.differences[job]
    labels = [label for label, run in comparison.runs.items() if run.job == job]
    return Grid.of(
        f"Configurations of {job}",
        list(different),
        labels,
        lambda key, label: Cell(_text(different[key].get(label), LONGEST_VALUE)),
    )


def provenance_grid(comparison: Comparison) -> Grid:
    """Returns the provenance of each run; `*` marks facts that differ."""
    facts = comparison.provenance
    return Grid.of(
        "Provenance",
        list(facts),
        list(comparison.runs),
        lambda key, label: Cell(_text(facts[key].get(label), LONGEST_FACT)),
        lambda key: f"{key} *" if len(set(facts[key].values())) > 1 else key,
    )


def _tables(grid: Grid) -> Iterator[Table]:
    for start in range(0, len(grid.columns), COLUMNS):
        table = Table(title=grid.title + (", continued" if start else ""))
        table.add_column("")
        for name in grid.columns[start : start + COLUMNS]:
            table.add_column(Text(name))
        for name, cells in zip(grid.rows, grid.cells, strict=True):
            table.add_row(Text(name), *map(_as_text, cells[start : start + COLUMNS]))
        yield table


def _as_text(cell: Cell) -> Text:
    interval = f" [{cell.interval}]" if cell.interval else ""
    return Text(cell.text + interval, "bold green" if cell.best else "")


def _summary(comparison: Comparison) -> Iterator[str]:
    labels = list(comparison.runs)
    yield f"{counted(len(labels), 'run')} side by side: {listed(labels, 8)}."
    unfinished = [label for label, run in comparison.runs.items() if not run.finished]
    if unfinished:
        yield f"Not finished: {listed(unfinished)}; shown is what they left so far."


def _sections(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yields ids and titles of the sections."""
    yield "runs", "Runs"
    for figures in comparison.figures:
        yield figures.key, figures.title
    if comparison.histories:
        yield "curves", "Learning curves"
    if comparison.differences:
        yield "configurations", "Configurations that differ"
    yield "provenance", "Provenance"


def _plots(figures: Figures) -> list[tuple[str, Markup]]:
    """Plots each measure with intervals, one row per run; returns labels and SVGs."""
    return [
        (
            measure.label,
            Markup(
                interval_plot(
                    {label: {"": estimates[key]} for label, estimates in figures.values.items()},
                    f"{measure.label} of each run with its 95 % interval",
                    prefix=f"{figures.key}-{place}",
                    shares=measure.form == "share",
                )
            ),
        )
        for place, key in enumerate(PLOTTED.get(figures.key, ()))
        if (measure := figures.measures.get(key)) is not None
    ]


def _shown(measure: Measure, value: float, estimated: bool) -> str:
    match measure.form:
        case "share":
            return f"{_end(measure, value)} %" if estimated else percent(value)
        case "number":
            return f"{value:,.4g}"
        case "count":
            return f"{value:,.0f}"
        case "seconds":
            return shown_seconds(value)


def _end(measure: Measure, value: float) -> str:
    return f"{100 * value:.1f}" if measure.form == "share" else f"{value:.3f}"


def _text(value: Any, longest: int) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, longest)
