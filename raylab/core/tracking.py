"""Figures of runs in trackers: TensorBoard's files, MLflow, Weights & Biases.

A resumed or restarted run continues its tracked run. The trials of a sweep and the trainings of a
pipeline are tracked runs of their own, below that of the sweep or pipeline. MLflow and Weights &
Biases may be out of reach: their failures are warnings and never end a run.
"""

import io
import logging
import math
import os
import platform
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from raylab.core.config.base import Tracking, require_trackers
from raylab.core.config.schema import flatten
from raylab.core.runs.run import TRIALS, Run
from raylab.core.runs.run_record import RECORD

PROJECT = "raylab"
"""Name of the experiment in MLflow, and of the project in Weights & Biases."""
TENSORBOARD_DIRECTORY = "tensorboard"
RUN_TAG = "raylab.run_id"
LONGEST_PARAMETER = 500
MOST_PARAMETERS = 100
"""Most parameters per request to MLflow."""
MOST_FAILURES = 5
"""Failures in a row after which a tracker is given up."""
FILE_VERSION = "brain.Event:2"
LOGGER = logging.getLogger(__name__)

Figures = Mapping[str, float]


class Tracker(Protocol):
    """A destination for the figures of a run."""

    def log(self, step: int, figures: Figures) -> None:
        """Stores the figures of a step; repeating a step changes nothing."""
        ...

    def close(self) -> None:
        """Ends the figures from this process."""
        ...


@contextmanager
def tracking(names: Sequence[Tracking], run: Run) -> Generator[dict[str, Tracker]]:
    """Opens the trackers of a run by name, and closes them at the end.

    Raises:
        ConfigError: The package of one is not installed.
    """
    require_trackers(names)
    trackers: dict[str, Tracker] = {name: _open(name, run) for name in names}
    try:
        yield trackers
    finally:
        for tracker in trackers.values():
            tracker.close()


def track(names: Sequence[Tracking], run: Run, step: int, figures: Figures) -> None:
    """Sends the figures of a run without epochs to trackers.

    Raises:
        ConfigError: The package of one is not installed.
        RunError: TensorBoard's file cannot be written.
    """
    with tracking(names, run) as trackers:
        for tracker in trackers.values():
            tracker.log(step, figures)


def _open(name: Tracking, run: Run) -> Tracker:
    match name:
        case "tensorboard":
            return TensorBoard(run)
        case "mlflow":
            return _Lenient(name, lambda: _Mlflow(run))
        case "wandb":
            return _Lenient(name, lambda: _WeightsAndBiases(run))


class TensorBoard:
    """TensorBoard scalars of a run, in `<run>/tensorboard` on any filesystem.

    The event file is written whole at every step, so the next write makes up for a failure.
    TensorBoard's own writer appends to local files only, and a failure ends its thread.
    """

    def __init__(self, run: Run) -> None:
        """Starts an event file; a resumed run adds another."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.run = run
        unique = f"{time.time():.0f}.{platform.node()}.{uuid.uuid4().hex}"
        self._name = f"{TENSORBOARD_DIRECTORY}/events.out.tfevents.{unique}"
        self._content = io.BytesIO()
        self._records = RecordWriter(self._content)
        self._last: tuple[int, Figures] | None = None
        self._append(file_version=FILE_VERSION)

    def log(self, step: int, figures: Figures) -> None:
        """Writes the scalars of a step after those before it.

        Raises:
            RunError: The file cannot be written.
        """
        from tensorboard.compat.proto import summary_pb2

        if (step, figures) != self._last:
            self._last = step, figures
            # Protobuf makes these classes when it is imported.
            summary: Any = vars(summary_pb2)["Summary"]
            values = [summary.Value(tag=name, simple_value=v) for name, v in figures.items()]
            self._append(step=step, summary=summary(value=values))
        (self.run / self._name).write(self._content.getvalue())

    def close(self) -> None:
        """Does nothing: every step is written."""

    def _append(self, **content: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        event: Any = vars(event_pb2)["Event"]
        self._records.write(event(wall_time=time.time(), **content).SerializeToString())


class _Lenient:
    """A tracker whose failures are warnings; after some in a row it is given up."""

    def __init__(self, name: str, begin: Callable[[], Tracker]) -> None:
        self._name, self._begin = name, begin
        self._tracker: Tracker | None = None
        self._failures = 0
        # It appears at once: the first figures may take hours.
        self._do(lambda tracker: None)

    def log(self, step: int, figures: Figures) -> None:
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        self._do(lambda tracker: tracker.log(step, finite))

    def close(self) -> None:
        if self._tracker is not None:
            self._do(lambda tracker: tracker.close())

    def _do(self, action: Callable[[Tracker], None]) -> None:
        if self._failures == MOST_FAILURES:
            return
        try:
            if self._tracker is None:
                self._tracker = self._begin()
            action(self._tracker)
            self._failures = 0
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        self._failures += 1
        # The message may contain the address of a server with a password.
        kind = type(error).__name__
        if self._failures == 1:
            LOGGER.warning("%s does not take the figures (%s); the run goes on", self._name, kind)
        elif self._failures == MOST_FAILURES:
            LOGGER.warning("%s gets no more figures", self._name)


def _find_enclosing(run: Run) -> Run | None:
    """Returns the run that contains a run, such as the sweep of a trial; None if there is none."""
    above = run.parent.parent if run.parent.name == TRIALS else run.parent
    return Run.at(above) if (above / RECORD).exists() else None


class _Mlflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or in `mlflow.db` beside the run."""

    def __init__(self, run: Run) -> None:
        from mlflow import MlflowClient

        # MLflow would retry for minutes while a training waits.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        enclosing = _find_enclosing(run)
        beside = (enclosing or run).parent.path
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}/mlflow.db"
        self._client = MlflowClient(place)
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        if before := self._find_id(number, run):
            self._id = before
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {RUN_TAG: str(run.id)}
        if enclosing is not None and (parent := self._find_id(number, enclosing)):
            tags["mlflow.parentRunId"] = parent
        self._id = self._client.create_run(number, run_name=run.name, tags=tags).info.run_id
        self._describe(flatten(run.record.config))

    def _find_id(self, experiment: str, run: Run) -> str | None:
        """Returns MLflow's id of a run; None if it has none."""
        mine = f"tags.`{RUN_TAG}` = '{run.id}'"
        tracked = self._client.search_runs([experiment], mine, max_results=1)
        return tracked[0].info.run_id if tracked else None

    def _describe(self, parameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(name, str(v)[:LONGEST_PARAMETER]) for name, v in parameters.items()]
        for first in range(0, len(entries), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=entries[first : first + MOST_PARAMETERS])

    def log(self, step: int, figures: Figures) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._id, metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


class _WeightsAndBiases:
    """A run of Weights & Biases; without a key it stays in the run directory for a later sync."""

    def __init__(self, run: Run) -> None:
        import wandb

        is_online = "WANDB_MODE" in os.environ or wandb.api.api_key
        enclosing = _find_enclosing(run)
        self._run = wandb.init(
            project=PROJECT,
            id=run.id,
            name=run.name,
            group=(enclosing or run).name,
            resume="allow",
            config=flatten(run.record.config),
            dir=run.path if run.is_local else None,
            mode=None if is_online else "offline",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )

    def log(self, step: int, figures: Figures) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()
