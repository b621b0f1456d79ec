"""Drift between the runs of an archive: a command, and a section on the page of each run."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from raylab.core.errors import RaylabError
from raylab.core.log import log_line
from raylab.core.page.page import Section, block
from raylab.core.page.table import MISSING, Cell, Column, Row, Table, print_tables
from raylab.core.runs.run import Run
from raylab.core.stats import LEVEL
from raylab.label.archive.records import RunRow
from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import recorded_codebook
from raylab.label.protocol.outcome import name_annotators
from raylab.label.protocol.run import archive_location
from raylab.label.statistics.drift import (
    ArchivedRun,
    Drift,
    DriftChange,
    alarms,
    compare_runs,
    explain_uncompared,
)
from raylab.label.statistics.frame import read_run, tabulate
from raylab.label.statistics.report import AnnotationReport

ALONE = (
    "No earlier run of the archive asked the same models. To see whether they drift, annotate the "
    "same cases again later with `fresh=true` and another `name=`."
)


def report_drift(storage: str, archive: str | None) -> None:
    """Compares all runs of an archive over time, on the cases that they share.

    Raises:
        ArchiveError: The archive cannot be read, or was changed.
        ConfigError: Runs are in remote storage and no archive is named.
    """
    with Archive.open(archive_location(storage, archive), create=False) as opened:
        unread, rows = dict[str, str](), list(opened.runs())
        begun = [row for row in rows if row.records]
        drift = compare_runs([*archived_runs(opened, begun, unread)], unread)
    empty = {row.name: "it has no case yet" for row in rows if not row.records}
    drift = drift.model_copy(update={"unpaired": {**drift.unpaired, **empty}})
    place = Run.at(storage)
    place.write_record(drift)
    print_tables(
        *change_tables(drift.comparisons), **drift.model_dump(mode="json", include={"comparisons"})
    )
    for name, why in drift.unpaired.items():
        log_line(f"note: {name}: {why}")
    for line in explain_uncompared(drift.comparisons):
        log_line(f"note: {line}")
    for line in unread_lines(drift.unread):
        log_line(f"warning: {line}", logging.WARNING)
    for alarm in alarms(drift.comparisons):
        log_line(f"alarm: {alarm}", logging.WARNING)
    log_line(f"{place / Drift.file}", uri=str(place / Drift.file))


def archived_runs(
    archive: Archive, rows: Iterable[RunRow], unread: dict[str, str]
) -> Iterator[ArchivedRun]:
    """Yields runs of an archive for the comparison of runs.

    Runs whose codebook cannot be used are added to `unread` with the reasons.
    """
    for row in rows:
        try:
            yield archived_run(archive, row)
        except RaylabError as error:
            unread[row.name] = str(error)


def unread_lines(unread: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence on each run that cannot be read."""
    for name, reason in unread.items():
        yield f"run {name} of the archive is not compared, because it cannot be read: {reason}"


def archived_run(archive: Archive, row: RunRow) -> ArchivedRun:
    """Returns a run for the comparison of runs; raises RaylabError without a usable codebook."""
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
    tables, lead = [*change_tables(report.changes)], "No change is significant."
    if not tables:
        lead = "Nothing could be compared with an earlier run." if report.changes else ALONE
    flagged = [*alarms(report.changes)]
    reasons = [*explain_uncompared(report.changes), *filter(None, [report.unpaired])]
    blocks = [block("notes", flagged) if flagged else lead, *tables]
    blocks += [f"{reason[:1].upper()}{reason[1:]}." for reason in reasons]
    return Section("drift", "Drift", blocks, page_only=True)


def change_tables(changes: Sequence[DriftChange]) -> Iterator[Table]:
    """Yields the measures of a run against the earlier run of the same models, if there are any."""
    rows = list[Row]()
    for change in changes:
        if change.p_value is None:
            continue
        runs = ((change.before, change.right_before), (change.after, change.right_after))
        rows.append(
            [
                change.label,
                *(Cell(f"{right:,} of {change.cases:,}", small=name) for name, right in runs),
                f"{change.lost:,}",
                f"{change.gained:,}",
                Cell(f"{change.p_value:.3g}*", look=MISSING)
                if change.is_flagged
                else f"{change.p_value:.3g}",
                "-" if change.recoded is None else f"{change.recoded:,} of {change.shared:,}",
                ", ".join(change.changed) or "-",
            ]
        )
    labels = ("before", "after", "lost", "gained", "p", "codes changed")
    if rows:
        yield Table(
            "Changes on shared cases",
            ["measure", *labels, Column("also changed", text=True)],
            rows,
            "Cases that were right, passed or had the same codes, of those that both runs answered "
            "anew. Lost: only before; gained: only after. p is that of McNemar's exact test; * is "
            f"significant at {LEVEL:g} after Holm's correction for all measures of the run.",
        )
