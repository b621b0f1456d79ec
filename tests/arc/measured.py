"""Records of trainings as they are found in runs."""

from collections.abc import Mapping
from typing import Any

from raylab.arc.checkpoints import checkpoint_path
from raylab.arc.grid_metrics import BaselineMetrics
from raylab.arc.records import BestEpoch, Epoch, GroupMetrics, HeldOut, TrainingMetrics
from raylab.arc.sweep import Trained


def epoch(number: int, metrics: Mapping[str, float], **more: float) -> Epoch:
    """An epoch with some metrics of the validation."""
    fields = {"step": 10 * number, "planned_steps": 10 * number, "learning_rate": 0.001}
    fields |= {"samples_per_second": 12.34, "train_seconds": 3.0, "validation_seconds": 1.0}
    measured = {"epoch": number, "train_loss": 0.5, "validation": metrics}
    return Epoch.model_validate(fields | measured | more)


def training_metrics(
    *epochs: Epoch,
    groups: Mapping[str, GroupMetrics] | None = None,
    baselines: BaselineMetrics | None = None,
    test: HeldOut | None = None,
) -> TrainingMetrics:
    """A training of these epochs, the last of which is the best."""
    default = {"solve_rate": 0.25, "grid_accuracy": 0.5, "cell_accuracy": 0.75}
    history = epochs or (epoch(1, default),)
    last = history[-1]
    return TrainingMetrics(
        parameters=1234567,
        best=BestEpoch(**dict(last), groups=groups or {}, checkpoint=checkpoint_path(last.epoch)),
        last=last,
        history=history,
        baselines=baselines or {},
        test=test,
    )


def held_out(metrics: Mapping[str, float], **more: Any) -> HeldOut:
    """Figures on two test tasks."""
    fields = {
        "side": "test",
        "chosen_on": False,
        "tasks": 2,
        "pairs": 6,
        "groups": {},
        "baselines": {},
    }
    return HeldOut.model_validate({**fields, **more, "metrics": metrics})


def trained(score: float, solve_rate: float = 0.0) -> Trained:
    """The result of a trial."""
    return Trained(
        score=score,
        epoch=2,
        loss=0.5,
        grids=72,
        teacher_forced=True,
        solve_rate=solve_rate,
        epochs=3,
        parameters=1234567,
        checkpoint="c",
    )
