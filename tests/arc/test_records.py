"""Files of runs from before schema versions, as this raylab reads them."""

import json
from pathlib import Path
from typing import Any

from raylab.arc.records import (
    EvaluationMetrics,
    Examples,
    GroupMetrics,
    PipelineMetrics,
    TrainingMetrics,
)
from raylab.arc.scoring.plan import ScorePlan
from raylab.arc.sweep import SweepMetrics, TrialFailure, TrialPointer
from raylab.config.arc import DataConfig, ScoringConfig
from raylab.runs.run import Run

ROW = {
    "epoch": 2,
    "step": 20,
    "train_loss": 0.5,
    "learning_rate": 0.001,
    "samples_per_second": 12.5,
    "train_seconds": 3.0,
    "validation_seconds": 1.0,
    "val_grid_accuracy": 0.25,
    "val_cell_accuracy": 0.75,
}
FIRST = ROW | {"epoch": 1, "step": 10, "val_grid_accuracy": 0.125}
GROUP = {"grids": 7, "cell_accuracy": 0.75, "compositional_gap": 0.5}
CHECKPOINT = "checkpoints/epoch-0002/checkpoint.ckpt"
TRAINING = {
    "parameters": 12,
    "best": ROW | {"groups": {"same/kept": GROUP}, "checkpoint": CHECKPOINT},
    "last": ROW,
    "history": [FIRST, ROW],
}


def run_with(tmp_path: Path, name: str, content: Any) -> Run:
    (tmp_path / name).write_text(json.dumps(content))
    return Run.at(str(tmp_path))


def check_training(metrics: TrainingMetrics) -> None:
    assert metrics.parameters == 12
    assert metrics.rows == [FIRST, ROW]
    assert metrics.last.row() == metrics.best.row() == ROW
    assert metrics.last.validation == {"grid_accuracy": 0.25, "cell_accuracy": 0.75}
    assert metrics.best.checkpoint == CHECKPOINT
    group = GroupMetrics(grids=7, metrics={"cell_accuracy": 0.75, "compositional_gap": 0.5})
    assert metrics.best.groups == {"same/kept": group}


def test_trainings(tmp_path: Path) -> None:
    run = run_with(tmp_path, "metrics.json", TRAINING)
    metrics = run.read_record(TrainingMetrics)
    assert metrics is not None
    check_training(metrics)
    assert metrics.rules == {}
    run.write_record(metrics)
    assert run.read_record(TrainingMetrics) == metrics


def test_files_from_before_rules_were_measured_have_none(tmp_path: Path) -> None:
    epoch = {key: value for key, value in ROW.items() if not key.startswith("val_")}
    epoch["validation"] = {"grid_accuracy": 0.25}
    best = {**epoch, "groups": {}, "checkpoint": CHECKPOINT}
    training = {"parameters": 12, "best": best, "last": epoch, "history": [epoch]}
    run = run_with(tmp_path, "metrics.json", {"schema_version": 1, **training})
    metrics = run.read_record(TrainingMetrics)
    assert metrics is not None and (metrics.rules, metrics.parameters) == ({}, 12)
    run_with(tmp_path, "metrics.json", {"schema_version": 1, "models": {"champion": training}})
    pipeline = run.read_record(PipelineMetrics)
    assert pipeline is not None and pipeline.models["champion"] == metrics
    evaluation = {"metric": "cell_accuracy", "models": {"a": {"published": 0.5}}}
    run_with(tmp_path, "metrics.json", {"schema_version": 1, **evaluation})
    scores = run.read_record(EvaluationMetrics)
    assert scores is not None and scores.rules == {}
    trained = {"score": 0.5, "epoch": 2, "cell_accuracy": 0.75, "epochs": 3, "parameters": 12}
    trained["checkpoint"] = "/runs/c.ckpt"
    trial = {"trial": "a", "drawn": None, "trained": trained, "failure": None}
    run_with(tmp_path, "metrics.json", {"schema_version": 1, "trials": [trial]})
    sweep = run.read_record(SweepMetrics)
    assert sweep is not None and sweep.rules == {}
    assert sweep.trials[0].trained is not None and sweep.trials[0].trained.solve_rate is None


def test_a_training_without_an_epoch(tmp_path: Path) -> None:
    assert run_with(tmp_path, "metrics.json", {}).read_record(TrainingMetrics) is None


def test_pipelines(tmp_path: Path) -> None:
    run = run_with(tmp_path, "metrics.json", {"models": {"champion": TRAINING}})
    metrics = run.read_record(PipelineMetrics)
    assert metrics is not None
    check_training(metrics.models["champion"])


def test_evaluations(tmp_path: Path) -> None:
    content = {"metric": "solve_rate", "models": {"a": {"published": 0.5}}}
    metrics = run_with(tmp_path, "metrics.json", content).read_record(EvaluationMetrics)
    assert metrics == EvaluationMetrics.model_validate(content)


def test_sweeps(tmp_path: Path) -> None:
    drawn = {"architecture": "champion", "training.lr": 0.00123}
    trained = {
        "trial": "a",
        "drawn": drawn,
        "score": 0.5,
        "failure": None,
        "epoch": 2,
        "cell_accuracy": 0.75,
        "epochs": 3,
        "parameters": 12,
        "checkpoint": "/runs/c.ckpt",
    }
    failed = {"trial": "b", "drawn": None, "score": None, "failure": "loss is nan"}
    metrics = run_with(tmp_path, "metrics.json", {"trials": [trained, failed]}).read_record(
        SweepMetrics
    )
    assert metrics is not None
    best, worst = metrics.trials
    assert best.trained is not None and worst.trained is None
    assert (best.trained.score, best.trained.epochs, best.trained.parameters) == (0.5, 3, 12)
    assert best.description == "champion lr=0.00123"
    assert (worst.failure, worst.description) == ("loss is nan", "-")


def test_what_trials_leave(tmp_path: Path) -> None:
    failure = {"kind": "NonFiniteLossError", "message": "loss is nan"}
    found = run_with(tmp_path, "failure.json", failure).read_record(TrialFailure)
    assert found == TrialFailure(kind="NonFiniteLossError", message="loss is nan")
    pointer = {
        "run": "a",
        "drawn": {"architecture": "champion", "training.lr": 0.1, "champion.heads": 4},
        "origin": {"checkpoint": "/c0", "epoch": 1},
        "epoch": 2,
        "checkpoint": "/c1",
    }
    read = TrialPointer.model_validate_json(json.dumps(pointer))
    assert read.model_dump() == pointer
    assert isinstance(read.drawn["champion.heads"], int)


def test_plans_of_score_trees(tmp_path: Path) -> None:
    data, scoring = DataConfig(every=40), ScoringConfig()
    content = {
        "models": {"a": {"checkpoint": "/c", "bytes": 3, "modified": None}},
        "generations": {"published": data.model_dump(mode="json")},
        "scoring": scoring.model_dump(mode="json"),
        "units": {"task1": ["task1"]},
    }
    plan = run_with(tmp_path, "scores.json", content).read_record(ScorePlan)
    assert plan is not None
    assert (plan.generations, plan.scoring) == ({"published": data}, scoring)
    assert (plan.tasks, plan.pairs) == ({"task1"}, [("a", "published")])


def test_pictured_tasks(tmp_path: Path) -> None:
    answer = {"grid": [[1, 2]], "solved": True}
    example = {"task": "t", "input": [[1]], "target": [[1, 2]], "predictions": {"a": answer}}
    run = run_with(tmp_path, "examples.json", {"examples": [example]})
    assert run.read_record(Examples) == Examples.model_validate({"examples": [example]})
