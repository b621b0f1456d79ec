"""Optimisers, the course of the learning rate, early stopping, and averages of the weights."""

from collections.abc import Callable
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, WeightAveraging
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, LRScheduler

from raylab.arc.data.tasks import COLOURS, MAX_SIDE
from raylab.arc.time_limit import Course, TimeLimit
from raylab.config.arc import TrainingConfig
from raylab.errors import ConfigError
from raylab.grid_metrics import mode_of

HEADS = (1, COLOURS, MAX_SIDE, 2 * MAX_SIDE)
"""Outputs of linear layers that are logits: of a weight, a colour, a side or both sides."""


def build_optimiser(model: nn.Module, training: TrainingConfig, *, fused: bool) -> Optimizer:
    """Returns the optimiser of `model`'s weights; `fused` runs Adam as one kernel.

    Raises:
        ConfigError: There is nothing for Muon in the model.
    """
    adam: dict[str, Any] = {
        "lr": training.lr,
        "betas": training.betas,
        "weight_decay": training.weight_decay,
        "fused": fused,
    }
    if training.optimiser == "adam":
        return Adam(model.parameters(), **adam)
    if training.optimiser == "adamw":
        return AdamW(model.parameters(), **adam)
    matrices = hidden_matrices(model)
    if not matrices:
        raise ConfigError(
            "training.optimiser=muon is for hidden torch.nn.Linear layers, and this model has "
            "none: set training.optimiser=adamw"
        )
    chosen = set(map(id, matrices))
    return MuonAndAdamW(
        Muon(
            matrices,
            lr=training.lr,
            momentum=training.betas[0],
            weight_decay=training.weight_decay,
            # So that learning rate and weight decay are those of AdamW (arXiv 2502.16982).
            adjust_lr_fn="match_rms_adamw",
        ),
        AdamW([weight for weight in model.parameters() if id(weight) not in chosen], **adam),
    )


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Returns the matrices of linear layers but those that write logits, as Muon is meant for.

    Embeddings, tables, biases and norms are left to AdamW.
    """
    layers = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    weights = [layer.weight for layer in layers if layer.out_features not in HEADS]
    return list(dict.fromkeys(cast("list[nn.Parameter]", weights)))


class MuonAndAdamW(Optimizer):
    """Two optimisers as one, of a group of weights each, with one state.

    Lightning's automatic optimisation, checkpoints and gradient scaling know one optimiser.
    """

    def __init__(self, muon: Muon, adamw: AdamW) -> None:
        """Joins the two, which must not be used alone afterwards."""
        self.parts = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes over a state, as `load_state_dict` does."""
        super().__setstate__(state)
        self._share()

    def step(self, closure: Any = None) -> Any:
        """Updates all weights; returns what `closure` does, which computes the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def _share(self) -> None:
        for part, group in zip(self.parts, self.param_groups, strict=True):
            part.state, part.param_groups = self.state, [group]


def build_schedule(
    optimiser: Optimizer, training: TrainingConfig, course: Callable[[], Course]
) -> dict[str, Any]:
    """Returns the schedule as Lightning takes it; `course` returns the present one."""
    schedule: LRScheduler
    if training.schedule == "cosine_restarts":
        schedule = CosineAnnealingWarmRestarts(
            optimiser, T_0=training.restart_epochs, eta_min=training.lr_min
        )
        return {"scheduler": schedule, "interval": "epoch"}

    def factor(step: int) -> float:
        return wsd_factor(course().place_at(step), course().steps, training)

    schedule = LambdaLR(optimiser, factor)
    return {"scheduler": schedule, "interval": "step"}


def wsd_factor(step: float, steps: int, training: TrainingConfig) -> float:
    """Returns the learning rate of `step`, from 0, of `steps` as a share of `training.lr`.

    Warm-up, stable phase and decay (Hu et al. 2024, arXiv 2404.06395), both slopes linear. The
    first step has a rate above 0, and the step after the last would have `lr_min`.
    """
    warmup, decay = (round(share * steps) for share in (training.warmup, training.decay))
    if step < warmup:
        return min(1.0, (step + 1) / warmup)
    left = (steps - step) / decay if decay else 1.0
    floor = training.lr_min / training.lr
    return floor + (1 - floor) * min(1.0, max(0.0, left))


class AveragedWeights(WeightAveraging):
    """Exponential moving average of the weights, which is validated and saved as the model's.

    A checkpoint holds the weights that are trained as well, and a resumed run goes on from them.
    The decay of the n-th average is min(`decay`, (1 + n) / (10 + n)), as of TensorFlow's
    `ExponentialMovingAverage`: a short run is not an average of its random start.
    """

    def __init__(self, decay: float) -> None:
        """Averages with `decay` per step, between 0 and 1."""

        @torch.no_grad()
        def average(averages: list[Tensor], weights: list[Tensor], count: Tensor) -> None:
            new = (1 - ((1 + count) / (10 + count)).clamp(max=decay)).to(averages[0].dtype)
            for mean, weight in zip(averages, weights, strict=True):
                mean.lerp_(weight, new)

        super().__init__(use_buffers=False, multi_avg_fn=average)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Copies the weights, on the device that trains: Lightning moves the module later."""
        pl_module.to(trainer.strategy.root_device)
        super().setup(trainer, pl_module, stage)


class PatienceAtRestarts(EarlyStopping):
    """Early stopping after epochs without improvement, judged where a cosine of restarts ends.

    Within a cosine the learning rate is high first and low last: validations are worse after a
    restart and best at the end. Every epoch counts and may be the best; but a training that has
    used up its patience goes on to the end of its cosine, and an improvement on the way saves it.
    A schedule without restarts has its low rates at the end of the run, and is never stopped.
    """

    def __init__(self, monitor: str, patience: int, cycle: int) -> None:
        """Waits for `patience` validations without improvement, judged every `cycle` epochs."""
        super().__init__(
            monitor,
            mode=mode_of(monitor),
            patience=patience,
            # After validation, so that the checkpoint at the end of an epoch holds the count.
            check_on_train_epoch_end=False,
        )
        self.cycle = cycle

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops a training that was killed after the epoch that used up its patience."""
        if self.wait_count >= self.patience and not trainer.current_epoch % self.cycle:
            trainer.should_stop = True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts the validation, and stops only at the end of a cycle."""
        stopped = trainer.should_stop
        super().on_validation_end(trainer, pl_module)
        if (trainer.current_epoch + 1) % self.cycle:
            trainer.should_stop = stopped


def build_callbacks(training: TrainingConfig) -> list[pl.Callback]:
    """Returns the callbacks that end a training and average its weights, if it has any."""
    callbacks: list[pl.Callback] = []
    if training.max_minutes is not None:
        callbacks.append(TimeLimit(training.max_minutes))
    cycle = training.judged_every
    if training.patience is not None and cycle is not None:
        callbacks.append(PatienceAtRestarts(training.monitor, training.patience, cycle))
    if training.ema is not None:
        callbacks.append(AveragedWeights(training.ema))
    return callbacks
