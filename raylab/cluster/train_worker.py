"""A process that trains a model together with others: Lightning under Ray Train."""

import logging
import tempfile
import time
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
    Checkpoint,
    checkpoint_name,
    read_checkpoint,
)
from raylab.arc.training import EpochRecorder, Experiment, build_experiment, build_trainer
from raylab.cluster.train_messages import HEARTBEAT_SECONDS, LogMessage, WorkerSettings, as_report
from raylab.config.jobs import TrainConfig
from raylab.errors import RaylabError

logger = logging.getLogger("raylab")


def train_worker(settings: WorkerSettings) -> RaylabError | None:
    """Trains as one worker. Returns the error that no retry would fix, or None."""
    config = settings.config
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    if rank == 0:
        _forward_logs(settings.queue)
    torch.set_num_threads(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    try:
        experiment = _prepare(config, rank, world, settings.start)
        experiment.module.run_id = settings.run_id
        _fit_worker(config, experiment, settings.queue)
    except RaylabError as error:
        return error
    return None


def _prepare(config: TrainConfig, rank: int, world: int, start: ray.ObjectRef[Any]) -> Experiment:
    """Builds this worker's share; if any worker fails, all raise its error instead of waiting."""
    experiment, error = None, None
    try:
        experiment = build_experiment(config, rank=rank, world=world)
        checkpoint = cast("Checkpoint | None", ray.get(start))
        if checkpoint is not None:
            experiment.module.start_from(checkpoint)
    except RaylabError as caught:
        error = caught
    found: list[RaylabError | None] = [None] * world
    dist.all_gather_object(found, error)
    for error in found:
        if error is not None:
            raise error
    assert experiment is not None
    return experiment


def _fit_worker(config: TrainConfig, experiment: Experiment, queue: Queue) -> None:
    module, data = experiment.module, experiment.data
    recorder = EpochRecorder(config.training.monitor, len(data.train.pairs), experiment.rules)
    callbacks = [recorder, _Report(recorder, queue)]
    trainer = prepare_trainer(
        build_trainer(
            config,
            callbacks=callbacks,
            accelerator="auto",
            devices="auto",
            # Nothing to broadcast: buffers are constants, and workers validate independently.
            strategy=RayDDPStrategy(broadcast_buffers=False),
            plugins=[RayLightningEnvironment()],
        )
    )
    latest = ray.train.get_checkpoint()
    _announce(config, experiment, trainer, queue)
    if latest is None:
        trainer.fit(module, datamodule=data)
        return
    with latest.as_directory() as directory:
        path = Path(directory) / CHECKPOINT_FILE
        read_checkpoint(path)
        trainer.fit(module, datamodule=data, ckpt_path=path, weights_only=True)


def _announce(
    config: TrainConfig, experiment: Experiment, trainer: pl.Trainer, queue: Queue
) -> None:
    if trainer.global_rank == 0:
        parameters = sum(parameter.numel() for parameter in experiment.module.parameters())
        train, val = experiment.data.train, experiment.data.val
        message = (
            f"{config.model.architecture}: {parameters:,} parameters, {len(train.pairs):,} "
            f"training pairs in {len(train):,} steps, {len(val.pairs):,} validation pairs, "
            f"{trainer.world_size} worker(s), {trainer.strategy.root_device.type}, "
            f"{trainer.precision}"
        )
        fields = {"parameters": parameters, "pairs": len(train.pairs), "steps": len(train)}
        queue.put(LogMessage(message, {**fields, "workers": trainer.world_size}))


class _Report(pl.Callback):
    """Callback that reports epochs with checkpoints to Ray Train, and signs of life between."""

    def __init__(self, recorder: EpochRecorder, queue: Queue) -> None:
        self.recorder, self.queue = recorder, queue
        self._last_sign = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.global_rank == 0 and time.monotonic() > self._last_sign + HEARTBEAT_SECONDS:
            self._last_sign = time.monotonic()
            epoch, step, loss = trainer.current_epoch + 1, batch_idx + 1, float(outputs["loss"])
            steps = trainer.num_training_batches
            message = f"  epoch {epoch}: {step} of {steps} steps, loss {loss:.4f}"
            fields = {"epoch": epoch, "done": step, "total": steps, "loss": loss}
            self.queue.put(LogMessage(message, fields))

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
        self._last_sign = time.monotonic()


def _forward_logs(queue: Queue) -> None:
    """Sends raylab's warnings in this process to the driver."""
    handler = QueueHandler(cast("Any", queue))
    logger.addHandler(handler)
    logger.propagate = False
