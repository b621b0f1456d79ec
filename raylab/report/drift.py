"""The runs of an archive over time: a command, and a section of the page of each run."""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raylab.annotation.outcome import ANNOTATORS, SIDES
from raylab.annotation.run import archive_location
from raylab.annotation.statistics.agreement import AgreementReport
from raylab.annotation.statistics.drift import (
    LEVEL,
    ArchivedRun,
    Drift,
    DriftChange,
    alarms,
    compare_runs,
)
from raylab.annotation.statistics.figures import SourceReport
from raylab.annotation.statistics.frame import read_run, tabulate
from raylab.annotation.statistics.report import AnnotationReport
from raylab.archive.records import RunRow
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.annotation import ProtocolConfig
from raylab.config.jobs import ReportConfig
from raylab.log import log_line
from raylab.report.page import Block, Section, block
from raylab.report.table import (
    MISSING,
    Cell,
    Column,
    Row,
    Table,
    figure_cell,
    pluralize,
    print_tables,
    share_cell,
)
from raylab.runs.records import measures_of
from raylab.runs.run import Run
from raylab.taxonomies import choose_codebook

ALONE = (
    "This is the only run of the archive. To see whether the models change, annotate the same "
    "cases now and again with `fresh=true`: from the second run on, pass rates and agreement stand "
    "here beside each other, and changes that are no chance raise an alarm."
)


class TimedRun(NamedTuple):
    """A run of the archive with its report; None if this storage has none that matches it."""

    run: str
    started: str
    report: AnnotationReport | None


def report_drift(config: ReportConfig) -> None:
    """Compares all runs of an archive over time, on the cases that they share.

    Raises:
        ArchiveError: The archive cannot be read, or was changed.
        ConfigError: Runs are in remote storage and no archive is named.
    """
    # No figure of drift depends on the distances, which the runs may have chosen.
    codebook = choose_codebook(ProtocolConfig())
    location = archive_location(config)
    with Archive.open(location, create=False) as archive:
        drift = compare_runs(archived_run(archive, row, codebook) for row in archive.runs())
    storage = Run.at(config.storage)
    storage.write_record(drift)
    print_tables(*drift_tables(drift), **drift.model_dump(mode="json", include={"comparisons"}))
    for note in drift.notes:
        log_line(f"note: {note}")
    for alarm in drift.alarms:
        log_line(f"alarm: {alarm}", logging.WARNING)
    log_line(f"{storage / Drift.file}", uri=str(storage / Drift.file))


def archived_run(archive: Archive, row: RunRow, codebook: Codebook) -> ArchivedRun:
    """Returns a run of an archive for the comparison of runs."""
    llm = row.config.get("llm", {})
    prompts = codebook.prompts.get(llm.get("prompt", ""))
    open_book = prompts is not None and prompts.open_book
    return ArchivedRun(
        row.name,
        row.started,
        row.versions.get("taxonomy"),
        {side: llm[role]["model"] for side, role in ANNOTATORS.items() if llm.get(role)},
        lambda: tabulate(read_run(archive.run(row.name), codebook), codebook, open_book=open_book),
    )


def drift_tables(drift: Drift) -> Iterator[Table]:
    """Yields the runs in order of time with each of their models, and their changes."""
    names = ("run", "started", "side", "response_model", "prompt")
    labels = [measure.label for measure in measures_of(SourceReport).values()]
    columns = [*(Column(name, text=True) for name in names), "answers", *labels]
    rows = [
        [run.run, _minute(run.started), side, *_source_cells(source)]
        for run in drift.runs
        for side, sources in run.sources.items()
        for source in sources
    ]
    yield Table("Runs over time", columns, rows, dense=True)
    yield _change_table(drift.comparisons)


def _source_cells(source: SourceReport) -> Row:
    shares = [share_cell(getattr(source, name)) for name in measures_of(SourceReport)]
    return [source.response_model, source.prompt, f"{source.answers:,}", *shares]


def drift_section(name: str, runs: Sequence[TimedRun], earlier: int = 0) -> Section:
    """Returns the section of a run's page about the latest runs of its archive.

    Args:
        name: The run.
        runs: It and others, earliest first.
        earlier: Number of earlier runs that are left out.
    """
    if len(runs) < 2:
        return Section("drift", "Over time", [ALONE])
    changes = [change for run in runs if run.report for change in run.report.changes]
    flagged = list(alarms(changes))
    quiet = f" No change raises an alarm at the level {LEVEL:g}, corrected for all measures."
    blocks: list[Block] = [
        block("notes", flagged),
        _run_table(name, runs, earlier),
        block("heading", "On the same cases"),
        "What can be laid to the models is measured on the cases that two runs of the same models "
        f"share and both answered anew.{'' if flagged else quiet}",
        _change_table(changes) if changes else "No two of these runs asked the same models.",
    ]
    return Section("drift", "Over time", blocks, page_only=True)


def _run_table(name: str, runs: Sequence[TimedRun], earlier: int) -> Table:
    figures = ("cases", "passed, A", "passed, B", "same code", "alpha")
    fewer = f", less {pluralize(earlier, 'earlier one')}" if earlier else ""
    return Table(
        "Runs over time",
        ["run", Column("started", text=True), *figures],
        [
            [f"{run}{' (this run)' if run == name else ''}", _minute(started), *_figures(report)]
            for run, started, report in runs
        ],
        f"The runs of the archive{fewer}, the earliest on top; runs on other cases differ for "
        "that reason alone. A dash: no report of that run, as the archive has it now, lies in this "
        "storage.",
    )


def _figures(report: AnnotationReport | None) -> Row:
    if report is None:
        return ["-"] * 5
    shares = [report.annotators[side].evaluation.pass_rate for side in SIDES]
    return [
        f"{report.cases.total:,}",
        *map(share_cell, (*shares, report.agreement.exact)),
        figure_cell(measures_of(AgreementReport)["alpha"], report.agreement.alpha),
    ]


def _change_table(changes: Sequence[DriftChange]) -> Table:
    """Returns a row for each measure of a run against the earlier run of the same models."""
    texts = (Column("before", text=True), Column("after", text=True))
    labels = ("right before", "right after", "lost", "gained", "p", "p paired", "codes changed")
    return Table(
        f"Change on shared cases; * is flagged at {LEVEL:g} (Holm)",
        ["measure", *texts, *labels, Column("changed", text=True)],
        [[change.label, change.before, change.after, *_change_cells(change)] for change in changes],
        "Cases that were right before and are not now (lost), and the other way (gained); p values "
        "of Fisher's and McNemar's exact tests, * where flagged; of how many shared cases the "
        "annotator changed its code; and what else changed.",
    )


def _change_cells(change: DriftChange) -> Row:
    recoded = "-" if change.recoded is None else f"{change.recoded:,} of {change.shared:,}"
    if (result := change.result) is None:
        return [*["-"] * 6, recoded, change.reason or ""]
    p_values = [
        Cell(f"{test.p_value:.3g}*", look=MISSING) if test.flagged else f"{test.p_value:.3g}"
        for test in result.tests.values()
    ]
    rights = (f"{right} of {change.cases}" for right in (result.right_before, result.right_after))
    changed = ", ".join(change.changed) or "-"
    return [*rights, str(result.lost), str(result.gained), *p_values, recoded, changed]


def _minute(time: str) -> str:
    """Returns a time in ISO 8601 to the minute."""
    return time[:16].replace("T", " ")
