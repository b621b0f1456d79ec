"""The one LightningModule of all models."""

import math
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raylab.arc.checkpoints import Checkpoint, ModelOrigin, checkpoint_path, load_weights, misfit
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import Precision
from raylab.arc.data.batching import (
    Batch,
    Draw,
    build_batch,
    demonstration_table,
    swap_demonstrations,
)
from raylab.arc.data.split import Sides
from raylab.arc.data.steps import TrainingStep
from raylab.arc.grid_metrics import DEMONSTRATION_GAIN, LOSS
from raylab.arc.loss import MeanLoss, step_loss
from raylab.arc.metrics import GridMetrics
from raylab.arc.models import build_model
from raylab.arc.optimisation import build_optimiser, build_schedule
from raylab.arc.records import GroupMetrics
from raylab.arc.scoring.evaluation import count_batch
from raylab.arc.time_limit import Course
from raylab.core.errors import CheckpointError, NonFiniteLossError

LOSS_CHECK_STEPS = 32
UNPLANNED_EPOCHS = 1_000
"""Epochs that a training without a number of them expects before its speed is known."""


class ArcModule(pl.LightningModule):
    """Trainer of a grid model that reports the epoch-exact grid metrics.

    It logs:

    - the names of `GridMetrics` with `val_`. `val_solve_rate`, `val_shape_accuracy` and
      `val_shapes_by_rule` are free-running. The others are teacher-forced, as published, for models
      that write cell by cell, and free-running for all other models;
    - `val_loss`, as `MeanLoss`;
    - `val_demonstration_gain` if the model reads demonstrations and there are several tasks: the
      loss with the demonstrations of another task, of like size, less the loss with a query's own.
    """

    def __init__(
        self,
        config: TrainConfig,
        sides: Sides,
        start: Checkpoint | None = None,
        *,
        epoch_steps: int,
        run_id: str | None = None,
    ) -> None:
        """Builds the model from `training.seed`, or with the weights of `start`.

        `Batch.tasks` points at the tasks of `sides`. Checkpoints store the `run_id`.
        """
        super().__init__()
        self.training_config = training = config.training
        torch.manual_seed(training.seed)
        self.task_ids, self.epoch_steps = sides.store.task_ids, epoch_steps
        self.course = Course((training.epochs or UNPLANNED_EPOCHS) * epoch_steps)
        self.model = build_model(config.model)
        seen = sides.seen
        if start is not None:
            load_weights(self.model, config.model, start)
            seen |= start.seen
        self.origin = ModelOrigin(schema_version=1, model=config.model, seen=seen, run_id=run_id)
        weights, group_of_task = training.objective.model_dump(), torch.tensor(sides.group_of_task)
        self.metrics = GridMetrics(sides.groups, group_of_task, weights)
        self.losses = MeanLoss(training.shape_loss_weight)
        self.swapped = swap_demonstrations(sides.store, sides.val)
        several = len(sides.tasks_of(sides.val)) > 1
        self.swapped_pairs = config.model.context_pairs if several else 0
        """Demonstrations of other tasks that a validation shows with each query."""
        self.misled_losses = MeanLoss(training.shape_loss_weight)
        """The losses with the demonstrations of other tasks."""
        self.group_table: dict[str, GroupMetrics] = {}
        """Metrics by group of the last validation."""
        self._unchecked: list[tuple[Tensor, int, float, Tensor]] = []
        """The losses since the last check, each with its step, learning rate and tasks."""

    @property
    def learning_rate(self) -> float:
        return float(self.trainer.optimizers[0].param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        config = self.training_config
        # Fused Adam unscales float16 gradients itself, but only after clipping, which needs them
        # unscaled.
        fused = self.trainer.precision != Precision.FLOAT16
        optimiser = build_optimiser(self.model, config, fused=fused)
        schedule = build_schedule(optimiser, config, lambda: self.course)
        return {"optimizer": optimiser, "lr_scheduler": schedule}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        # Lightning's own clipping refuses a fused optimiser under any mixed precision. Only float16
        # scales gradients, and they are unscaled by now.
        nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def on_train_epoch_start(self) -> None:
        # Dropout begins each epoch anew, so that a resumed run repeats an unbroken one.
        seed = (self.training_config.seed, self.current_epoch, self.global_rank)
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))

    def training_step(self, step: TrainingStep, batch_idx: int) -> Tensor:
        """Returns `step_loss`; its mean over an epoch, `train_loss`, is exact per cell and grid."""
        loss = step_loss(self.model, step, self.training_config.shape_loss_weight)
        tasks = torch.cat([batch.tasks for batch in step.batches])
        self._unchecked.append((loss.detach(), self.global_step, self.learning_rate, tasks))
        # A check at every step would stall a GPU.
        if len(self._unchecked) == LOSS_CHECK_STEPS:
            self._check_losses()
        self.log("train_loss", loss, on_epoch=True, on_step=False, batch_size=1, sync_dist=True)
        return loss

    def on_validation_start(self) -> None:
        # Weights that a non-finite loss has spoilt are neither validated nor saved.
        self._check_losses()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.metrics.update(count_batch(self.model, batch, self.losses), batch.tasks)
        if self.swapped_pairs:
            pairs = batch.pairs.cpu().numpy()
            others = demonstration_table(self.swapped, pairs, self.swapped_pairs, None)
            batch = build_batch(self.swapped, Draw(pairs, others)).to(self.device)
            logits = self.model(batch)
            self.misled_losses.update(logits, batch.target.cells, batch.target.sizes)

    def on_validation_epoch_end(self) -> None:
        values = self.metrics.compute()
        values[LOSS] = self.losses.compute()
        if not values[LOSS].isfinite():
            raise NonFiniteLossError(
                f"the validation loss is {float(values[LOSS])} after epoch {self.current_epoch + 1}"
                ": lower training.lr or training.gradient_clip, or set "
                "training.precision=32-true; the epochs before it and their checkpoints stay"
            )
        if self.swapped_pairs:
            values[DEMONSTRATION_GAIN] = self.misled_losses.compute() - values[LOSS]
        self.group_table = self.metrics.by_group()
        for measured in (self.metrics, self.losses, self.misled_losses):
            measured.reset()
        self.log_dict({f"val_{name}": value for name, value in values.items()}, sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["raylab"] = self.origin.model_dump(mode="json")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another training or epoch, before anything is restored."""
        saved, own = ModelOrigin.model_validate(checkpoint["raylab"]), self.origin
        path, file = str(self.trainer.ckpt_path), checkpoint_path(checkpoint["epoch"] + 1)
        same = (saved.run_id, saved.seen.trained_on) == (own.run_id, own.seen.trained_on)
        if not same or not path.endswith(file):
            raise CheckpointError(
                f"{path} is of another run, of other tasks, or of another epoch: put back the "
                "checkpoint of this run and the data that it began with, or start another run with "
                "init_from= that file"
            )
        if reason := misfit(self.state_dict(), checkpoint["state_dict"]):
            raise CheckpointError(
                f"{path} does not fit {own.model.label}, which has changed since: {reason}: put "
                "the code back, or start another run"
            )

    def _check_losses(self) -> None:
        """Refuses a non-finite loss since the last check."""
        steps, self._unchecked = self._unchecked, []
        losses = torch.stack([loss for loss, *_ in steps]).tolist() if steps else []
        messages: list[str | None] = [None]
        for loss, (_, step, rate, tasks) in zip(losses, steps, strict=True):
            if not math.isfinite(loss):
                ids = sorted({self.task_ids[task] for task in tasks.tolist()})
                messages = [
                    f"loss is {loss} at step {step} (epoch {self.current_epoch}) with learning "
                    f"rate {rate:.3g}, on tasks {', '.join(ids)}: lower training.lr or "
                    "training.gradient_clip, set training.precision=32-true, or look at these tasks"
                ]
                break
        if dist.is_available() and dist.is_initialized():
            own = messages[0]
            messages = [None] * dist.get_world_size()
            dist.all_gather_object(messages, own)
        # All workers raise it, so that none waits for the others.
        for message in filter(None, messages):
            raise NonFiniteLossError(message)
