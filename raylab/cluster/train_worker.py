"""A process that trains a model together with others: Lightning under Ray Train."""

import logging
import tempfile
from collections.abc import Mapping
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from ray.util.queue import Queue

from raylab.arc.checkpoints import (
    CHECKPOINT_FILE,
    CHECKPOINTS,
    Checkpoint,
    checkpoint_name,
    epoch_of,
)
from raylab.arc.data.sides import Sides
from raylab.arc.trained_models import last_checkpoint
from raylab.arc.training import (
    EpochRecorder,
    Experiment,
    build_experiment,
    build_trainer,
    fit_on,
)
from raylab.cluster.train_messages import LogMessage, WorkerSettings, as_report
from raylab.errors import RaylabError
from raylab.files import Place
from raylab.runs.run import Run
from raylab.training.progress import Heartbeat, announce

logger = logging.getLogger("raylab")


def train_worker(settings: WorkerSettings) -> RaylabError | None:
    """Trains as one worker. Returns the error that no retry would fix, or None."""
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    if rank == 0:
        _forward_logs(settings.queue)
    torch.set_num_threads(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    try:
        _fit_worker(settings, _prepare(settings, rank, world))
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
        run_id = settings.run.id
        experiment = build_experiment(settings.config, sides, run_id=run_id, rank=rank, world=world)
        if start is not None:
            experiment.module.start_from(start)
    except RaylabError as caught:
        error = caught
    found: list[RaylabError | None] = [None] * world
    dist.all_gather_object(found, error)
    for error in found:
        if error is not None:
            raise error
    assert experiment is not None
    return experiment


def _fit_worker(settings: WorkerSettings, experiment: Experiment) -> None:
    config, queue = settings.config, settings.queue
    pairs = len(experiment.data.train.pairs)

    def tell(message: str, fields: Mapping[str, Any]) -> None:
        queue.put(LogMessage(message, fields))

    recorder = EpochRecorder(config.training.monitor, pairs, experiment.rules)
    trainer = prepare_trainer(
        build_trainer(
            config,
            callbacks=[recorder, Heartbeat(tell), _Report(recorder)],
            accelerator="auto",
            devices="auto",
            # Nothing to broadcast: buffers are constants, and workers validate independently.
            strategy=RayDDPStrategy(broadcast_buffers=False),
            plugins=[RayLightningEnvironment()],
        )
    )
    latest = _latest(settings.run)
    if trainer.global_rank == 0:
        announce(config, experiment, trainer, tell)
    fit_on(trainer, experiment, latest)


def _latest(run: Run) -> Place | None:
    """Returns the latest checkpoint: Ray's, or a recorded one that Ray Train did not write."""
    recorded, reported = last_checkpoint(run), ray.train.get_checkpoint()
    if reported is None:
        return recorded
    own = run / CHECKPOINTS / Path(reported.path).name / CHECKPOINT_FILE
    both = [file for file in (own, recorded) if file is not None]
    return max(both, key=lambda file: epoch_of(file.parent.name) or 0)


class _Report(pl.Callback):
    """Callback that reports epochs with checkpoints to Ray Train."""

    def __init__(self, recorder: EpochRecorder) -> None:
        self.recorder = recorder

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics = self.recorder.metrics
        with tempfile.TemporaryDirectory() as directory:
            trainer.save_checkpoint(Path(directory) / CHECKPOINT_FILE, weights_only=False)
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report(
                as_report(metrics),
                checkpoint=checkpoint if trainer.global_rank == 0 else None,
                checkpoint_dir_name=checkpoint_name(metrics.last.epoch),
            )


def _forward_logs(queue: Queue) -> None:
    """Sends raylab's warnings in this process to the driver."""
    handler = QueueHandler(cast("Any", queue))
    logger.addHandler(handler)
    logger.propagate = False
