"""The reports of a training: its lines and its epochs. Does not import torch."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from raylab.arc.config.jobs import TrainConfig
from raylab.arc.pages.models import epoch_figures, epoch_line
from raylab.arc.records import TrainingMetrics
from raylab.core.background import Listeners
from raylab.core.config.base import Tracking
from raylab.core.live import log_progress
from raylab.core.log import log_line
from raylab.core.runs.run import Run
from raylab.core.tracking import Figures, Tracker, tracking

HEARTBEAT_SECONDS = 30.0
"""Longest time in seconds between two lines of a training, unless it validates."""

EpochListener = Callable[[Figures, float], object]
"""Function that gets what `Reporter.epoch` gets."""


class Reporter(Protocol):
    """The receiver of what a training reports, in each of its workers."""

    def line(self, text: str, fields: Mapping[str, Any]) -> None:
        """Takes a line of the first worker for the user, and the data behind it."""
        ...

    def epoch(self, figures: Figures, best: float) -> None:
        """Takes an epoch whose checkpoint and record are stored; every worker calls it.

        `best` is the best value of the monitored metric so far.
        """
        ...


class Here:
    """Reporter in the process of the job, which prints and tracks."""

    def __init__(
        self, run: Run, trackers: Mapping[str, Tracker], on_epoch: EpochListener | None
    ) -> None:
        """Tells the trackers, by their names, of each epoch, then the user, then `on_epoch`."""
        self._run = run

        def track(tracker: Tracker, figures: Figures, best: float) -> None:
            rest = {name: value for name, value in figures.items() if name != "epoch"}
            tracker.log(int(figures["epoch"]), rest)

        listeners: dict[str, EpochListener] = {
            name: partial(track, tracker) for name, tracker in trackers.items()
        }
        listeners["progress"] = self._print
        if on_epoch is not None:
            listeners["report"] = on_epoch
        self._listeners = Listeners(listeners)

    def line(self, text: str, fields: Mapping[str, Any]) -> None:
        """Prints a line, or shows its progress if the fields have `done`."""
        if "done" in fields:
            fields = {"unit": "steps", "every": HEARTBEAT_SECONDS, **fields}
            log_progress(text, training=self._run.name, **fields)
        else:
            log_line(text, training=self._run.name, **fields)

    def epoch(self, figures: Figures, best: float) -> None:
        """Tells all; a listener that fails is told again with the next epoch, or by `finish`."""
        self._listeners.tell(figures, best)

    def finish(self) -> None:
        """Tells listeners that failed the last epoch again; raises an error of theirs."""
        self._listeners.finish()

    def _print(self, figures: Figures, best: float) -> None:
        log_progress(
            epoch_line(figures),
            done=int(figures["step"]),
            total=int(figures["planned_steps"]),
            unit="steps",
            figures=epoch_figures(figures),
            training=self._run.name,
            **figures,
        )


@contextmanager
def reporting(
    trackers: Sequence[Tracking], run: Run, on_epoch: EpochListener | None = None
) -> Generator[Here]:
    """Yields the reporter of a training in the process of its job; tells `on_epoch` as well."""
    with tracking(trackers, run) as opened:
        reporter = Here(run, opened, on_epoch)
        yield reporter
        reporter.finish()


def ended_metrics(config: TrainConfig, run: Run) -> TrainingMetrics | None:
    """Returns the metrics of a training without epochs left, and says so; otherwise None.

    A training to which `config` adds epochs is open again.
    """
    metrics = run.read_record(TrainingMetrics)
    if metrics is None or not metrics.ended:
        return None
    last, training = metrics.last, config.training
    stopped = last.step < last.planned_steps
    if stopped or training.max_minutes is not None or last.epoch == training.epochs:
        state = "finished, nothing is left to do" if run.is_finished else "trained already"
        early = f"; it stopped early, at epoch {last.epoch}" if stopped else ""
        log_line(f"run {run.name} is {state}{early}", training=run.name)
        return metrics
    goes_on = "its learning rate, which had decayed, rises again and decays at the new end"
    if training.schedule == "cosine_restarts":
        goes_on = "its cosines go on"
    log_line(
        f"run {run.name} goes on from epoch {last.epoch} to {training.epochs}: {goes_on}",
        training=run.name,
    )
    run.write_record(metrics.model_copy(update={"ended": False, "test": None, "before": None}))
    return None
