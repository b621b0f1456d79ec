"""The parts of a training run: data, module and trainer. The caller decides where it runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import CheckpointIO
from torch.utils.data import DataLoader

from raylab.arc.checkpoints import OTHER, Checkpoint, Training, checkpoint_path, read_training
from raylab.arc.comparators.rules import count_on, rule_metrics
from raylab.arc.data.batching import Batch, BatchPlan, planned_loader
from raylab.arc.data.sides import Sides
from raylab.arc.data.steps import Augmentation, StepPlan, TrainingStep
from raylab.arc.device import hardware_precision
from raylab.arc.module import ArcModule
from raylab.arc.optimisation import averaging, optimiser_of
from raylab.arc.records import BestEpoch, Epoch, TrainingMetrics
from raylab.arc.stopping import early_stopping
from raylab.config.arc import TrainingConfig
from raylab.config.jobs import TrainConfig
from raylab.errors import CheckpointError, RaylabError
from raylab.files import Place
from raylab.grid_metrics import RuleMetrics, merit
from raylab.runs.run_record import config_hash

GPU_LOADER_PROCESSES = 4


class PlannedData(pl.LightningDataModule):
    """Loaders over a training plan and a validation plan."""

    def __init__(self, train: StepPlan, val: BatchPlan, *, processes: int = 0) -> None:
        """Builds batches in `processes` worker processes; 0 builds them in the training process."""
        super().__init__()
        self.train, self.val, self.processes = train, val, processes

    def train_dataloader(self) -> DataLoader[TrainingStep]:
        """Returns the steps of the trainer's current epoch.

        The epoch is set here because Lightning sets it too late: on resume it creates the iterator
        first, and a loader with processes asks for its first batches at once.
        """
        if self.trainer is not None:
            progress = cast("Any", self.trainer.fit_loop.epoch_progress)
            self.train.set_epoch(progress.current.processed)
        return planned_loader(self.train, processes=self.processes)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Returns the batches of the validation pairs."""
        return planned_loader(self.val, processes=self.processes)


@dataclass(frozen=True)
class Experiment:
    """The module and the data that a trainer fits.

    Attributes:
        module: The model with its optimiser and metrics.
        data: Its training and validation pairs.
        rules: Metrics of the rules that learn nothing on the validation pairs; only for rank 0.
    """

    module: ArcModule
    data: PlannedData
    rules: RuleMetrics


def build_experiment(
    config: TrainConfig,
    sides: Sides,
    start: Checkpoint | None = None,
    *,
    run_id: str | None = None,
    rank: int = 0,
    world: int = 1,
) -> Experiment:
    """Builds the module and its data, the pairs of `sides`, for worker `rank` of `world`.

    Args:
        config: Configuration of the training.
        sides: Its pairs.
        start: The weights that it starts from; None for new ones.
        run_id: Id of its run, which its checkpoints carry.
        rank: Number of the worker, from 0.
        world: Number of workers.

    Raises:
        ConfigError: There are fewer pairs than workers.
        CheckpointError: The weights of `start` do not fit the model.
    """
    store = sides.store
    batches = {
        "batch_size": config.training.batch_size,
        "demonstrations": config.model.context_pairs,
        "rank": rank,
        "world": world,
    }
    steps = StepPlan(
        store,
        sides.train,
        augmentation=Augmentation.of(config.training, relabelled=config.model.colour_relabelling),
        seed=config.training.seed,
        most_workers=max(world, config.cluster.most_workers),
        **batches,
    )
    module = ArcModule(
        config.model,
        config.training,
        task_ids=store.task_ids,
        groups=sides.groups,
        group_of_task=torch.tensor(sides.group_of_task),
        seen=sides.seen,
        epoch_steps=len(steps),
        run_id=run_id,
        config_hash=config_hash(config),
    )
    if start is not None:
        module.start_from(start)
    data = PlannedData(
        steps,
        BatchPlan(store, sides.val, **batches),
        processes=GPU_LOADER_PROCESSES if torch.cuda.is_available() else 0,
    )
    weights = config.training.objective.model_dump()
    rules = {} if rank else rule_metrics(count_on(sides, "val"), store.task_of[sides.val], weights)
    return Experiment(module, data, rules)


class EpochRecorder(pl.Callback):
    """Recorder of the metrics and times of every epoch, saved with each checkpoint.

    Add it before any callback that reads `metrics` or saves a checkpoint.
    """

    def __init__(self, monitor: str, samples: int, rules: RuleMetrics) -> None:
        """Records epochs of `samples` pairs over all workers; `monitor` selects the best.

        `rules` are the metrics of the rules that learn nothing on the validation pairs.
        """
        self.monitor, self.samples, self.rules = monitor, samples, rules
        self.history: list[Epoch] = []
        self.best: BestEpoch | None = None
        self._parameters, self._teacher_forced = 0, True
        self._learning_rate = 0.0
        self._since = self._train_seconds = self._validation_seconds = 0.0

    @property
    def metrics(self) -> TrainingMetrics:
        """The record so far; needs at least one finished epoch."""
        assert self.best is not None
        return TrainingMetrics(
            parameters=self._parameters,
            teacher_forced=self._teacher_forced,
            best=self.best,
            last=self.history[-1],
            history=tuple(self.history),
            rules=self.rules,
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the record of the epochs, which a resumed run continues."""
        return {"metrics": self.metrics.content()} if self.history else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the record of the checkpoint."""
        metrics = TrainingMetrics.of_content(state_dict["metrics"])
        self.history, self.best = list(metrics.history), metrics.best

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts the parameters, and notes how the model is scored."""
        assert isinstance(pl_module, ArcModule)
        self._teacher_forced = pl_module.model.teacher_forced
        self._parameters = sum(parameter.numel() for parameter in pl_module.parameters())

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Starts the clock and notes the learning rate, which is stepped before validation."""
        assert isinstance(pl_module, ArcModule)
        self._learning_rate = pl_module.learning_rate
        self._since = time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops the clock of training."""
        now = time.perf_counter()
        self._train_seconds, self._since = now - self._since, now

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops the clock of validation."""
        self._validation_seconds = time.perf_counter() - self._since

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Adds the epoch; of equally good epochs the latest is the best, as in Ray Train."""
        assert isinstance(pl_module, ArcModule)
        epoch = Epoch.of_row(
            {name: float(value) for name, value in trainer.callback_metrics.items()}
            | {
                "epoch": trainer.current_epoch + 1,
                "step": trainer.global_step,
                "learning_rate": self._learning_rate,
                "samples_per_second": self.samples / self._train_seconds,
                "train_seconds": self._train_seconds,
                "validation_seconds": self._validation_seconds,
            }
        )
        self.history.append(epoch)
        if self.best is None or self._merit(epoch) >= self._merit(self.best):
            self.best = BestEpoch(
                **dict(epoch), groups=pl_module.group_table, checkpoint=checkpoint_path(epoch.epoch)
            )

    def _merit(self, epoch: Epoch) -> float:
        return merit(self.monitor, epoch.row()[self.monitor])


def build_trainer(
    training: TrainingConfig,
    *,
    callbacks: Sequence[pl.Callback] = (),
    plugins: Sequence[Any] = (),
    **placement: Any,
) -> pl.Trainer:
    """Returns a trainer; `placement` holds Lightning's accelerator and strategy.

    It validates after each epoch and stops early on `training.monitor`. Checkpoints, logs
    and progress are up to `callbacks`.
    """
    return pl.Trainer(
        max_epochs=training.epochs,
        precision=cast("Any", hardware_precision(training.precision).value),
        gradient_clip_val=training.gradient_clip,
        callbacks=[*early_stopping(training), *averaging(training), *callbacks],
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[*plugins, CheckpointFiles()],
        **placement,
    )


def fit_on(trainer: pl.Trainer, experiment: Experiment, latest: Place | None) -> None:
    """Trains from the start, or from the checkpoint `latest`, to the end.

    Raises:
        CheckpointError: the checkpoint is not whole, or of another training.
        NonFiniteLossError: a loss is not finite.
    """
    module, data = experiment.module, experiment.data
    if latest is None:
        trainer.fit(module, datamodule=data)
        return
    restored = _Restored()
    cast("Any", trainer).callbacks.append(restored)
    files = cast("CheckpointFiles", trainer.strategy.checkpoint_io)
    files.loaded = {str(latest): read_training(latest, _training_of(trainer, module))}
    try:
        trainer.fit(module, datamodule=data, ckpt_path=str(latest), weights_only=True)
    except RaylabError:
        raise
    except Exception as error:
        if restored.done:
            raise
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise CheckpointError(f"{latest} cannot be gone on with ({reason}): {OTHER}") from error


class CheckpointFiles(CheckpointIO):
    """Checkpoints as files of a run on any filesystem, written whole or not at all."""

    def __init__(self) -> None:
        """Starts without a checkpoint to go on from."""
        self.loaded: dict[str, dict[str, Any]] = {}
        """What a training goes on from, by the URI of its file; it is given away once."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint.

        Raises:
            RunError: The file cannot be written.
        """
        with Place.at(path).replaced() as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Returns the checkpoint that was read and checked before."""
        return self.loaded.pop(str(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Removes the directory of a checkpoint."""
        Place.at(path).parent.remove()


class _Restored(pl.Callback):
    """Callback that notes that all of a checkpoint is restored."""

    done = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.done = True


def _training_of(trainer: pl.Trainer, module: ArcModule) -> Training:
    """Returns what a checkpoint of this training must be of."""
    optimiser = optimiser_of(module.model, module.training_config, fused=False)
    with_state = {
        callback.state_key
        for callback in cast("list[pl.Callback]", cast("Any", trainer).callbacks)
        if type(callback).state_dict is not pl.Callback.state_dict
    }
    return Training(
        module.run_id,
        module.config_hash,
        module.seen,
        with_state,
        [weight.shape for group in optimiser.param_groups for weight in group["params"]],
    )
