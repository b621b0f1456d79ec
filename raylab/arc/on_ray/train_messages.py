"""The messages between the processes of a training.

All of them import this module, so it must not import torch or Lightning, which take seconds; only
the workers need these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
import ray.train
from ray.util.queue import Queue

from raylab.arc.config.jobs import TrainConfig
from raylab.core.runs.run import Run


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of every worker.

    Attributes:
        config: Configuration of the training.
        run: Run of the training.
        sides: The `Sides` of the training.
        start: The `Checkpoint` whose weights the model starts from, or None.
        queue: Queue of messages to the driver: lines, records of Python's logging, and the
            `TrainingMetrics` of each epoch that is stored.
    """

    config: TrainConfig
    run: Run
    sides: "ray.ObjectRef[Any]"
    start: "ray.ObjectRef[Any]"
    queue: Queue


class Line(NamedTuple):
    """A line that the driver logs, with its fields; `worker` is the rank of a failed worker."""

    text: str
    fields: Mapping[str, Any]
    worker: int | None = None


class ForwardFailures(ray.train.UserCallback):
    """Callback in Ray Train's controller that reports failures to the driver."""

    def __init__(self, queue: Queue, max_failures: int) -> None:
        self.queue, self.left = queue, max_failures

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in worker_exceptions.items():
            reason = str(error).strip().rpartition("\n")[2]
            text = f"worker {rank} failed ({type(error).__name__}: {reason})"
            self.queue.put(Line(text, {}, worker=rank))
        if self.left:
            self.queue.put(Line("all workers start again from the last checkpoint", {}))
        self.left -= 1
