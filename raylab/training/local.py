"""Training in the process that calls: one worker, without Ray, with Ray's guarantees.

A checkpoint is durable before the record names it, so a run that is killed at any moment goes on
from the last epoch in its record.
"""

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning.utilities.exceptions import SIGTERMException

from raylab.arc.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    checkpoint_name,
    checkpoint_path,
    epoch_of,
)
from raylab.arc.data.sides import Sides
from raylab.arc.device import device_here, threads_here
from raylab.arc.inputs import Inputs
from raylab.arc.records import Epoch, TrainingMetrics
from raylab.arc.trained_models import last_checkpoint
from raylab.arc.training import EpochRecorder, build_experiment, build_trainer, fit_on
from raylab.background import Listeners
from raylab.config.jobs import TrainConfig
from raylab.grid_metrics import merit
from raylab.log import log_line
from raylab.runs.run import Run
from raylab.training.held_out import with_test
from raylab.training.listeners import EpochListener, ended_metrics, epoch_listeners
from raylab.training.progress import Heartbeat, announce
from raylab.workers import WorkersHere

NO_LISTENERS: Mapping[str, EpochListener] = {}


def train(inputs: Inputs) -> None:
    """Trains in this process, and prints the metrics.

    Raises:
        RaylabError: The training failed for a reason that the user can act on.
    """
    config = inputs.config
    with Run.alone(config, config.job) as run:
        metrics = fit(config, run, inputs.sides, inputs.start)
        # The report takes a second to import, in which the first epoch may be under way.
        from raylab.training.outcome import report_training

        workers = WorkersHere(config.cluster)
        report_training(config, run, with_test(config, run, metrics, inputs.sides, workers))


def fit(
    config: TrainConfig,
    run: Run,
    sides: Sides,
    start: Checkpoint | None = None,
    listeners: Mapping[str, EpochListener] = NO_LISTENERS,
    threads: int | None = None,
) -> TrainingMetrics:
    """Trains in this process; writes and returns the metrics of the run.

    A run without epochs left is not trained again. A run with a checkpoint goes on from its latest.
    The run is not finished yet, because its best checkpoint is not tested.

    Args:
        config: Configuration of the training, of one worker.
        run: Run of the training.
        sides: Its pairs.
        start: The weights that it starts from; None for new ones.
        listeners: What else is told after each epoch, by name in warnings; one that fails is told
            again after the next epoch or at the end.
        threads: CPU threads; None takes `config.cluster.cpus_per_worker`, or all CPUs.

    Raises:
        RaylabError: The training failed for a reason that the user can act on.
    """
    if metrics := ended_metrics(run):
        return metrics
    with epoch_listeners(config, run) as own:
        told = Listeners({**own, **listeners})
        recorder = _train(config, run, sides, start, told, threads)
        metrics = recorder.metrics.model_copy(update={"ended": True})
        try:
            told.finish()
        finally:
            # What could not be told makes no epoch come again.
            run.write_record(metrics)
    return metrics


def _train(
    config: TrainConfig,
    run: Run,
    sides: Sides,
    start: Checkpoint | None,
    listeners: Listeners[TrainingMetrics],
    threads: int | None,
) -> EpochRecorder:
    """Trains to the end; returns the recorder of the epochs. The arguments are those of `fit`."""
    device = device_here(config.cluster)
    torch.set_num_threads(threads or threads_here(config.cluster))
    experiment = build_experiment(config, sides, run_id=run.id)
    if start is not None:
        experiment.module.start_from(start)
    recorder = EpochRecorder(
        config.training.monitor, len(experiment.data.train.pairs), experiment.rules
    )

    def tell(message: str, fields: Mapping[str, Any]) -> None:
        log_line(message, training=run.name, **fields)

    trainer = _quiet_trainer(
        config, [recorder, Heartbeat(tell), _Store(config, run, recorder, listeners)], device
    )
    announce(config, experiment, trainer, tell)
    try:
        fit_on(trainer, experiment, last_checkpoint(run))
    except SystemExit as ended:
        # Lightning makes exits of SIGINT and SIGTERM, the second one of status 0.
        if isinstance(ended, SIGTERMException) or isinstance(ended.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    return recorder


def _quiet_trainer(
    config: TrainConfig, callbacks: list[pl.Callback], device: torch.device
) -> pl.Trainer:
    """Returns a trainer that keeps to itself what Lightning says of devices and loaders."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    return build_trainer(
        config,
        callbacks=callbacks,
        accelerator=device.type,
        devices=1,
        # Lightning would take the variables of a batch system for a request of many workers.
        plugins=[LightningEnvironment()],
    )


class _Store(pl.Callback):
    """Callback that stores a checkpoint after each epoch, and then tells the listeners."""

    def __init__(
        self,
        config: TrainConfig,
        run: Run,
        recorder: EpochRecorder,
        listeners: Listeners[TrainingMetrics],
    ) -> None:
        self.config, self.run = config, run
        self.recorder, self.listeners = recorder, listeners

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics = self.recorder.metrics
        self.run.require_own()
        trainer.save_checkpoint(str(self.run / checkpoint_path(metrics.last.epoch)))
        self.listeners.tell(metrics)
        self._remove_all_but(metrics)

    def _remove_all_but(self, metrics: TrainingMetrics) -> None:
        """Removes checkpoints but the best, the last, and those that the record on disk names."""
        training = self.config.training

        def rank(epoch: Epoch) -> tuple[float, int]:
            return merit(training.monitor, epoch.row()[training.monitor]), epoch.epoch

        best = sorted(metrics.history, key=rank)[-training.keep_checkpoints :]
        kept = [*best, metrics.last]
        if recorded := self.run.read_record(TrainingMetrics):
            kept += [recorded.best, recorded.last]
        names = {checkpoint_name(epoch.epoch) for epoch in kept}
        checkpoints = self.run / CHECKPOINTS
        for name in checkpoints.names():
            if epoch_of(name) and name not in names:
                (checkpoints / name).remove()
