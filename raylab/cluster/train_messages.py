"""What passes between the processes of a training.

All of them import it, and Lightning takes seconds to import: only those that train do.
"""

from typing import Any, NamedTuple

import ray.train
from ray.util.queue import Queue

from raylab.runs.run import Json

HEARTBEAT_SECONDS = 30.0
"""A training that goes on gives a sign of life this often at least, unless it validates."""


def work(settings: dict[str, Any]) -> tuple[str, str] | None:
    """Train as one worker; see `raylab.cluster.train_worker.train_worker`."""
    from raylab.cluster.train_worker import train_worker

    return train_worker(settings)


class Line(NamedTuple):
    """What the driver is to say."""

    message: str
    fields: Json


class WorkerFailure(NamedTuple):
    """Why a worker died."""

    rank: int
    reason: str


class Forward(ray.train.UserCallback):
    """Tells the driver, from Ray Train's controller, what is safely stored and what failed."""

    def __init__(self, queue: Queue, max_failures: int) -> None:
        self.queue, self.left = queue, max_failures

    def after_report(self, run_context: Any, metrics: list[Json], checkpoint: Any) -> None:
        self.queue.put(metrics[0]["summary"])

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in worker_exceptions.items():
            reason = str(error).strip().rpartition("\n")[2]
            self.queue.put(WorkerFailure(rank, f"{type(error).__name__}: {reason}"))
        if self.left:
            self.queue.put(Line("all workers start again from the last checkpoint", {}))
        self.left -= 1
