"""Drift between the runs of an archive: a command, and a section on the page of each run."""

import logging
from collections.abc import Sequence

from raylab.annotation.outcome import name_annotators
from raylab.annotation.run import archive_location
from raylab.annotation.statistics.drift import (
    LEVEL,
    ArchivedRun,
    Drift,
    DriftChange,
    DriftRun,
    alarms,
    compare_runs,
)
from raylab.annotation.statistics.frame import read_run, tabulate
from raylab.annotation.statistics.report import AnnotationReport
from raylab.archive.records import RunRow
from raylab.archive.store import Archive
from raylab.config.jobs import ReportConfig
from raylab.log import log_line
from raylab.report.page import Section, block
from raylab.report.table import MISSING, Cell, Column, Row, Table, print_tables, share_cell
from raylab.runs.run import Run
from raylab.taxonomies import recorded_codebook

ALONE = (
    "No earlier run of the archive asked the same models. To see whether they drift, annotate the "
    "same cases again later with `fresh=true` and another `name=`."
)


def report_drift(config: ReportConfig) -> None:
    """Compares all runs of an archive over time, on the cases that they share.

    Raises:
        ArchiveError: The archive cannot be read, or was changed.
        ConfigError: Runs are in remote storage and no archive is named.
    """
    location = archive_location(config)
    with Archive.open(location, create=False) as archive:
        drift = compare_runs(archived_run(archive, row) for row in archive.runs())
    storage = Run.at(config.storage)
    storage.write_record(drift)
    tables = (run_table(drift.runs), change_table(drift.comparisons))
    print_tables(*tables, **drift.model_dump(mode="json", include={"comparisons"}))
    compared = {change.after for change in drift.comparisons}
    for run in drift.runs[1:]:
        if run.run not in compared:
            log_line(f"note: no run before {run.run} asked the same models")
    for alarm in alarms(drift.comparisons):
        log_line(f"alarm: {alarm}", logging.WARNING)
    log_line(f"{storage / Drift.file}", uri=str(storage / Drift.file))


def archived_run(archive: Archive, row: RunRow) -> ArchivedRun:
    """Returns a run of an archive for the comparison of runs."""
    codebook = recorded_codebook(row.config)
    models = [chat["model"] for chat in row.config.get("llm", {}).get("annotators", ())]
    names = name_annotators(len(models))
    return ArchivedRun(
        row.name,
        row.started,
        f"{codebook.name} {codebook.version}",
        dict(zip(names, models, strict=False)),
        lambda: tabulate(read_run(archive.run(row.name), codebook), codebook, names),
    )


def drift_section(report: AnnotationReport) -> Section:
    """Returns the section of a run's page about earlier runs of its archive."""
    if not report.changes:
        return Section("drift", "Drift", [ALONE])
    flagged = list(alarms(report.changes))
    lead = block("notes", flagged) if flagged else "No change is significant."
    blocks = [lead, change_table(report.changes), run_table(report.compared, report.run)]
    return Section("drift", "Drift", blocks, page_only=True)


def run_table(runs: Sequence[DriftRun], name: str = "") -> Table:
    """Returns runs with their figures; `name` is the one that the page is about."""
    names = sorted({name for run in runs for name in run.passed})
    passed = (f"pass rate, {name}" for name in names)
    return Table(
        "Runs over time",
        ["run", Column("started", text=True), "cases", *passed, "same code"],
        [
            [
                f"{run.run}{' (this run)' if run.run == name else ''}",
                f"{run.started:%Y-%m-%d %H:%M}",
                f"{run.cases:,}",
                *(share_cell(share) if (share := run.passed.get(name)) else "-" for name in names),
                share_cell(run.exact),
            ]
            for run in runs
        ],
        "Over all cases of each run: runs of different cases differ for that reason alone.",
    )


def change_table(changes: Sequence[DriftChange]) -> Table:
    """Returns a row for each measure of a run against the earlier run of the same models."""
    texts = (Column("before", text=True), Column("after", text=True))
    labels = ("right before", "right after", "lost", "gained", "p", "paired p", "codes changed")
    return Table(
        "Changes on shared cases",
        ["measure", *texts, *labels, Column("also changed", text=True)],
        [[change.label, change.before, change.after, *_change_cells(change)] for change in changes],
        "On the cases that two runs of the same models both answered anew. Lost: right only "
        "before; gained: right only after. The p values are those of Fisher's and McNemar's exact "
        f"tests; * is significant at {LEVEL:g} after Holm's correction for all measures of the "
        "run.",
    )


def _change_cells(change: DriftChange) -> Row:
    recoded = "-" if change.recoded is None else f"{change.recoded:,} of {change.shared:,}"
    if not change.cases:
        return [*["-"] * 6, recoded, change.reason or ""]
    p_values = [
        Cell(f"{test.p_value:.3g}*", look=MISSING) if test.flagged else f"{test.p_value:.3g}"
        for test in change.tests.values()
    ]
    rights = (f"{right} of {change.cases}" for right in (change.right_before, change.right_after))
    changed = ", ".join(change.changed) or "-"
    return [*rights, str(change.lost), str(change.gained), *p_values, recoded, changed]
