"""One training run put together: data, module and trainer. Where it runs is the caller's."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch.utils.data import DataLoader

from raylab.arc.batching import (
    Batch,
    BatchPlan,
    batch_loader,
    group_indices,
    store_pairs,
)
from raylab.arc.groups import group_tasks
from raylab.arc.module import ArcModule
from raylab.arc.splits import split_tasks
from raylab.arc.tasks import load_tasks
from raylab.config import EncoderDecoderConfig, ModelConfig, Precision, TrainConfig

GPU_LOADER_PROCESSES = 4


@dataclass(frozen=True)
class Experiment:
    """What a trainer fits."""

    module: ArcModule
    train: DataLoader[Batch]
    val: DataLoader[Batch]


def demonstrations_of(model: ModelConfig) -> int:
    """Demonstration pairs the model reads with each query."""
    return 0 if isinstance(model, EncoderDecoderConfig) else model.demonstrations


def build_experiment(config: TrainConfig, *, rank: int = 0, world: int = 1) -> Experiment:
    """Load and split the data and build the module, for worker `rank` of `world`.

    Raises:
        DataError: the tasks or their split cannot be used.
        ConfigError: there are fewer pairs than workers.
    """
    tasks = load_tasks(config.data)
    groups = group_tasks(tasks, config.data.taxonomy)
    split = split_tasks(tasks, groups, config.data)
    store = store_pairs(tasks)
    group_names, group_of_task = group_indices(store, groups)
    on_gpu = torch.cuda.is_available()

    def loader(task_ids: Sequence[str], *, training: bool) -> DataLoader[Batch]:
        plan = BatchPlan(
            store,
            store.pairs_of(task_ids),
            batch_size=config.training.batch_size,
            demonstrations=demonstrations_of(config.model),
            shuffle=training,
            colour_relabelling=training and config.model.colour_relabelling,
            seed=config.training.seed,
            rank=rank,
            world=world,
        )
        processes = GPU_LOADER_PROCESSES if on_gpu else 0
        return batch_loader(plan, processes=processes, pin_memory=on_gpu)

    module = ArcModule(
        config.model,
        config.training,
        task_ids=store.task_ids,
        groups=group_names,
        group_of_task=group_of_task,
    )
    return Experiment(module, loader(split.train, training=True), loader(split.val, training=False))


def hardware_precision(wanted: Precision) -> Precision:
    """`wanted`, with `auto` resolved for this machine: bfloat16 where it is computed natively."""
    if wanted is not Precision.AUTO:
        return wanted
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return Precision.BFLOAT16 if native else Precision.FLOAT16
    native = any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16"))
    return Precision.BFLOAT16 if native else Precision.FLOAT32


class EpochClock(pl.Callback):
    """Times training and validation of each epoch, apart."""

    def __init__(self) -> None:
        """Start with nothing measured."""
        self.samples = 0
        self.train_seconds = self.validation_seconds = 0.0
        self._since = 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples of this worker a second of training, validation apart."""
        return self.samples / self.train_seconds if self.train_seconds else 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self.samples, self._since = 0, time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Count samples."""
        self.samples += len(batch.tasks)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Training of the epoch is over."""
        now = time.perf_counter()
        self.train_seconds, self._since = now - self._since, now

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validation is over."""
        self.validation_seconds = time.perf_counter() - self._since


def build_trainer(
    config: TrainConfig, *, callbacks: Sequence[pl.Callback] = (), **placement: Any
) -> pl.Trainer:
    """A trainer for `config`; `placement` are Lightning's accelerator, strategy and plugins.

    It validates each epoch, stops early on `config.training.monitor`, and leaves checkpoints,
    logs and progress to `callbacks`.
    """
    training = config.training
    stop = (
        [] if training.patience is None else [_early_stopping(training.monitor, training.patience)]
    )
    return pl.Trainer(
        max_epochs=training.epochs,
        precision=hardware_precision(training.precision).value,
        gradient_clip_val=training.gradient_clip,
        callbacks=[*stop, *callbacks],
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **placement,
    )


def _early_stopping(monitor: str, patience: int) -> EarlyStopping:
    # Checked after validation, so that a checkpoint of the epoch's end holds the count.
    return EarlyStopping(monitor, mode="max", patience=patience, check_on_train_epoch_end=False)
