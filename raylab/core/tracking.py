"""Figures of runs in trackers: TensorBoard's files, MLflow, Weights & Biases.

A resumed or restarted run continues its tracked run. The trials of a sweep and the trainings of a
pipeline are tracked runs of their own, below that of the sweep or pipeline. MLflow and Weights &
Biases may be out of reach: no run waits for them, and their failures are warnings.
"""

import io
import logging
import math
import os
import platform
import threading
import time
import uuid
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from raylab.core.config.base import Tracking, require_trackers
from raylab.core.config.schema import flatten
from raylab.core.runs.run import TRIALS, Run
from raylab.core.runs.run_record import RECORD

PROJECT = "raylab"
"""Name of the experiment in MLflow, and of the project in Weights & Biases."""
TENSORBOARD_DIRECTORY = "tensorboard"
RUN_TAG = "raylab.run_id"
MAX_PARAMETER = 500
"""Most characters of a parameter in MLflow."""
MAX_PARAMETERS = 100
"""Most parameters per request to MLflow."""
SERVER_SECONDS = 5.0
"""Longest time in seconds that a run waits, at its end, for the servers of its trackers."""
REQUEST_SECONDS = 10
"""Longest time in seconds that a server may take to answer, before it counts as a failure."""
FILE_VERSION = "brain.Event:2"
LOGGER = logging.getLogger(__name__)

Figures = Mapping[str, float]


class Tracker(Protocol):
    """A destination for the figures of a run."""

    def log(self, step: int, figures: Figures) -> None:
        """Stores the figures of a step; repeating a step changes nothing."""
        ...


@contextmanager
def tracking(
    names: Sequence[Tracking], run: Run, *, has_trainings: bool = False
) -> Generator[dict[str, Tracker]]:
    """Opens the trackers of a run by name, and closes them at the end.

    Threads send the figures to MLflow and Weights & Biases. At the end the run waits for their
    servers `SERVER_SECONDS` at most; a warning names the figures that a server has not taken. With
    `has_trainings`, that of a sweep or a pipeline, it waits as long for its tracked runs, because
    those of its trainings are placed below them.
    """
    require_trackers(names)
    trackers: dict[str, Tracker] = {}
    for name in names:
        match name:
            case "tensorboard":
                trackers[name] = TensorBoard(run)
            case "mlflow":
                trackers[name] = _Sender(name, run, _Mlflow(run))
            case "wandb":
                trackers[name] = _Sender(name, run, _WeightsAndBiases(run))
    senders = [tracker for tracker in trackers.values() if isinstance(tracker, _Sender)]
    if has_trainings:
        deadline = time.monotonic() + SERVER_SECONDS
        for sender in senders:
            sender.begun.wait(sender.seconds_until(deadline))
    try:
        yield trackers
    finally:
        # All end before the first is waited for, so that they share the time.
        for sender in senders:
            sender.end()
        deadline = time.monotonic() + SERVER_SECONDS
        for sender in senders:
            sender.join(deadline)


def track(names: Sequence[Tracking], run: Run, step: int, figures: Figures) -> None:
    """Sends the figures of a run without epochs to trackers."""
    with tracking(names, run) as trackers:
        for tracker in trackers.values():
            tracker.log(step, figures)


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
        """Writes the scalars of a step after those before it."""
        from tensorboard.compat.proto import summary_pb2

        # A step that is repeated after a failed write is in the content already.
        if (step, figures) != self._last:
            self._last = step, figures
            # Protobuf makes these classes when it is imported.
            summary: Any = vars(summary_pb2)["Summary"]
            values = [summary.Value(tag=name, simple_value=v) for name, v in figures.items()]
            self._append(step=step, summary=summary(value=values))
        (self.run / self._name).write(self._content.getvalue())

    def _append(self, **content: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        event: Any = vars(event_pb2)["Event"]
        self._records.write(event(wall_time=time.time(), **content).SerializeToString())


class _Sender:
    """A tracker with a thread that sends the figures to a server in their order.

    A failure of the server is a warning; what is left is sent again with the next figures, and at
    the end. A server that is not local may also hang.
    """

    def __init__(self, name: str, run: Run, server: "_Mlflow | _WeightsAndBiases") -> None:
        self._name, self._run, self._server = name, run, server
        self._unsent: deque[tuple[int, float, Figures]] = deque()
        self._news = threading.Event()
        self._is_ending = self._is_abandoned = self._has_ended = False
        self.begun = threading.Event()
        """Set after the first attempt to start the tracked run."""
        # A thread that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def log(self, step: int, figures: Figures) -> None:
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        self._unsent.append((step, time.time(), finite))
        self._news.set()

    def end(self) -> None:
        """Lets the thread end once everything is sent."""
        self._is_ending = True
        self._news.set()

    def join(self, deadline: float) -> None:
        """Waits for the end of the thread until a time of the monotonic clock."""
        self._thread.join(self.seconds_until(deadline))
        self._is_abandoned = True
        if self._has_ended:
            return
        steps = [step for step, *_ in self._unsent]
        lost = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        LOGGER.warning(
            "%s has not taken %s, which the files of %s hold: %s",
            self._name,
            f"the figures of {lost}" if steps else "the last figures, or the end of the run",
            self._run,
            self._server.way_out,
        )

    def seconds_until(self, deadline: float) -> float | None:
        """Returns the seconds to wait for the server; None, without limit, for local files."""
        return None if self._server.is_local else max(0.0, deadline - time.monotonic())

    def _send(self) -> None:
        begins, is_ending, fails = True, False, False
        while True:
            try:
                # At once, since the first figures may take hours.
                if begins:
                    self._server.begin()
                    begins = False
                while self._unsent and not self._is_abandoned:
                    self._server.log(*self._unsent[0])
                    self._unsent.popleft()
                if is_ending:
                    self._server.end()
                    self._has_ended = True
                fails = False
            except Exception as error:
                if not fails and not is_ending:
                    # The message may contain the address of a server with a password.
                    LOGGER.warning(
                        "%s does not take the figures (%s); it is tried again with the next ones",
                        self._name,
                        type(error).__name__,
                    )
                fails = True
            self.begun.set()
            if is_ending:
                return
            self._news.wait()
            self._news.clear()
            is_ending = self._is_ending


def _find_enclosing(run: Run) -> Run | None:
    """Returns the run that contains a run, such as the sweep of a trial; None if there is none."""
    above = run.parent.parent if run.parent.name == TRIALS else run.parent
    return Run.at(above) if (above / RECORD).exists() else None


class _Mlflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or in `mlflow.db` beside the run.

    Attributes:
        is_local: True if it is in a file.
        way_out: The end of a warning that figures are missing.
    """

    way_out = "let MLFLOW_TRACKING_URI name a server that answers, or leave mlflow out of tracking="

    def __init__(self, run: Run) -> None:
        # Here and not in `begin`: the time of an import is not that of a server.
        import mlflow

        # By default MLflow retries for minutes, before it tells that a server does not answer.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(REQUEST_SECONDS))
        self._run, self._enclosing = run, _find_enclosing(run)
        beside = (self._enclosing or run).parent.path
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}/mlflow.db"
        self.is_local = place.startswith("sqlite:")
        self._new_client = partial(mlflow.MlflowClient, place)

    def begin(self) -> None:
        """Starts the tracked run or continues it; called again if it failed."""
        from mlflow.entities import Param

        run = self._run
        self._client = self._new_client()
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        if before := self._find_id(number, run):
            self._id = before
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {RUN_TAG: str(run.id)}
        if self._enclosing and (parent := self._find_id(number, self._enclosing)):
            tags["mlflow.parentRunId"] = parent
        self._id = self._client.create_run(number, run_name=run.name, tags=tags).info.run_id
        parameters = flatten(run.record.config).items()
        entries = [Param(name, str(value)[:MAX_PARAMETER]) for name, value in parameters]
        for first in range(0, len(entries), MAX_PARAMETERS):
            self._client.log_batch(self._id, params=entries[first : first + MAX_PARAMETERS])

    def _find_id(self, experiment: str, run: Run) -> str | None:
        """Returns MLflow's id of a run; None if it has none."""
        mine = f"tags.`{RUN_TAG}` = '{run.id}'"
        tracked = self._client.search_runs([experiment], mine, max_results=1)
        return tracked[0].info.run_id if tracked else None

    def log(self, step: int, seconds: float, figures: Figures) -> None:
        """Sends the figures of a step, measured at `seconds` since 1970; a repetition is safe."""
        from mlflow.entities import Metric

        at = round(seconds * 1000)
        metrics = [Metric(name, value, at, step) for name, value in figures.items()]
        self._client.log_batch(self._id, metrics)

    def end(self) -> None:
        """Ends the tracked run once all figures are sent."""
        self._client.set_terminated(self._id)


class _WeightsAndBiases:
    """A run of Weights & Biases, used as that of MLflow is.

    Without a key it stays in the run directory for a later sync.
    """

    way_out = (
        "let WANDB_BASE_URL name a server that answers, or set WANDB_MODE=offline and send the "
        "figures later with wandb sync"
    )

    def __init__(self, run: Run) -> None:
        import wandb

        self._run = run
        self.is_local = "WANDB_MODE" not in os.environ and not wandb.api.api_key

    def begin(self) -> None:
        import wandb

        run = self._run
        self._tracked = wandb.init(
            project=PROJECT,
            id=run.id,
            name=run.name,
            group=(_find_enclosing(run) or run).name,
            resume="allow",
            config=flatten(run.record.config),
            dir=run.path if run.is_local else None,
            mode="offline" if self.is_local else None,
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                init_timeout=REQUEST_SECONDS,
                # Also at the exit of the process, where W&B would wait for hours.
                finish_timeout=SERVER_SECONDS,
                finish_timeout_raises=True,
            ),
        )

    def log(self, step: int, seconds: float, figures: Figures) -> None:
        self._tracked.log({**figures, "_timestamp": seconds}, step=step)

    def end(self) -> None:
        self._tracked.finish()
