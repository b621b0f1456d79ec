"""The training loop of a worker, here or on Ray. The first worker stores and reports each epoch.

A checkpoint is durable before the record names it, so a run that is killed at any moment continues
from the last epoch in its record.
"""

import time
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl

from raylab.arc.checkpoints import CHECKPOINTS, checkpoint_name, checkpoint_path
from raylab.arc.config.sections import TrainingConfig
from raylab.arc.grid_metrics import merit
from raylab.arc.records import BestEpoch, Epoch, TrainingMetrics
from raylab.arc.training.experiment import Experiment, build_trainer
from raylab.arc.training.listeners import EpochListener, Tell
from raylab.core.background import Listeners
from raylab.core.errors import RunError
from raylab.core.printable import duration
from raylab.core.runs.run import Run

SIGN_SECONDS = 0.5
"""Least time between two signs of life."""


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

    The first worker stores each epoch: its checkpoint, then the record; then it calls the
    listeners.

    Args:
        training: How to train.
        run: The run.
        experiment: The model and this worker's share of the data.
        listeners: Functions that the first worker calls after each epoch, by name in warnings;
            if one fails, it is called again after the next epoch or at the end.
        tell: Receiver of the first worker's lines.
        meet: Called by every worker after each stored epoch.
        placement: Lightning's accelerator, devices, strategy and plugins.

    Raises:
        RaylabError: The training failed for a reason that the user can act on.
    """
    followers = Listeners({TrainingMetrics.file: run.write_record, **listeners})
    store = EpochStore(training, run, experiment, followers, meet)
    trainer = build_trainer(training, callbacks=[store, Heartbeat(tell)], **placement)
    if trainer.global_rank == 0:
        _announce(experiment, trainer, tell)
    recorded = run.read_record(TrainingMetrics)
    trainer.fit(
        experiment.module,
        datamodule=experiment.data,
        ckpt_path=recorded and str(run / checkpoint_path(recorded.last.epoch)),
        weights_only=True,
    )
    assert store.metrics is not None
    metrics = store.metrics.model_copy(update={"ended": True})
    if trainer.global_rank == 0:
        try:
            followers.finish()
        finally:
            # A listener that fails must not repeat the training.
            run.write_record(metrics)
    return metrics


class EpochStore(pl.Callback):
    """Recorder of the metrics and times of epochs, which also stores their checkpoints.

    Each checkpoint holds the record. The first worker stores it, and then all workers meet.
    """

    def __init__(
        self,
        training: TrainingConfig,
        run: Run,
        experiment: Experiment,
        listeners: Listeners[TrainingMetrics],
        meet: EpochListener,
    ) -> None:
        """Stores epochs in `run`; the arguments are those of `train_epochs`."""
        self.training, self.run, self.experiment = training, run, experiment
        self.listeners, self.meet = listeners, meet
        self.metrics: TrainingMetrics | None = None
        """The record so far; None before the end of the first epoch."""
        self._learning_rate = 0.0
        self._clock = [0.0]
        """The start times of the epoch and its validation, and the end of the validation."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the record of the epochs, which a resumed run continues."""
        return {} if self.metrics is None else {"metrics": self.metrics.content()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the record of the checkpoint."""
        self.metrics = TrainingMetrics.from_content(state_dict["metrics"])

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Starts the clock and notes the learning rate, which is stepped before validation."""
        self._learning_rate = self.experiment.module.learning_rate
        self._clock = [time.perf_counter()]

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes the end of training."""
        self._clock.append(time.perf_counter())

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes the end of validation."""
        self._clock.append(time.perf_counter())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stores the epoch's checkpoint, then its record."""
        metrics = self.metrics = self._add_epoch(trainer)
        if trainer.global_rank == 0:
            self._require_own(metrics)
        # All workers gather the state; the first one writes it.
        trainer.save_checkpoint(str(self.run / checkpoint_path(metrics.last.epoch)))
        if trainer.global_rank == 0:
            self.listeners.tell(metrics)
            self._remove_all_but(metrics)
        self.meet(metrics)

    def _add_epoch(self, trainer: pl.Trainer) -> TrainingMetrics:
        """Returns the record with the epoch; the last of equally good epochs is the best."""
        before, epoch, module = self.metrics, self._epoch(trainer), self.experiment.module
        if before is None or self._merit(epoch) >= self._merit(before.best):
            groups, path = module.group_table, checkpoint_path(epoch.epoch)
            best = BestEpoch(**dict(epoch), groups=groups, checkpoint=path)
        else:
            best = before.best
        return TrainingMetrics(
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            teacher_forced=module.model.teacher_forced,
            best=best,
            last=epoch,
            history=(*(before.history if before else ()), epoch),
            rules=self.experiment.rules,
        )

    def _epoch(self, trainer: pl.Trainer) -> Epoch:
        start, trained, validated = self._clock
        module, pairs = self.experiment.module, len(self.experiment.data.train.pairs)
        steps = trainer.global_step - (self.metrics.last.step if self.metrics else 0)
        return Epoch.of_row(
            {name: float(value) for name, value in trainer.callback_metrics.items()}
            | {
                "epoch": trainer.current_epoch + 1,
                "step": trainer.global_step,
                "planned_steps": module.course.steps,
                "learning_rate": self._learning_rate,
                "samples_per_second": pairs * steps / module.epoch_steps / (trained - start),
                "train_seconds": trained - start,
                "validation_seconds": validated - trained,
            }
        )

    def _merit(self, epoch: Epoch) -> float:
        return merit(self.training.monitor, epoch.row()[self.training.monitor])

    def _require_own(self, metrics: TrainingMetrics) -> None:
        """Refuses to store an epoch if another process has taken over the run.

        Workers of a lost cluster live on for a minute, in which another cluster may resume the run.

        Raises:
            RunError: The run was removed or started again, or its record is ahead of this epoch.
        """
        self.run.require_own()
        recorded = self.run.read_record(TrainingMetrics)
        if recorded is not None and recorded.last.epoch > metrics.last.epoch:
            raise RunError(
                f"run {self.run} has epoch {recorded.last.epoch} in its record, past epoch "
                f"{metrics.last.epoch} of this process, which stops: another one continues the run"
            )

    def _remove_all_but(self, metrics: TrainingMetrics) -> None:
        """Removes all checkpoints but the best, the last, and those in the record on disk."""
        kept = sorted(metrics.history, key=lambda epoch: (self._merit(epoch), epoch.epoch))
        kept = [*kept[-self.training.keep_checkpoints :], metrics.last]
        if recorded := self.run.read_record(TrainingMetrics):
            kept += [recorded.best, recorded.last]
        names = {checkpoint_name(epoch.epoch) for epoch in kept}
        checkpoints = self.run / CHECKPOINTS
        for name in checkpoints.names():
            # Ray Train keeps files of its own there.
            if name.startswith("epoch-") and name not in names:
                (checkpoints / name).remove()


def _announce(experiment: Experiment, trainer: pl.Trainer, tell: Tell) -> None:
    """Tells the size of a training that starts."""
    parameters = sum(parameter.numel() for parameter in experiment.module.parameters())
    train, val = experiment.data.train, experiment.data.val
    message = (
        f"{experiment.module.origin.model.architecture}: {parameters:,} parameters, "
        f"{len(train.pairs):,} training pairs in {len(train):,} steps, "
        f"{len(val.pairs):,} validation pairs, {trainer.world_size} worker(s), "
        f"{trainer.strategy.root_device.type}, {trainer.precision}"
    )
    fields = {"parameters": parameters, "pairs": len(train.pairs), "steps": len(train)}
    tell(message, {**fields, "workers": trainer.world_size})


class Heartbeat(pl.Callback):
    """Callback of the first worker that reports steps, loss and the time left within epochs."""

    def __init__(self, tell: Tell) -> None:
        """Reports to `tell` every `SIGN_SECONDS`."""
        self._tell = tell
        self._last_sign = time.monotonic()
        self._start: tuple[int, float] | None = None
        """The first step, which warms up and does not count, and its time."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reports the step, its loss and the time left, if it is time to."""
        now, step = time.monotonic(), trainer.global_step
        first, start = self._start = self._start or (step, now)
        if trainer.global_rank or step == first or now < self._last_sign + SIGN_SECONDS:
            return
        self._last_sign = now
        epoch, total, loss = trainer.current_epoch + 1, pl_module.course.steps, outputs["loss"]
        seconds = (now - start) / (step - first) * (total - step)
        # A time limit may end the training within the epoch.
        steps = min(trainer.num_training_batches, total - step + batch_idx + 1)
        self._tell(
            f"  epoch {epoch}: {batch_idx + 1} of {steps} steps, "
            f"loss {float(loss):.4f}, about {duration(seconds)} left",
            {
                "epoch": epoch,
                "done": step,
                "total": total,
                "loss": float(loss),
                "eta_seconds": seconds,
            },
        )
