"""A worker of a training by Ray Train, and its messages to the driver.

The driver and Ray's controller import this module as well. Torch and Lightning, which take seconds
to import, are therefore imported only where a worker trains.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from logging.handlers import QueueHandler
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import ray
import ray.train
from ray.util.queue import Queue

from raylab.arc.config.jobs import TrainConfig
from raylab.core.errors import RaylabError, RunError
from raylab.core.on_ray.session import cpus_here
from raylab.core.runs.run import Run
from raylab.core.tracking import Figures

if TYPE_CHECKING:
    from raylab.arc.training.loop import Experiment

SETTINGS = "settings"
"""Key of the settings in the configuration that Ray Train hands to its workers."""
logger = logging.getLogger("raylab")


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of every worker."""

    config: TrainConfig
    run: Run
    sides: "ray.ObjectRef[Any]"
    """The `Sides` of the training."""
    start: "ray.ObjectRef[Any]"
    """The `Checkpoint` whose weights the model starts from, or None."""
    queue: Queue
    """To the driver: `Line`, `StoredEpoch`, and records of Python's logging."""


class Line(NamedTuple):
    """A line that the driver logs, with its fields; `worker` is the rank of a failed worker."""

    text: str
    fields: Mapping[str, Any]
    worker: int | None = None


class StoredEpoch(NamedTuple):
    """An epoch for the driver's reporter."""

    figures: Figures
    best: float


class ToDriver:
    """Reporter of a worker, which puts on the driver's queue what the first worker reports."""

    def __init__(self, queue: Queue, rank: int) -> None:
        self.queue, self.rank = queue, rank

    def line(self, text: str, fields: Mapping[str, Any]) -> None:
        self.queue.put(Line(text, fields))

    def epoch(self, figures: Figures, best: float) -> None:
        """Puts an epoch on the queue, and waits for the other workers."""
        if self.rank == 0:
            self.queue.put(StoredEpoch(figures, best))
        # Without a checkpoint, which the run has: Ray Train would keep and remove its own.
        ray.train.report(dict(figures))


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


def work(loop_config: dict[str, WorkerSettings]) -> RaylabError | None:
    """Trains as one worker. Returns the error that no retry would fix, or None."""
    import torch
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment

    from raylab.arc.training.loop import train_epochs

    settings, context = loop_config[SETTINGS], ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    if rank == 0:
        # The driver logs the warnings of this process.
        logger.addHandler(QueueHandler(cast("Any", settings.queue)))
        logger.propagate = False
    torch.set_num_threads(cpus_here() or 1)
    try:
        train_epochs(
            settings.run,
            _build_together(settings, rank, world),
            ToDriver(settings.queue, rank),
            accelerator="auto",
            devices="auto",
            # Nothing to broadcast: buffers are constants, and workers validate independently.
            strategy=RayDDPStrategy(broadcast_buffers=False),
            plugins=[RayLightningEnvironment()],
        )
    except RunError:
        # The run cannot be written for the moment: Ray Train starts the workers again.
        raise
    except RaylabError as error:
        return error
    return None


def _build_together(settings: WorkerSettings, rank: int, world: int) -> "Experiment":
    """Builds this worker's part of the training, or raises the error of any worker."""
    import torch.distributed as dist

    from raylab.arc.training.loop import Experiment

    experiment, error = None, None
    try:
        sides, start = cast("tuple[Any, Any]", ray.get([settings.sides, settings.start]))
        experiment = Experiment(
            settings.config, sides, start, run_id=settings.run.id, rank=rank, world=world
        )
    except RaylabError as caught:
        error = caught
    # A worker that went on alone would wait for the gradients of those that failed.
    errors: list[RaylabError | None] = [None] * world
    dist.all_gather_object(errors, error)
    for error in errors:
        if error is not None:
            raise error
    assert experiment is not None
    return experiment
