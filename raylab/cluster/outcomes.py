"""What follows an annotation: its report and score tree, the decisions of people, and drift."""

from collections.abc import Iterator

from raylab.archive.store import Archive
from raylab.config import AnnotateConfig
from raylab.entrypoint import console
from raylab.errors import ArchiveError, LlmError
from raylab.llm.embedded import uses_embedded
from raylab.opt.agreement import load_distance
from raylab.opt.drift import compare_runs, count_run, packaged_canary
from raylab.opt.outcome import HumanDecision, Outcome, Status
from raylab.opt.quality import BatchQuality
from raylab.opt.recorded import archive_location
from raylab.opt.scores import annotator_names, score_files
from raylab.opt.settings import settings_of
from raylab.quality.logs import score_log
from raylab.report.annotation import annotation_tables, drift_tables
from raylab.report.charts import confusion_maps_png
from raylab.runs import SCORES, Json, Run

REPORT = "report.json"
CONFUSION = "confusion.png"
DRIFT = "drift.json"
SHOWN_PROBLEMS = 10


def conclude(config: AnnotateConfig, run: Run, archive: Archive) -> None:
    """Check the archive's chain, write what the run leaves, and print it.

    The report holds what people decided since, so it is written anew whenever this is called.

    Raises:
        ArchiveError: records of the run are not as they were archived.
        LlmError: cases failed.
    """
    _verify(run, archive)
    report = _report(config, run, archive)
    for table in annotation_tables(report):
        console().print(table)
    left_out = report["score_tree"]["left_out"] if report["cases"]["with_gold"] else ()
    for notice in (*report["notices"], *left_out):
        print(f"note: {notice}")
    print(f"report {run.uri}/{REPORT}, heat map {run.uri}/{CONFUSION}")
    counts = archive.counts(run.name, now=True)
    if waiting := counts.get(Status.HUMAN, 0):
        print(f"{waiting} cases wait for a person: python jobs/review.py name={run.name}")
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
    head = archive.run(run.name)
    scores = score_files(
        _counted(outcomes_of(archive, run.name), quality),
        config.generations,
        annotator_names(config.llm.annotator_a, config.llm.annotator_b),
        settings.distance,
        (head.finished or head.started).isoformat(),
    )
    for file in scores.files:
        run.write_json(f"{SCORES}/{file.path}", score_log(**file.log))
    chain = {"place": archive.place, "records": head.records, "head_hash": head.head_hash}
    report: Json = {
        "run": run.name,
        "archive": chain,
        **quality.report(
            smoke=uses_embedded(config.llm),
            warnings=settings.warnings,
            seed=config.protocol.seed,
        ),
        "score_tree": {"files": len(scores.files), "left_out": scores.left_out},
    }
    run.write_json(REPORT, report)
    run.write_bytes(CONFUSION, confusion_maps_png(report["confusion"]))
    if config.export is not None:
        path = f"{run.uri}/cases.{config.export}"
        print(f"{archive.export(run.name, path, config.export)} cases -> {path}")
    return report


def _counted(outcomes: Iterator[Outcome], quality: BatchQuality) -> Iterator[Outcome]:
    """The outcomes, each counted for the report on its way to the score tree."""
    for outcome in outcomes:
        quality.add(outcome)
        yield outcome


def outcomes_of(archive: Archive, run: str) -> Iterator[Outcome]:
    """The outcomes of a run, streamed."""
    return (Outcome.model_validate(row.body) for row in archive.cases(run))


def print_drift(config: AnnotateConfig) -> None:
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
    Run.at(config.storage).write_json(DRIFT, drift)
    for table in drift_tables(drift):
        console().print(table)
    for alarm in drift["alarms"]:
        print(f"alarm: {alarm}")
    print(f"{config.storage}/{DRIFT}")
