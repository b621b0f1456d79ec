"""The end of an annotation: report, score tree and page."""

import shlex
from collections.abc import Iterator
from functools import partial

from raylab.annotation.accuracy.audit import Audits
from raylab.annotation.accuracy.held_out import held_out
from raylab.annotation.export import export_run
from raylab.annotation.human.audit_sample import adopt_audit, audited_codes
from raylab.annotation.outcome import HumanDecision, Outcome, Status, read_decision, read_outcome
from raylab.annotation.report import AnnotationReport, ArchiveHead
from raylab.annotation.scores import CANDIDATES, ScoreFiles, annotator_names, score_files
from raylab.annotation.settings import protocol_settings
from raylab.annotation.statistics.batch_quality import BatchQuality
from raylab.annotation.statistics.canaries import Canary, RunCounts, count_run, packaged_canary
from raylab.annotation.statistics.disagreements import Disagreements
from raylab.annotation.statistics.drift import compare_runs
from raylab.annotation.worker import OpenCases
from raylab.archive.records import RunRow
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.base import JobConfig, absolute_location
from raylab.config.jobs import AnnotateConfig
from raylab.errors import DataError, LlmError, RunError
from raylab.files import Place
from raylab.llm.embedded import uses_embedded
from raylab.log import log_line
from raylab.report.annotation import annotation_tables
from raylab.report.annotation_page import AnnotationPage, OverTime, TimedRun, render_annotation
from raylab.report.page import PAGE, write_page
from raylab.report.table import counted, print_tables
from raylab.runs.run import SCORES, Run
from raylab.taxonomies import choose_codebook

STORAGE = JobConfig.model_fields["storage"].default
SHOWN_RUNS = 12
"""Most runs in the comparison over time."""


def conclude(
    config: AnnotateConfig, run: Run, archive: Archive, left: OpenCases | None = None
) -> None:
    """Writes and prints the results of the run.

    The report includes decisions by people, so every call writes it again.

    Args:
        config: Configuration of the run.
        run: The run.
        archive: Its archive.
        left: Cases that were tried and stay open.

    Raises:
        ArchiveError: A record of the run was changed after it was archived.
        LlmError: Cases failed, or stay open.
    """
    adopt_audit(run, archive.run(run.name), config.protocol.seed)
    codebook = choose_codebook(config.protocol)
    report = _report(config, codebook, run, archive, left)
    run.write_record(report)
    _export(config, codebook, run, archive)
    over_time = _over_time(config, codebook, archive, report)
    write_page(run, render_annotation(AnnotationPage(run.uri, report, over_time, run.record)))
    _print(run, report)
    counts = archive.run(run.name).counts(now=True)
    if waiting := counts.get(Status.HUMAN, 0):
        people = counted(waiting, "case waits", "cases wait")
        log_line(f"{people} for a person: {review_command(config, run)}", waiting=waiting)
    failures: list[str] = []
    if failed := counts.get(Status.FAILED, 0):
        first = next(archive.run(run.name).cases(Status.FAILED))
        reason = read_outcome(first.body, codebook).reason
        failures.append(
            f"{counted(failed, 'case')} failed, first {first.case}: {reason}\n"
            "to try them again run the same configuration under another name=: what was answered "
            "is not asked again"
        )
    if left is not None:
        failures.append(f"{left}\nresume=true tries them again")
    if failures:
        raise LlmError("\n".join(failures))


def review_command(config: AnnotateConfig, run: Run) -> str:
    """Returns the command that opens a run for review, from the directory of this one."""
    changed = [f"name={run.name}"]
    if config.storage != absolute_location(STORAGE):
        changed.append(f"storage={config.storage}")
    return shlex.join(["python", "jobs/review.py", *changed])


def _report(
    config: AnnotateConfig,
    codebook: Codebook,
    run: Run,
    archive: Archive,
    left: OpenCases | None,
) -> AnnotationReport:
    """Reads the outcomes once; returns their report and writes the score tree."""
    settings = protocol_settings(config, run.name, codebook)
    decisions = (read_decision(row.body, codebook) for row in archive.run(run.name).decisions())
    codes = audited_codes(archive.run(run.name).audit().entries(), codebook)
    quality = BatchQuality(decisions, codebook, Audits(codes) if codes else None)
    disagreements = Disagreements(codebook.distance)
    head = archive.run(run.name).row()
    scores = score_files(
        _counted(
            held_out(outcomes_of(archive, run.name, codebook), settings.prompts),
            quality,
            disagreements,
        ),
        config.generations,
        CANDIDATES if settings.stages == "evaluate" else annotator_names(config.llm.roles),
        codebook,
        (head.finished or head.started).isoformat(),
    )
    _write_scores(run, scores)
    warnings = settings.warnings if left is None else (*settings.warnings, f"{left}.")
    batch = quality.report(
        smoke=uses_embedded(config.llm), warnings=warnings, seed=config.protocol.seed
    )
    return AnnotationReport(
        run=run.name,
        run_id=run.id,
        archive=ArchiveHead(place=archive.place, records=head.records),
        score_tree=scores.summary,
        disagreements=disagreements.summary(
            partial(_description_and_decision, archive, run, codebook)
        ),
        **dict(batch),
    )


def _counted(
    outcomes: Iterator[Outcome], *counts: BatchQuality | Disagreements
) -> Iterator[Outcome]:
    """Yields the outcomes for the score tree, and counts each for the report."""
    for outcome in outcomes:
        for count in counts:
            count.add(outcome)
        yield outcome


def _write_scores(run: Run, scores: ScoreFiles) -> None:
    for file in scores.files:
        run.write_record(file.log.model_copy(update={"run_id": run.id}), f"{SCORES}/{file.path}")


def _description_and_decision(
    archive: Archive, run: Run, codebook: Codebook, case: str
) -> tuple[str, HumanDecision | None]:
    """Returns the description of a case of the run and the latest decision on it."""
    stored = archive.run(run.name).case(case)
    decisions = list(archive.run(run.name).decisions(case))
    assert stored is not None
    latest = read_decision(decisions[-1].body, codebook) if decisions else None
    return stored.description, latest


def _export(config: AnnotateConfig, codebook: Codebook, run: Run, archive: Archive) -> None:
    if config.export is not None:
        path = str(run / f"cases.{config.export}")
        written = export_run(archive.run(run.name), path, codebook, config.export)
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


def _over_time(
    config: AnnotateConfig, codebook: Codebook, archive: Archive, report: AnnotationReport
) -> OverTime:
    """Returns the latest runs of the archive beside this one.

    Only their canary cases are read, because the archive may hold many more. All other figures of
    another run are from its own report.
    """
    canary = packaged_canary(codebook)
    runs = [row for row in archive.runs() if row.records]
    latest = runs[-SHOWN_RUNS:]
    shown = [row for row in runs if row in latest or row.name == report.run]
    drift = compare_runs(
        count_archived(row, _canary_outcomes(archive, row.name, canary, codebook), canary, codebook)
        for row in shown
    )
    reports = {row.name: _report_of(config.storage, row) for row in shown} | {report.run: report}
    return OverTime(
        level=drift.level,
        runs=[TimedRun(row.name, row.started.isoformat(), reports[row.name]) for row in shown],
        earlier=len(runs) - len(shown),
        comparisons=drift.comparisons,
        alarms=drift.alarms,
    )


def count_archived(
    row: RunRow, outcomes: Iterator[Outcome], canary: Canary, codebook: Codebook
) -> RunCounts:
    """Counts some outcomes of an archived run for the comparison of runs."""
    taxonomy = row.versions.get("taxonomy")
    return count_run(row.name, row.started, outcomes, canary, codebook, taxonomy)


def _canary_outcomes(
    archive: Archive, run: str, canary: Canary, codebook: Codebook
) -> Iterator[Outcome]:
    for case, _ in canary:
        if (stored := archive.run(run).case(case)) is not None:
            yield read_outcome(stored.body, codebook)


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


def outcomes_of(archive: Archive, run: str, codebook: Codebook) -> Iterator[Outcome]:
    """Yields the outcomes of a run, streamed."""
    return (read_outcome(row.body, codebook) for row in archive.run(run).cases())
