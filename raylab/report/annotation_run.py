"""What follows an annotation: its report and score tree, the decisions of people, and drift."""

import logging
from collections.abc import Iterator
from functools import partial

from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.run import archive_location
from raylab.annotation.scores import annotator_names, score_files
from raylab.annotation.settings import settings_of
from raylab.annotation.statistics.batch_quality import BatchQuality
from raylab.annotation.statistics.disagreements import Disagreements
from raylab.annotation.statistics.drift import Canary, compare_runs, count_run, packaged_canary
from raylab.archive.records import RunRow
from raylab.archive.store import Archive
from raylab.config.jobs import AnnotateConfig
from raylab.errors import ArchiveError, DataError, LlmError, RunError
from raylab.files import Place
from raylab.llm.embedded import uses_embedded
from raylab.log import log_line, log_tables
from raylab.opt.distance import load_distance
from raylab.report.annotation import annotation_tables, drift_tables
from raylab.report.annotation_page import AnnotationReport, render_annotation
from raylab.report.charts import confusion_maps_png
from raylab.report.page import PAGE, write_page
from raylab.runs.eval_logs import EvalLog
from raylab.runs.run import RECORD, REPORT, SCORES, Json, Run

CONFUSION = "confusion.png"
DRIFT = "drift.json"
SHOWN_PROBLEMS = 10
SHOWN_RUNS = 12
"""Runs that are shown beside each other over time."""


def conclude(config: AnnotateConfig, run: Run, archive: Archive) -> None:
    """Check the archive's chain, write what the run leaves, and print it.

    The report holds what people decided since, so it is written anew whenever this is called.

    Raises:
        ArchiveError: records of the run are not as they were archived.
        LlmError: cases failed.
    """
    _verify(run, archive)
    report = _report(config, run, archive)
    over_time = _over_time(config, run, archive, report)
    record = run.read_json(RECORD) or {}
    write_page(run, render_annotation(AnnotationReport(run.uri, report, over_time, record)))
    told = {key: report[key] for key in ("cases", "agreement", "gold")}
    log_tables(*annotation_tables(report), **told, usage=report["usage"]["total"])
    left_out = report["score_tree"]["left_out"] if report["cases"]["with_gold"] else ()
    for notice in (*report["notices"], *left_out):
        log_line(f"note: {notice}")
    log_line(f"report {run / PAGE} and {REPORT}, heat map {run / CONFUSION}", uri=run.uri)
    counts = archive.counts(run.name, now=True)
    if waiting := counts.get(Status.HUMAN, 0):
        log_line(
            f"{waiting} cases wait for a person: python jobs/review.py name={run.name}",
            waiting=waiting,
        )
    if failed := counts.get(Status.FAILED, 0):
        first = next(archive.cases(run.name, Status.FAILED))
        raise LlmError(
            f"{failed} cases failed, first {first.case}: {first.body['reason']}\n"
            "to try them again run the same configuration under another name=: what was answered "
            "is not asked again"
        )


def _verify(run: Run, archive: Archive) -> None:
    problems = archive.verify(run.name)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems[:SHOWN_PROBLEMS])
        raise ArchiveError(
            f"{len(problems)} records of run {run.name} in {archive.place} are not as they were "
            f"archived:{listed}\nrestore the archive from a copy"
        )


def _report(config: AnnotateConfig, run: Run, archive: Archive) -> Json:
    settings = settings_of(config, run.name)
    decisions = (HumanDecision.model_validate(row.body) for row in archive.decisions(run.name))
    quality = BatchQuality(decisions, settings.distance)
    disagreements = Disagreements(settings.distance)
    head = archive.run(run.name)
    scores = score_files(
        _counted(outcomes_of(archive, run.name), quality, disagreements),
        config.generations,
        annotator_names(config.llm.annotator_a, config.llm.annotator_b),
        settings.distance,
        (head.finished or head.started).isoformat(),
    )
    for file in scores.files:
        run.write_record(EvalLog(**file.log, run_id=run.id), f"{SCORES}/{file.path}")
    chain = {"place": archive.place, "records": head.records, "head_hash": head.head_hash}
    report: Json = {
        "run": run.name,
        "run_id": run.id,
        "archive": chain,
        **quality.report(
            smoke=uses_embedded(config.llm),
            warnings=settings.warnings,
            seed=config.protocol.seed,
        ),
        "score_tree": {
            "files": len(scores.files),
            "left_out": scores.left_out,
            "scores": [file.accuracy for file in scores.files],
        },
        "disagreements": disagreements.summary(partial(_description_and_decision, archive, run)),
    }
    run.write_json(REPORT, report)
    run.write_bytes(CONFUSION, confusion_maps_png(report["confusion"]))
    if config.export is not None:
        path = str(run / f"cases.{config.export}")
        written = archive.export(run.name, path, config.export)
        log_line(f"{written} cases -> {path}", cases=written, uri=path)
    return report


def _counted(
    outcomes: Iterator[Outcome], *counts: BatchQuality | Disagreements
) -> Iterator[Outcome]:
    """The outcomes, each counted for the report on its way to the score tree."""
    for outcome in outcomes:
        for count in counts:
            count.add(outcome)
        yield outcome


def _description_and_decision(
    archive: Archive, run: Run, case: str
) -> tuple[str, HumanDecision | None]:
    """Of a case of the run; the decision is the latest."""
    stored = archive.case(run.name, case)
    decisions = list(archive.decisions(run.name, case))
    assert stored is not None
    latest = HumanDecision.model_validate(decisions[-1].body) if decisions else None
    return stored.description, latest


def _over_time(config: AnnotateConfig, run: Run, archive: Archive, report: Json) -> Json:
    """The latest runs of the archive beside this one.

    Only their canary cases are read, for the archive may hold many more; what else is shown of
    another run is what that run reported itself.

    Returns:
        `runs`, the earliest first, each with `run`, `started` and its `report`, null where no
        report of what the archive holds lies in this storage; how many `earlier` are left out;
        `level`, `comparisons` and `alarms` as `compare_runs` describes them.
    """
    distance, canary = load_distance(config.protocol.distance), packaged_canary()
    runs = [row for row in archive.runs() if row.records]
    latest = runs[-SHOWN_RUNS:]
    shown = [row for row in runs if row in latest or row.name == run.name]
    drift = compare_runs(
        count_run(
            row.name,
            row.started,
            _canary_outcomes(archive, row.name, canary),
            canary,
            distance,
            row.versions.get("taxonomy"),
        )
        for row in shown
    )
    reports = {row.name: _report_of(config.storage, row) for row in shown} | {run.name: report}
    return {
        "runs": [
            {"run": row.name, "started": row.started.isoformat(), "report": reports[row.name]}
            for row in shown
        ],
        "earlier": len(runs) - len(shown),
        **{key: drift[key] for key in ("level", "comparisons", "alarms")},
    }


def _canary_outcomes(archive: Archive, run: str, canary: Canary) -> Iterator[Outcome]:
    for case, _ in canary:
        if (stored := archive.case(run, case)) is not None:
            yield Outcome.model_validate(stored.body)


def _report_of(storage: str, row: RunRow) -> Json | None:
    """What a run of this storage reported of the records that the archive holds of it now."""
    try:
        report = Run.at(Place.at(storage) / row.name).read_json(REPORT) or {}
    except (DataError, RunError):
        return None
    return report if report.get("archive", {}).get("head_hash") == row.head_hash else None


def outcomes_of(archive: Archive, run: str) -> Iterator[Outcome]:
    """The outcomes of a run, streamed."""
    return (Outcome.model_validate(row.body) for row in archive.cases(run))


def tell_drift(config: AnnotateConfig) -> None:
    """Compare all runs of the archive over time, on the packaged gold cases.

    Raises:
        ArchiveError: the archive cannot be read.
    """
    location = archive_location(config)
    distance, canary = load_distance(config.protocol.distance), packaged_canary()
    with Archive.open(location, create=False) as archive:
        runs = [
            count_run(
                row.name,
                row.started,
                outcomes_of(archive, row.name),
                canary,
                distance,
                row.versions.get("taxonomy"),
            )
            for row in archive.runs()
        ]
    drift = compare_runs(runs)
    storage = Run.at(config.storage)
    storage.write_json(DRIFT, drift)
    log_tables(*drift_tables(drift), comparisons=drift["comparisons"])
    for alarm in drift["alarms"]:
        log_line(f"alarm: {alarm}", logging.WARNING)
    log_line(f"{storage / DRIFT}", uri=str(storage / DRIFT))
