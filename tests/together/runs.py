"""Run directories as the jobs leave them, small."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from raylab.arc.config.jobs import EvaluateConfig, TrainConfig, TuneConfig
from raylab.arc.records import EvaluationMetrics, PipelineMetrics, TrainingMetrics
from raylab.arc.sweep import SweepMetrics, Trial
from raylab.benchmark.config import QualityConfig
from raylab.core.config.base import JobConfig
from raylab.core.config.compose import CONFIGS
from raylab.core.runs.records import Record
from raylab.core.runs.run import TRIALS, Run
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.pages.annotation import FullCase
from raylab.label.protocol.outcome import HumanDecision, Outcome, Status
from raylab.label.statistics.report import AnnotationReport, annotation_report
from raylab.label.statistics.scores import ScoreTreeReport
from raylab.together.config import PipelineConfig
from tests.arc.measured import epoch, training_metrics
from tests.benchmark.figures.qualities import quality
from tests.label.protocol.outcomes import adjudication, answer, outcome, tables
from tests.label.protocol.outcomes import report as judgement

LLM = yaml.safe_load((CONFIGS / "llm" / "embedded.yaml").read_text())
SPACE = yaml.safe_load((CONFIGS / "tune.yaml").read_text())["space"]

CASES = [
    outcome("1", "Lrn", "Lrn", gold="Lrn"),
    outcome("2", "Evo", "Evo/Lrn", gold="Evo", status=Status.ADJUDICATED, code="OPT=Evo",
            evaluation_b=judgement("WEAK_PASS", 75, summary="nearly"),
            adjudication=adjudication(("A", "B"), "A", "Evo", judgement())),
    outcome("3", answer(None), "Swm", gold="Sym", trap=True, status=Status.HUMAN,
            evaluation_a=None, path=("human:unparsable",), reason="no code of A could be read"),
    outcome("4", "Swm", "Sym", gold="Sym", trap=True, meta={"bait": ["Swm"]},
            status=Status.HUMAN, evaluation_a=judgement("FAIL", 40),
            path=("human:one-acceptable",), reason="only B is acceptable"),
]  # fmt: skip


def content(
    cases: Sequence[Outcome] = CASES,
    decisions: Sequence[HumanDecision] = (),
) -> AnnotationReport:
    """A `report.json`, as the run leaves it."""
    return annotation_report(
        tables(cases, *decisions),
        decisions,
        run="systems",
        archive="/runs/archive.db",
        records=4,
        score_tree=ScoreTreeReport(files=1, left_out=("3 without gold",)),
    )


def full_cases(
    report: AnnotationReport,
    cases: Sequence[Outcome] = CASES,
    decisions: Sequence[HumanDecision] = (),
    description: str = "A system that does things.",
) -> list[FullCase]:
    """The cases of the disagreements of a report."""
    outcomes = {each.case: each for each in cases}
    latest = {each.case: each for each in decisions}
    shown = [each.case for each in report.disagreements.shown]
    return [FullCase(outcomes[case], description, latest.get(case)) for case in shown]


def epochs(grid: float, loss: float = 0.5) -> TrainingMetrics:
    """A training of two epochs."""
    first, last = (
        {"solve_rate": 0.5, "grid_accuracy": accuracy, "copy_rate": grid, "cell_accuracy": 0.85}
        for accuracy in (grid / 2, grid)
    )
    return training_metrics(epoch(1, first, train_loss=loss), epoch(2, last, train_loss=loss))


def left(config: JobConfig, *records: Record, finished: bool = True) -> Run:
    """A run with its own record and others."""
    run = Run.open(config)
    for record in records:
        run.write_record(record)
    if finished:
        run.finish()
    return run


def train(storage: Path, name: str, grid: float, **training: Any) -> Run:
    values = {"storage": str(storage), "name": name, "training": training}
    config = TrainConfig.model_validate(values)
    return left(config, epochs(grid, loss=1 - grid))


def annotate(storage: Path, name: str, report: AnnotationReport, **more: Any) -> Run:
    config = AnnotateConfig.model_validate(
        {"storage": str(storage), "name": name, "llm": LLM, **more}
    )
    run = left(config)
    run.write_record(report)
    return run


def every_kind(storage: Path, report: AnnotationReport) -> list[str]:
    """A run of each kind; their names."""
    place = {"storage": str(storage)}
    train(storage, "trained", 0.25)
    sweep = left(
        TuneConfig.model_validate({**place, "name": "swept", "space": SPACE}),
        SweepMetrics(trials=(Trial(trial="t1", drawn=None, trained=None, failure=None),)),
    )
    Run.at(f"{sweep.uri}/{TRIALS}/t1").write_record(epochs(0.5))
    left(
        EvaluateConfig(**place, name="scored", models=("trained",)),
        EvaluationMetrics(metric="solve_rate", models={"trained": {"published": 0.625}}),
    )
    annotate(storage, "annotated", report)
    left(QualityConfig(**place, name="measured"), quality())
    left(
        PipelineConfig(**place, name="piped"),
        PipelineMetrics(models={"champion": epochs(0.75)}),
        quality(),
    )
    return ["trained", "swept", "scored", "annotated", "measured", "piped"]
