"""The training loop of a worker, here or on Ray. The first worker stores and reports each epoch.

A checkpoint is durable before the record names it, so a run that is killed at any moment continues
from the last epoch in its record.
"""

import time
from typing import Any

import pytorch_lightning as pl

from raylab.arc.checkpoints import CHECKPOINTS, checkpoint_name, checkpoint_path
from raylab.arc.grid_metrics import merit
from raylab.arc.records import BestEpoch, Epoch, TrainingMetrics
from raylab.arc.training.experiment import Experiment, build_trainer
from raylab.arc.training.reporter import Reporter
from raylab.core.background import Listeners
from raylab.core.errors import RunError
from raylab.core.printable import duration
from raylab.core.runs.run import Run

SIGN_SECONDS = 0.5
"""Least time between two signs of life."""


def train_epochs(
    run: Run, experiment: Experiment, reporter: Reporter, **placement: Any
) -> TrainingMetrics:
    """Trains as one worker, from the run's latest checkpoint to the end; returns the metrics.

    The first worker stores each epoch: its checkpoint, then the record. Then all report it.
    `placement` is Lightning's accelerator, devices, strategy and plugins.
    """
    module, data = experiment.module, experiment.data
    recorded = run.read_record(TrainingMetrics)
    store = EpochStore(run, experiment, reporter, recorded)
    callbacks = [store, Heartbeat(reporter)]
    trainer = build_trainer(module.training_config, callbacks=callbacks, **placement)
    if trainer.global_rank == 0:
        parameters, pairs = store.parameters, len(data.train.pairs)
        reporter.line(
            f"{module.origin.model.label}: {parameters:,} parameters, "
            f"{pairs:,} training pairs in {len(data.train):,} steps, "
            f"{len(data.val.pairs):,} validation pairs, {trainer.world_size} worker(s), "
            f"{trainer.strategy.root_device.type}, {trainer.precision}",
            {
                "parameters": parameters,
                "pairs": pairs,
                "steps": len(data.train),
                "workers": trainer.world_size,
            },
        )
    trainer.fit(
        module,
        datamodule=data,
        ckpt_path=recorded and str(run / checkpoint_path(recorded.last.epoch)),
        weights_only=True,
    )
    assert store.metrics is not None
    metrics = store.metrics.model_copy(update={"ended": True})
    if trainer.global_rank == 0:
        run.write_record(metrics)
    return metrics


class EpochStore(pl.Callback):
    """Recorder of the metrics and times of epochs, which also stores their checkpoints."""

    def __init__(
        self,
        run: Run,
        experiment: Experiment,
        reporter: Reporter,
        recorded: TrainingMetrics | None,
    ) -> None:
        """Stores epochs in `run`, after those that are recorded, and reports them."""
        self.run, self.experiment, self.reporter = run, experiment, reporter
        self.training = experiment.module.training_config
        self.parameters = sum(parameter.numel() for parameter in experiment.module.parameters())
        self.metrics = recorded
        """The record so far; None before the end of the first epoch."""
        # The next epoch's record makes up for one that could not be written.
        self._record = Listeners({TrainingMetrics.file: run.write_record})
        self._learning_rate = 0.0
        self._clock = [0.0]
        """The start times of the epoch and its validation, and the end of the validation."""

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
        """Stores the epoch's checkpoint, then its record, and reports it."""
        metrics = self.metrics = self._add_epoch(trainer)
        if trainer.global_rank == 0:
            self._require_own(metrics)
        # All workers gather the state; the first one writes it.
        trainer.save_checkpoint(str(self.run / checkpoint_path(metrics.last.epoch)))
        if trainer.global_rank == 0:
            self._record.tell(metrics)
            self._remove_all_but(metrics)
        self.reporter.epoch(metrics.last.row(), self._monitored(metrics.best))

    def _add_epoch(self, trainer: pl.Trainer) -> TrainingMetrics:
        """Returns the record with the epoch; the last of equally good epochs is the best."""
        before, module = self.metrics, self.experiment.module
        start, trained, validated = self._clock
        steps = trainer.global_step - (before.last.step if before else 0)
        pairs = len(self.experiment.data.train.pairs) * steps / module.epoch_steps
        epoch = Epoch.of_row(
            {name: float(value) for name, value in trainer.callback_metrics.items()}
            | {
                "epoch": trainer.current_epoch + 1,
                "step": trainer.global_step,
                "planned_steps": module.course.steps,
                "learning_rate": self._learning_rate,
                "samples_per_second": pairs / (trained - start),
                "train_seconds": trained - start,
                "validation_seconds": validated - trained,
            }
        )
        if before is None or self._merit(epoch) >= self._merit(before.best):
            groups, path = module.group_table, checkpoint_path(epoch.epoch)
            best = BestEpoch(**dict(epoch), groups=groups, checkpoint=path)
        else:
            best = before.best
        return TrainingMetrics(
            parameters=self.parameters,
            teacher_forced=module.model.teacher_forced,
            best=best,
            last=epoch,
            history=(*(before.history if before else ()), epoch),
            rules=self.experiment.rules,
        )

    def _monitored(self, epoch: Epoch) -> float:
        return epoch.row()[self.training.monitor]

    def _merit(self, epoch: Epoch) -> float:
        return merit(self.training.monitor, self._monitored(epoch))

    def _require_own(self, metrics: TrainingMetrics) -> None:
        """Refuses to store an epoch if another process has taken over the run.

        Workers of a lost cluster live on for a minute, in which another cluster may resume the run.
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


class Heartbeat(pl.Callback):
    """Callback of the first worker that reports steps, loss and the time left within epochs."""

    def __init__(self, reporter: Reporter) -> None:
        """Reports every `SIGN_SECONDS`."""
        self._reporter = reporter
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
        self._reporter.line(
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
