"""The training loop of a worker, here or on Ray: its data, module and trainer, and its epochs.

The first worker stores and reports each epoch. A checkpoint is durable before the record names it,
so a run that is killed at any moment continues from the last epoch in its record.
"""

import time
from collections.abc import Sequence
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import CheckpointIO
from torch.utils.data import DataLoader

from raylab.arc.baselines import baseline_metrics
from raylab.arc.checkpoints import (
    CHECKPOINTS,
    DIGEST,
    Checkpoint,
    checkpoint_name,
    checkpoint_path,
    digest,
    load_training,
)
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import TrainingConfig
from raylab.arc.data.batching import Batch, BatchPlan, planned_loader
from raylab.arc.data.split import Sides
from raylab.arc.data.steps import Augmentation, StepPlan, TrainingStep
from raylab.arc.device import hardware_precision
from raylab.arc.grid_metrics import merit
from raylab.arc.module import ArcModule
from raylab.arc.optimisation import build_callbacks
from raylab.arc.records import BestEpoch, Epoch, TrainingMetrics
from raylab.arc.training.reporter import Reporter
from raylab.core.background import Listeners
from raylab.core.errors import RunError
from raylab.core.files import Place
from raylab.core.printable import duration
from raylab.core.runs.run import Run

GPU_LOADER_PROCESSES = 4
SIGN_SECONDS = 0.5
"""Least time between two signs of life."""


class Experiment(pl.LightningDataModule):
    """The work of a training worker: a module, and its pairs for training and validation."""

    def __init__(
        self,
        config: TrainConfig,
        sides: Sides,
        start: Checkpoint | None = None,
        *,
        run_id: str | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """Builds the module, with the weights of `start`, and the plans of worker `rank`."""
        super().__init__()
        training, model = config.training, config.model
        batches: dict[str, Any] = {
            "batch_size": training.batch_size,
            "demonstrations": model.context_pairs,
            "rank": rank,
            "world": world,
        }
        self.processes = GPU_LOADER_PROCESSES if torch.cuda.is_available() else 0
        """Processes that build batches; without any the training process does."""
        self.train = StepPlan(
            sides.store,
            sides.train,
            augmentation=Augmentation.of(training, relabelled=model.colour_relabelling),
            seed=training.seed,
            **batches,
        )
        self.val = BatchPlan(sides.store, sides.val, **batches)
        self.module = ArcModule(config, sides, start, epoch_steps=len(self.train), run_id=run_id)
        weights = training.objective.model_dump()
        self.baselines = {} if rank else baseline_metrics(sides.store, sides.val, weights)
        """Metrics of the baselines on the validation pairs; only for rank 0."""

    def train_dataloader(self) -> DataLoader[TrainingStep]:
        """Returns the steps of the trainer's current epoch."""
        # Lightning sets the epoch too late: on resume it creates the iterator first, and a loader
        # with processes asks for its first batches at once.
        if self.trainer is not None:
            progress = cast("Any", self.trainer.fit_loop.epoch_progress)
            self.train.set_epoch(progress.current.processed)
        return planned_loader(self.train, processes=self.processes)

    def val_dataloader(self) -> DataLoader[Batch]:
        return planned_loader(self.val, processes=self.processes)


def build_trainer(
    training: TrainingConfig,
    *,
    callbacks: Sequence[pl.Callback] = (),
    plugins: Sequence[Any] = (),
    **placement: Any,
) -> pl.Trainer:
    """Returns a trainer; `placement` holds Lightning's accelerator and strategy.

    It validates after each epoch and stops early on `training.monitor`. Checkpoints, logs and
    progress are up to `callbacks`.
    """
    return pl.Trainer(
        max_epochs=training.epochs or -1,
        precision=cast("Any", hardware_precision(training.precision).value),
        gradient_clip_val=training.gradient_clip,
        callbacks=[*build_callbacks(training), *callbacks],
        # The plans already give each worker its own part.
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[*plugins, CheckpointFiles()],
        **placement,
    )


class CheckpointFiles(CheckpointIO):
    """Checkpoints as files of a run on any filesystem, written whole or not at all."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        with Place.at(path).writer() as file:
            torch.save(checkpoint | {DIGEST: digest(checkpoint)}, file)

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return load_training(Place.at(path))

    def remove_checkpoint(self, path: Any) -> None:
        Place.at(path).parent.remove()


def train_epochs(
    run: Run, experiment: Experiment, reporter: Reporter, **placement: Any
) -> TrainingMetrics:
    """Trains as one worker, from the run's latest checkpoint to the end; returns the metrics.

    The first worker stores each epoch: its checkpoint, then the record. Then all report it.
    `placement` is Lightning's accelerator, devices, strategy and plugins.
    """
    module = experiment.module
    recorded = run.read_record(TrainingMetrics)
    store = EpochStore(run, experiment, reporter, recorded)
    callbacks = [store, Heartbeat(reporter)]
    trainer = build_trainer(module.training_config, callbacks=callbacks, **placement)
    if trainer.global_rank == 0:
        parameters, pairs = store.parameters, len(experiment.train.pairs)
        reporter.line(
            f"{module.origin.model.label}: {parameters:,} parameters, "
            f"{pairs:,} training pairs in {len(experiment.train):,} steps, "
            f"{len(experiment.val.pairs):,} validation pairs, {trainer.world_size} worker(s), "
            f"{trainer.strategy.root_device.type}, {trainer.precision}",
            {
                "parameters": parameters,
                "pairs": pairs,
                "steps": len(experiment.train),
                "workers": trainer.world_size,
            },
        )
    trainer.fit(
        module,
        datamodule=experiment,
        # A later checkpoint may be of an epoch that was never recorded, and is trained again.
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
        self, run: Run, experiment: Experiment, reporter: Reporter, recorded: TrainingMetrics | None
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
        # The schedule has stepped when the epoch is recorded.
        self._learning_rate = self.experiment.module.learning_rate
        self._clock = [time.perf_counter()]

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._clock.append(time.perf_counter())

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._clock.append(time.perf_counter())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stores the epoch's checkpoint, then its record, and reports it."""
        metrics = self.metrics = self._add_epoch(trainer)
        epoch = metrics.last.epoch
        if trainer.global_rank == 0:
            # Workers of a lost cluster live on for a minute, in which another cluster may resume
            # the run.
            self.run.require_own()
            recorded = self.run.read_record(TrainingMetrics)
            if recorded is not None and recorded.last.epoch > epoch:
                raise RunError(
                    f"run {self.run} has epoch {recorded.last.epoch} in its record, past epoch "
                    f"{epoch} of this process, which stops: another one continues the run"
                )
        # All workers gather the state; the first one writes it.
        trainer.save_checkpoint(str(self.run / checkpoint_path(epoch)))
        if trainer.global_rank == 0:
            self._record.tell(metrics)
            self._remove_all_but(metrics)
        self.reporter.epoch(metrics.last.row(), metrics.best.row()[self.training.monitor])

    def _add_epoch(self, trainer: pl.Trainer) -> TrainingMetrics:
        """Returns the record with the epoch; the last of equally good epochs is the best."""
        before, module = self.metrics, self.experiment.module
        start, trained, validated = self._clock
        steps = trainer.global_step - (before.last.step if before else 0)
        pairs = len(self.experiment.train.pairs) * steps / module.epoch_steps
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
            baselines=self.experiment.baselines,
        )

    def _merit(self, epoch: Epoch) -> float:
        return merit(self.training.monitor, epoch.row()[self.training.monitor])

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
        self._reporter = reporter
        self._last_sign = time.monotonic()
        self._start: tuple[int, float] | None = None
        """The first step, which warms up and does not count, and its time."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
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
