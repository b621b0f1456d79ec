"""Reports of a training: its lines, and the listeners of its epochs. Does not import torch."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from raylab.arc.pages.models import epoch_figures, epoch_line
from raylab.arc.records import TrainingMetrics
from raylab.core.config.base import Tracking
from raylab.core.live import log_progress
from raylab.core.log import log_line
from raylab.core.runs.run import Run
from raylab.core.tracking import Tracker, tracking

HEARTBEAT_SECONDS = 30.0
"""Longest time in seconds between two lines of a training, unless it validates."""

EpochListener = Callable[[TrainingMetrics], object]
"""Callback that gets a run's metrics after each epoch whose checkpoint is stored."""
Tell = Callable[[str, Mapping[str, Any]], object]
"""Receiver of lines for the user, with their fields."""


def ended_metrics(run: Run) -> TrainingMetrics | None:
    """Returns the metrics of a training without epochs left, and says so; otherwise None."""
    metrics = run.read_record(TrainingMetrics)
    if metrics is None or not metrics.ended:
        return None
    state = "finished, nothing is left to do" if run.is_finished else "trained already"
    log_line(f"run {run.name} is {state}", training=run.name)
    return metrics


@contextmanager
def epoch_listeners(trackers: Sequence[Tracking], run: Run) -> Generator[dict[str, EpochListener]]:
    """Yields the listeners of every training, in order: the trackers, a line of progress.

    Raises:
        ConfigError: The package of a tracker is not installed.
    """

    def follow(tracker: Tracker) -> EpochListener:
        return lambda metrics: tracker.log(metrics.last.epoch, _figures(metrics))

    def tell(metrics: TrainingMetrics) -> None:
        last = metrics.last
        log_progress(
            epoch_line(last),
            done=last.step,
            total=last.planned_steps,
            unit="steps",
            figures=epoch_figures(last),
            training=run.name,
            **last.row(),
        )

    with tracking(trackers, run) as opened:
        yield {**{name: follow(tracker) for name, tracker in opened.items()}, "progress": tell}


def log_training(run: Run, message: str, fields: Mapping[str, Any]) -> None:
    """Prints a line of a training, or shows its progress if the fields have `done`."""
    if "done" in fields:
        log_progress(message, unit="steps", every=HEARTBEAT_SECONDS, training=run.name, **fields)
    else:
        log_line(message, training=run.name, **fields)


def _figures(metrics: TrainingMetrics) -> dict[str, float]:
    return {name: value for name, value in metrics.last.row().items() if name != "epoch"}
