"""The parts of a training run: data, module and trainer. The caller places it on a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import CheckpointIO
from torch.utils.data import DataLoader

from raylab.arc.checkpoints import DIGEST, Checkpoint, digest, load_training
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import TrainingConfig
from raylab.arc.data.batching import Batch, BatchPlan, planned_loader
from raylab.arc.data.sides import Sides
from raylab.arc.data.steps import Augmentation, StepPlan, TrainingStep
from raylab.arc.device import hardware_precision
from raylab.arc.grid_metrics import RuleMetrics
from raylab.arc.module import ArcModule
from raylab.arc.optimisation import build_callbacks
from raylab.arc.rules import rule_metrics
from raylab.core.files import Place

GPU_LOADER_PROCESSES = 4


class PlannedData(pl.LightningDataModule):
    """Loaders of the pairs that a worker trains and validates on."""

    def __init__(self, config: TrainConfig, sides: Sides, *, rank: int, world: int) -> None:
        """Plans the share of worker `rank` of `world`."""
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
    """Builds the module, with the weights of `start`, and the data of worker `rank` of `world`."""
    data = PlannedData(config, sides, rank=rank, world=world)
    module = ArcModule(config, sides, start, epoch_steps=len(data.train), run_id=run_id)
    weights = config.training.objective.model_dump()
    rules = {} if rank else rule_metrics(sides.store, sides.val, weights)
    return Experiment(module, data, rules)


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
        max_epochs=training.epochs or -1,
        precision=cast("Any", hardware_precision(training.precision).value),
        gradient_clip_val=training.gradient_clip,
        callbacks=[*build_callbacks(training), *callbacks],
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
        """Writes a checkpoint."""
        with Place.at(path).writer() as file:
            torch.save(checkpoint | {DIGEST: digest(checkpoint)}, file)

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Reads a checkpoint; see `load_training`."""
        return load_training(Place.at(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Removes the directory of a checkpoint."""
        Place.at(path).parent.remove()
