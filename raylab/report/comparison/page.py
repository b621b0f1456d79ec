"""The comparison of runs for people: tables on the terminal, and a page."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from raylab.config.jobs import ReportConfig
from raylab.log import log_line
from raylab.report.comparison.records import (
    MODELS,
    ComparedValue,
    Comparison,
    ComparisonReport,
    compare,
    find_runs,
    measures_of_kind,
    title_of_kind,
)
from raylab.report.page import (
    MONITOR,
    PAGE,
    Block,
    Page,
    Section,
    curves,
    render,
    write_page,
)
from raylab.report.table import (
    BEST,
    Cell,
    Column,
    Table,
    bar_of,
    counted,
    duration,
    listed,
    print_tables,
    share_cell,
    shortened,
)
from raylab.runs.measures import Measure
from raylab.runs.run import REPORT, Run

COLUMNS = 6
"""Most columns of a table on the terminal; the rest continue in further tables."""
LONGEST_VALUE = 60
"""Most characters shown of a configuration value."""
LONGEST_FACT = 26
"""Most characters shown of a fact about a run: a whole time, the start of a commit."""
MODELS_NOTE = (
    "Each model at its best validation epoch, and the rules that learn nothing on the same tasks. "
    "All figures are teacher-forced but those of free-running decoding: the solve rate and the "
    "shape accuracy. Of models that write all cells at once, such as recursive, all figures are "
    "free-running. Skill is (model - best rule) / (1 - best rule)."
)


def report_runs(config: ReportConfig) -> None:
    """Compares the runs of `config`, prints tables, and writes `report.html` and `report.json`.

    Raises:
        RunError: There is no such run, or the name of this one is taken.
        DataError: A file of a run cannot be read.
    """
    comparison = compare(find_runs(config.runs, config.storage))
    run, report = Run.open(config, config.job), comparison.report
    run.write_record(report)
    write_page(run, render_comparison(run.name, run.uri, comparison))
    run.finish()
    print_tables(*comparison_tables(report), comparison=report.model_dump(mode="json"))
    for caveat in report.caveats:
        log_line(caveat)
    log_line(f"report {run / PAGE} and {REPORT}", uri=run.uri)


def comparison_tables(report: ComparisonReport) -> Iterator[Table]:
    """Yields the tables of a comparison for the terminal."""
    tables = [runs_table(report), *(figures_table(report, kind) for kind in report.figures)]
    tables += [differences_table(report, job) for job in report.differences]
    for table in (*tables, provenance_table(report)):
        yield from table.split(COLUMNS)


def render_comparison(name: str, uri: str, comparison: Comparison) -> str:
    """Renders the page, a complete HTML document."""
    report = comparison.report
    lead, sections = list(_summary(report)), list(_sections(comparison))
    return render(Page("comparison", name, uri, lead, sections, report.caveats))


def runs_table(report: ComparisonReport) -> Table:
    """Returns the kind and the state of each run, with the reason if it cannot be compared."""
    rows: list[Sequence[str]] = []
    for label, run in report.runs.items():
        state = "finished" if run.finished else "not finished"
        rows.append([label, run.job or "-", f"{state}: {run.problem}" if run.problem else state])
    columns = ["", Column("job", text=True), Column("state", text=True)]
    notes = "Each run with its state. A run that is not finished is shown as far as it came."
    return Table("Runs", columns, rows, notes)


def figures_table(report: ComparisonReport, kind: str) -> Table:
    """Returns figures of one kind; the best of each measure is marked."""
    rows = report.figures[kind]
    measures = measures_of_kind(kind, rows)
    best = {
        key: measure.best([row[key].value if key in row else None for row in rows.values()])
        for key, measure in measures.items()
    }

    def cell(key: str, label: str) -> Cell:
        figure = rows[label].get(key)
        if figure is None or figure.value is None:
            return Cell("-")
        shown = _figure_cell(measures[key], figure, figure.value)
        return replace(shown, look=BEST) if figure.value == best[key] else shown

    notes = "The best value of each measure is bold, where one end of its scale is better."
    if any(value.interval for row in rows.values() for value in row.values()):
        notes += (
            " Small numbers are 95 % intervals; where they overlap, the best may be best by chance."
        )
    labels = {key: measure.label for key, measure in measures.items()}
    return _arranged(title_of_kind(kind), labels, list(rows), cell, notes)


def differences_table(report: ComparisonReport, job: str) -> Table:
    """Returns the keys of the configuration in which the runs of a job differ."""
    different = report.differences[job]
    return _arranged(
        f"Configurations of {job}",
        {key: key for key in different},
        [label for label, run in report.runs.items() if run.job == job],
        lambda key, label: Cell(_json(different[key].get(label), LONGEST_VALUE)),
        "Only keys with different values; a dash where a run does not have the key.",
        text=True,
    )


def provenance_table(report: ComparisonReport) -> Table:
    """Returns the provenance of each run; `*` marks facts that differ."""
    facts = report.provenance
    return _arranged(
        "Provenance",
        {
            key: f"{key} *" if len(set(values.values())) > 1 else key
            for key, values in facts.items()
        },
        list(report.runs),
        lambda key, label: Cell(_json(facts[key].get(label), LONGEST_FACT)),
        "The origin of each run; * marks facts that differ.",
        text=True,
    )


def _arranged(
    title: str,
    facts: dict[str, str],
    runs: Sequence[str],
    cell: Callable[[str, str], Cell],
    notes: str,
    *,
    text: bool = False,
) -> Table:
    """Returns a table of labelled facts by run whose longer side runs down."""
    labels, columns = list(facts.values()), list(runs)
    rows = [[label, *(cell(key, run) for run in runs)] for key, label in facts.items()]
    if len(runs) > len(facts):
        columns, rows = labels, [[run, *(cell(key, run) for key in facts)] for run in runs]
    return Table(title, ["", *(Column(name, text=text) for name in columns)], rows, notes)


def _summary(report: ComparisonReport) -> Iterator[str]:
    labels = list(report.runs)
    yield f"{counted(len(labels), 'run')} side by side: {listed(labels, 8)}."
    unfinished = [label for label, run in report.runs.items() if not run.finished]
    if unfinished:
        yield f"Not finished: {listed(unfinished)}; shown is what they left so far."


def _sections(comparison: Comparison) -> Iterator[Section]:
    report = comparison.report
    yield Section("runs", "Runs", [runs_table(report)])
    for kind in report.figures:
        note: list[Block] = [MODELS_NOTE] if kind == MODELS else []
        yield Section(kind, title_of_kind(kind), [*note, figures_table(report, kind)])
    if comparison.histories:
        drawn = curves(comparison.histories, comparison.monitor or MONITOR)
        yield Section("curves", "Learning curves", [drawn])
    if report.differences:
        blocks = [
            differences_table(report, job)
            if different
            else f"Configurations of {job}: the same in every key."
            for job, different in report.differences.items()
        ]
        yield Section("configurations", "Configurations that differ", blocks)
    yield Section("provenance", "Provenance", [provenance_table(report)])


def _figure_cell(measure: Measure, figure: ComparedValue, value: float) -> Cell:
    if measure.form == "share":
        return share_cell(figure)
    between = "" if figure.interval is None else "{:.3f} to {:.3f}".format(*figure.interval)
    return Cell(_as_text(measure, value), between, bar=bar_of(figure))


def _as_text(measure: Measure, value: float) -> str:
    match measure.form:
        case "seconds":
            return duration(value)
        case "count":
            return f"{value:,.0f}"
        case _:
            return f"{value:,.4g}"


def _json(value: Any, longest: int) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, longest)
