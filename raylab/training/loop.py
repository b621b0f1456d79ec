"""The training loop, the same wherever its workers are: the first of them stores each epoch.

A checkpoint is durable before the record names it, so a run that is killed at any moment goes on
from the last epoch in its record.
"""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl

from raylab.arc.checkpoints import CHECKPOINTS, checkpoint_name, checkpoint_path, epoch_of
from raylab.arc.records import Epoch, TrainingMetrics
from raylab.arc.trained_models import last_checkpoint
from raylab.arc.training import EpochRecorder, Experiment, build_trainer, fit_on
from raylab.background import Listeners
from raylab.config.arc import TrainingConfig
from raylab.errors import RunError
from raylab.grid_metrics import merit
from raylab.runs.run import Run
from raylab.training.listeners import EpochListener
from raylab.training.progress import Heartbeat, Tell, announce


def train_epochs(
    training: TrainingConfig,
    run: Run,
    experiment: Experiment,
    *,
    listeners: Mapping[str, EpochListener],
    tell: Tell,
    meet: EpochListener = lambda metrics: None,
    **placement: Any,
) -> TrainingMetrics:
    """Trains as one worker, from the run's latest checkpoint to the end; returns the metrics.

    The first worker stores each epoch: its checkpoint, then the record, which the listeners follow.

    Args:
        training: How to train.
        run: The run.
        experiment: The model and this worker's share of the data.
        listeners: What else the first worker tells of each epoch, by name in warnings; one that
            fails is told again after the next epoch or at the end.
        tell: Receiver of the first worker's lines.
        meet: Called by every worker after each stored epoch.
        placement: Lightning's accelerator, devices, strategy and plugins.

    Raises:
        RaylabError: The training failed for a reason that the user can act on.
    """
    pairs = len(experiment.data.train.pairs)
    recorder = EpochRecorder(training.monitor, pairs, experiment.rules)
    told = Listeners({TrainingMetrics.file: run.write_record, **listeners})
    store = _Store(training, run, recorder, told, meet)
    trainer = build_trainer(training, callbacks=[recorder, Heartbeat(tell), store], **placement)
    if trainer.global_rank == 0:
        announce(experiment, trainer, tell)
    fit_on(trainer, experiment, last_checkpoint(run))
    metrics = recorder.metrics.model_copy(update={"ended": True})
    if trainer.global_rank == 0:
        try:
            told.finish()
        finally:
            # What could not be told makes no epoch come again.
            run.write_record(metrics)
    return metrics


class _Store(pl.Callback):
    """Callback that stores each epoch on the first worker, and then meets the others."""

    def __init__(
        self,
        training: TrainingConfig,
        run: Run,
        recorder: EpochRecorder,
        listeners: Listeners[TrainingMetrics],
        meet: EpochListener,
    ) -> None:
        self.training, self.run, self.recorder = training, run, recorder
        self.listeners, self.meet = listeners, meet

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics = self.recorder.metrics
        is_first = trainer.global_rank == 0
        if is_first:
            self._require_own(metrics)
        # All workers gather the state; the first one writes it.
        trainer.save_checkpoint(str(self.run / checkpoint_path(metrics.last.epoch)))
        if is_first:
            self.listeners.tell(metrics)
            self._remove_all_but(metrics)
        self.meet(metrics)

    def _require_own(self, metrics: TrainingMetrics) -> None:
        """Refuses to store an epoch of a run that others hold.

        Workers of a lost cluster live on for a minute, in which another one may resume the run.

        Raises:
            RunError: The run was removed or begun anew, or its record is ahead of this epoch.
        """
        self.run.require_own()
        recorded = self.run.read_record(TrainingMetrics)
        if recorded is not None and recorded.last.epoch > metrics.last.epoch:
            raise RunError(
                f"run {self.run} has epoch {recorded.last.epoch} in its record, past epoch "
                f"{metrics.last.epoch} of this process, which stops: others go on with the run"
            )

    def _remove_all_but(self, metrics: TrainingMetrics) -> None:
        """Removes checkpoints but the best, the last, and those that the record on disk names."""

        def rank(epoch: Epoch) -> tuple[float, int]:
            monitor = self.training.monitor
            return merit(monitor, epoch.row()[monitor]), epoch.epoch

        best = sorted(metrics.history, key=rank)[-self.training.keep_checkpoints :]
        kept = [*best, metrics.last]
        if recorded := self.run.read_record(TrainingMetrics):
            kept += [recorded.best, recorded.last]
        names = {checkpoint_name(epoch.epoch) for epoch in kept}
        checkpoints = self.run / CHECKPOINTS
        for name in checkpoints.names():
            if epoch_of(name) and name not in names:
                (checkpoints / name).remove()
