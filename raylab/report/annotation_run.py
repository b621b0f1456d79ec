"""The end of an annotation: report, score tree and page."""

from collections.abc import Mapping

from raylab.annotation.decisions import audited_codes
from raylab.annotation.outcome import Side, Status, read_decision, read_outcome
from raylab.annotation.run import AnnotationRun
from raylab.annotation.statistics.agreement import disagreement_report
from raylab.annotation.statistics.drift import (
    LEVEL,
    ArchivedRun,
    DriftChange,
    alarms,
    compare_latest,
)
from raylab.annotation.statistics.export import export_run
from raylab.annotation.statistics.frame import Tables, read_run, tabulate
from raylab.annotation.statistics.report import AnnotationReport, ArchiveHead, batch_report
from raylab.annotation.statistics.scores import CANDIDATES, annotator_names, score_tree
from raylab.annotation.statistics.usage import UncertainUsage
from raylab.annotation.worker import OpenCases
from raylab.archive.records import AUDIT, UNCONFIRMED, RunRow
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.errors import DataError, LlmError, RunError
from raylab.files import Place
from raylab.llm.embedded import uses_embedded
from raylab.log import log_line
from raylab.report.annotation import annotation_tables
from raylab.report.annotation_page import (
    AnnotationPage,
    FullCase,
    OverTime,
    TimedRun,
    render_annotation,
)
from raylab.report.page import PAGE, write_page
from raylab.report.table import counted, print_tables
from raylab.runs.run import SCORES, Run

SHOWN_RUNS = 12
"""Most runs in the comparison over time."""


def conclude(annotation: AnnotationRun, left: OpenCases | None = None) -> None:
    """Writes and prints the results of the run.

    The report includes decisions by people, so every call writes it again.

    Args:
        annotation: The run.
        left: Cases that were tried and stay open.

    Raises:
        ArchiveError: A record of the run was changed after it was archived.
        LlmError: Cases failed, or stay open.
    """
    run, archived = annotation.run, annotation.archived
    report = _report(annotation, left)
    run.write_record(report)
    _export(annotation)
    over_time = _over_time(annotation.archive, report, annotation.config.storage)
    cases = [
        _full_case(archived, annotation.codebook, shown.case)
        for shown in report.disagreements.shown
    ]
    page = AnnotationPage(run.uri, report, over_time, run.record, cases)
    write_page(run, render_annotation(page))
    _print(run, report)
    counts = archived.counts(now=True)
    if waiting := counts.get(Status.HUMAN, 0):
        people = counted(waiting, "case waits", "cases wait")
        command = annotation.config.command("review", run.name)
        log_line(f"{people} for a person: {command}", waiting=waiting)
    if unconfirmed := counts.get(UNCONFIRMED, 0):
        decisions = counted(unconfirmed, "decision waits", "decisions wait")
        log_line(
            f"{decisions} for the evaluator: the command that made the run, with resume=true, has "
            "it judge them",
            unconfirmed=unconfirmed,
        )
    failures: list[str] = []
    if failed := counts.get(Status.FAILED, 0):
        first = next(archived.cases(Status.FAILED)).case
        reason = read_outcome(first.body, annotation.codebook).reason
        failures.append(
            f"{counted(failed, 'case')} failed, first {first.case}: {reason}\n"
            "to try them again run the same configuration under another name=: what was answered "
            "is not asked again"
        )
    if left is not None:
        failures.append(f"{left}\nresume=true tries them again")
    if failures:
        raise LlmError("\n".join(failures))


def _report(annotation: AnnotationRun, left: OpenCases | None) -> AnnotationReport:
    """Reads the outcomes once; returns their report and writes the score tree."""
    config, codebook, settings = annotation.config, annotation.codebook, annotation.settings
    run, archived = annotation.run, annotation.archived
    head, open_book = archived.row(), settings.prompts.open_book
    tables = tabulate(read_run(archived, codebook), codebook, open_book=open_book)
    logs, tree = score_tree(
        tables,
        config.generations,
        CANDIDATES if settings.rules.stages == "evaluate" else annotator_names(config.llm.roles),
        (head.finished or head.started).isoformat(),
    )
    for path, log in logs.items():
        run.write_record(log.model_copy(update={"run_id": run.id}), f"{SCORES}/{path}")
    warnings = settings.warnings if left is None else (*settings.warnings, f"{left}.")
    batch = batch_report(
        tables,
        [read_decision(row.body, codebook) for row in archived.decisions()],
        audited_codes(archived.decisions(kind=AUDIT), codebook) or None,
        uncertain=_uncertain(archived),
        smoke=uses_embedded(config.llm),
        warnings=warnings,
        seed=config.protocol.seed,
    )
    return AnnotationReport(
        run=run.name,
        run_id=run.id,
        archive=ArchiveHead(place=annotation.archive.place, records=head.records),
        score_tree=tree,
        disagreements=disagreement_report(tables),
        changes=tuple(_changes(annotation, head, tables)),
        **dict(batch),
    )


def _uncertain(archived: RunArchive) -> UncertainUsage:
    """Returns what may have been billed beside the answers that the report counts."""
    cost = archived.cost().uncertain
    return UncertainUsage(
        attempts=cost.attempts,
        prompt_tokens=cost.prompt_tokens,
        completion_tokens=cost.completion_tokens,
        cost=cost.money,
    )


def _full_case(archived: RunArchive, codebook: Codebook, case: str) -> FullCase:
    """Returns a case of the run with its texts and the latest decision on it."""
    place = archived.find_heads([case])[case].sequence
    (current,) = archived.cases(places=[place])
    latest = read_decision(current.decisions[-1].body, codebook) if current.decisions else None
    return FullCase(read_outcome(current.case.body, codebook), current.case.description, latest)


def _export(annotation: AnnotationRun) -> None:
    form = annotation.config.export
    if form is not None:
        path = str(annotation.run / f"cases.{form}")
        written = export_run(
            annotation.archived,
            path,
            annotation.codebook,
            form,
            open_book=annotation.settings.prompts.open_book,
        )
        log_line(f"{counted(written, 'case')} -> {path}", cases=written, uri=path)


def _print(run: Run, report: AnnotationReport) -> None:
    print_tables(
        *annotation_tables(report),
        **report.model_dump(mode="json", include={"cases", "agreement", "gold"}),
        usage=report.usage.total.model_dump(mode="json"),
    )
    tree = report.score_tree
    of_tree = (*tree.left_out, *tree.notes) if report.cases.with_gold else ()
    for notice in (*report.notices, *of_tree):
        log_line(f"note: {notice}")
    log_line(f"report {run / PAGE} and {report.file}", uri=run.uri)


def _changes(annotation: AnnotationRun, head: RunRow, tables: Tables) -> list[DriftChange]:
    """Returns the changes since the latest earlier runs that this one can be compared with.

    The outcomes of another run are read only if its models are the same, as far as its report says.
    """
    archive, storage = annotation.archive, annotation.config.storage
    rows = [row for row in archive.runs() if row.records]
    earlier = [row for row in rows if (row.started, row.name) < (head.started, head.name)]
    runs = [
        archived_run(archive, row, annotation.codebook, _models(_report_of(storage, row)))
        for row in earlier[-SHOWN_RUNS:]
    ]
    this = ArchivedRun(head.name, head.started, head.versions.get("taxonomy"), lambda: tables)
    return compare_latest(this, runs)


def _models(report: AnnotationReport | None) -> dict[Side, str] | None:
    """Returns the models of the annotators as requested; None if one alone cannot be told."""
    if report is None:
        return None
    models: dict[Side, set[str]] = {
        side: {row.model for row in annotator.sources if row.model}
        for side, annotator in report.annotators.items()
    }
    if any(len(names) > 1 for names in models.values()):
        return None
    return {side: names.pop() for side, names in models.items() if names}


def _over_time(archive: Archive, report: AnnotationReport, storage: str) -> OverTime:
    """Returns the latest runs of the archive beside this one, each by its own report."""
    rows = [row for row in archive.runs() if row.records]
    latest = rows[-SHOWN_RUNS:]
    shown = [row for row in rows if row in latest or row.name == report.run]
    reports = {row.name: _report_of(storage, row) for row in shown} | {report.run: report}
    changes = [change for made in reports.values() if made is not None for change in made.changes]
    return OverTime(
        level=LEVEL,
        runs=[TimedRun(row.name, row.started.isoformat(), reports[row.name]) for row in shown],
        earlier=len(rows) - len(shown),
        comparisons=changes,
        alarms=list(alarms(changes)),
    )


def archived_run(
    archive: Archive, row: RunRow, codebook: Codebook, models: Mapping[Side, str] | None = None
) -> ArchivedRun:
    """Returns a run of an archive for the comparison of runs; for `models` see `ArchivedRun`."""
    return ArchivedRun(
        row.name,
        row.started,
        row.versions.get("taxonomy"),
        lambda: tabulate(read_run(archive.run(row.name), codebook), codebook),
        models,
    )


def _report_of(storage: str, row: RunRow) -> AnnotationReport | None:
    """Returns the report of a run in this storage, if it matches the records in the archive."""
    try:
        report = Run.at(Place.at(storage) / row.name).read_record(AnnotationReport)
    except (DataError, RunError) as error:
        log_line(f"note: the report of run {row.name} is left out: {error}")
        return None
    if report is None or (report.run_id, report.archive.records) != (row.uid, row.records):
        return None
    return report
