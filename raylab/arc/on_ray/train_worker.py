"""A process that trains a model together with others: Lightning under Ray Train."""

import logging
from logging.handlers import QueueHandler
from typing import Any, cast

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.data.sides import Sides
from raylab.arc.on_ray.train_messages import Line, WorkerSettings
from raylab.arc.records import TrainingMetrics
from raylab.arc.training.experiment import Experiment, build_experiment
from raylab.arc.training.loop import train_epochs
from raylab.core.errors import RaylabError, RunError
from raylab.core.on_ray.session import cpus_here

logger = logging.getLogger("raylab")


def train_worker(settings: WorkerSettings) -> RaylabError | None:
    """Trains as one worker. Returns the error that no retry would fix, or None.

    Raises:
        RunError: The run cannot be written for the moment; Ray Train starts the workers again.
    """
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    if rank == 0:
        # The driver logs the warnings of this process.
        logger.addHandler(QueueHandler(cast("Any", settings.queue)))
        logger.propagate = False
    torch.set_num_threads(cpus_here() or 1)
    try:
        _fit_worker(settings, _prepare(settings, rank, world))
    except RunError:
        raise
    except RaylabError as error:
        return error
    return None


def _prepare(settings: WorkerSettings, rank: int, world: int) -> Experiment:
    """Builds this worker's share; if any worker fails, all raise its error instead of waiting."""
    experiment, error = None, None
    try:
        sides, start = cast(
            "tuple[Sides, Checkpoint | None]", ray.get([settings.sides, settings.start])
        )
        experiment = build_experiment(
            settings.config, sides, start, run_id=settings.run.id, rank=rank, world=world
        )
    except RaylabError as caught:
        error = caught
    errors: list[RaylabError | None] = [None] * world
    dist.all_gather_object(errors, error)
    for error in errors:
        if error is not None:
            raise error
    assert experiment is not None
    return experiment


def _fit_worker(settings: WorkerSettings, experiment: Experiment) -> None:
    train_epochs(
        settings.config.training,
        settings.run,
        experiment,
        listeners={"driver": settings.queue.put},
        tell=lambda message, fields: settings.queue.put(Line(message, fields)),
        meet=_report,
        accelerator="auto",
        devices="auto",
        # Nothing to broadcast: buffers are constants, and workers validate independently.
        strategy=RayDDPStrategy(broadcast_buffers=False),
        plugins=[RayLightningEnvironment()],
    )


def _report(metrics: TrainingMetrics) -> None:
    """Reports an epoch to Ray Train, in which the workers meet.

    The run has its checkpoint already; Ray Train, which would keep and remove its own, gets none.
    """
    ray.train.report({**metrics.last.row(), "checkpoint": metrics.best.checkpoint})
