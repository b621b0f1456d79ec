"""The messages between the processes of a training.

All of them import this module, so it must not import torch or Lightning, which take seconds; only
the processes that train need these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
import ray.train
from ray.util.queue import Queue

from raylab.config.jobs import TrainConfig
from raylab.runs.run import Run


@dataclass(frozen=True)
class WorkerSettings:
    """The settings that every worker gets.

    Attributes:
        config: Configuration of the training.
        run: The run.
        sides: The `Sides` of the training.
        start: The `Checkpoint` whose weights the model starts from, or None.
        queue: Queue of messages to the driver: lines, stored `TrainingMetrics`, failures.
    """

    config: TrainConfig
    run: Run
    sides: "ray.ObjectRef[Any]"
    start: "ray.ObjectRef[Any]"
    queue: Queue


class LogMessage(NamedTuple):
    """A line that the driver logs, with its fields."""

    message: str
    fields: Mapping[str, Any]


class WorkerFailure(NamedTuple):
    """The reason why a worker died."""

    rank: int
    reason: str


class ForwardFailures(ray.train.UserCallback):
    """Callback in Ray Train's controller that tells the driver of failures."""

    def __init__(self, queue: Queue, max_failures: int) -> None:
        self.queue, self.left = queue, max_failures

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in worker_exceptions.items():
            reason = str(error).strip().rpartition("\n")[2]
            self.queue.put(WorkerFailure(rank, f"{type(error).__name__}: {reason}"))
        if self.left:
            self.queue.put(LogMessage("all workers start again from the last checkpoint", {}))
        self.left -= 1
