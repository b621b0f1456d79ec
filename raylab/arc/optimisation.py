"""Optimisers, learning rate schedules, early stopping, and weight averaging."""

import math
from collections.abc import Callable
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, WeightAveraging
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR

from raylab.arc.config.sections import TrainingConfig
from raylab.arc.data.tasks import COLOURS, MAX_SIDE
from raylab.arc.grid_metrics import mode_of
from raylab.arc.time_limit import Course, TimeLimit
from raylab.core.errors import ConfigError

HEADS = (1, COLOURS, MAX_SIDE, 2 * MAX_SIDE)
"""Widths of linear layers that write logits: of a weight, a colour, a side or both sides."""
BETAS = (0.95, 0.999)
"""Decay rates of Adam's moment estimates; the first is also the momentum of Muon."""
LR_MIN = 1.68e-6
"""Learning rate at the end of each cosine, and of `wsd`."""


def build_optimiser(model: nn.Module, training: TrainingConfig, *, fused: bool) -> Optimizer:
    """Returns the optimiser of `model`'s weights; `fused` runs Adam as one kernel."""
    adam: dict[str, Any] = {
        "lr": training.lr,
        "betas": BETAS,
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
        MuonInFloat(
            matrices,
            lr=training.lr,
            momentum=BETAS[0],
            weight_decay=training.weight_decay,
            # So that learning rate and weight decay are those of AdamW (arXiv 2502.16982).
            adjust_lr_fn="match_rms_adamw",
        ),
        AdamW([weight for weight in model.parameters() if id(weight) not in chosen], **adam),
    )


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Returns the weights that Muon is meant for: matrices of linear layers that write no logits.

    AdamW updates all other weights: embeddings, tables, biases, norms and output layers.
    """
    layers = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    weights = [layer.weight for layer in layers if layer.out_features not in HEADS]
    return list(dict.fromkeys(cast("list[nn.Parameter]", weights)))


class MuonInFloat(Muon):
    """Muon that computes in float32 on a CPU."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if any(weight.is_cuda for weight in weights):
            return super().step(closure)
        # torch orthogonalises updates in bfloat16, which takes a CPU without instructions for it
        # twelve times as long.
        for weight in weights:
            momentum = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
            momentum.lerp_(weight.grad, 1 - group["momentum"])
            update = orthogonalise(weight.grad.lerp(momentum, group["momentum"]))
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.sub_(update, alpha=group["lr"] * 0.2 * math.sqrt(max(weight.shape)))
        return None


def orthogonalise(matrix: Tensor) -> Tensor:
    """Returns (M, N) `matrix` with singular values near 1, by five Newton-Schulz iterations.

    The coefficients are those of Jordan 2024, https://kellerjordan.github.io/posts/muon/.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315) @ x
    return x if wide is matrix else x.T


class MuonAndAdamW(Optimizer):
    """Two optimisers, each of its own group of weights, as one optimiser with one state."""

    # Lightning's automatic optimisation, checkpoints and gradient scaling support one optimiser.

    def __init__(self, muon: MuonInFloat, adamw: AdamW) -> None:
        """Joins the two, which must not be used alone afterwards."""
        self.optimisers = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a state; `load_state_dict` calls this."""
        super().__setstate__(state)
        # The state and its groups are new objects; the two optimisers still hold the old ones.
        self._share()

    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimiser in self.optimisers:
            optimiser.step()
        return loss

    def _share(self) -> None:
        for optimiser, group in zip(self.optimisers, self.param_groups, strict=True):
            optimiser.state, optimiser.param_groups = self.state, [group]


def build_schedule(
    optimiser: Optimizer, training: TrainingConfig, course: Callable[[], Course]
) -> dict[str, Any]:
    """Returns the schedule in Lightning's form; `course` returns the current course."""
    if training.schedule == "cosine_restarts":
        cosines = CosineAnnealingWarmRestarts(
            optimiser, T_0=training.restart_epochs, eta_min=min(LR_MIN, training.lr)
        )
        return {"scheduler": cosines, "interval": "epoch"}

    def factor(step: int) -> float:
        return wsd_factor(course().place_at(step), course().steps, training)

    return {"scheduler": LambdaLR(optimiser, factor), "interval": "step"}


def wsd_factor(step: float, steps: int, training: TrainingConfig) -> float:
    """Returns the learning rate of `step`, 0..steps-1, as a share of `training.lr`.

    The schedule has a linear warm-up, a stable phase and a linear decay (Hu et al. 2024, arXiv
    2404.06395). The first step has a rate above 0; the step after the last would have `LR_MIN`.
    """
    warmup, decay = (round(share * steps) for share in (training.warmup, training.decay))
    if step < warmup:
        return min(1.0, (step + 1) / warmup)
    left = (steps - step) / decay if decay else 1.0
    floor = min(LR_MIN / training.lr, 1.0)
    return floor + (1 - floor) * min(1.0, max(0.0, left))


class AveragedWeights(WeightAveraging):
    """Exponential moving average of the weights, which is validated and saved as the model.

    A checkpoint also holds the trained weights, with which a resumed run continues. The decay of
    the n-th average is min(`decay`, (1 + n) / (10 + n)), as in TensorFlow's
    `ExponentialMovingAverage`.
    """

    def __init__(self, decay: float) -> None:
        """Averages with `decay` per step, between 0 and 1."""

        @torch.no_grad()
        def average(averages: list[Tensor], weights: list[Tensor], count: Tensor) -> None:
            # Otherwise the random start would dominate a short run.
            new = (1 - ((1 + count) / (10 + count)).clamp(max=decay)).to(averages[0].dtype)
            for mean, weight in zip(averages, weights, strict=True):
                mean.lerp_(weight, new)

        super().__init__(use_buffers=False, multi_avg_fn=average)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # Lightning moves the module to its device only later, and the copy would stay behind.
        pl_module.to(trainer.strategy.root_device)
        super().setup(trainer, pl_module, stage)


class PatienceAtRestarts(EarlyStopping):
    """Early stopping after epochs without improvement, only where a cosine ends.

    Every epoch counts and may be the best, but a training that has used up its patience continues
    to the end of its cosine, and an improvement on the way resets the count.
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
        # The rate falls within a cosine: validations are worst after a restart, best at the end.
        if (trainer.current_epoch + 1) % self.cycle:
            trainer.should_stop = stopped


def build_callbacks(training: TrainingConfig) -> list[pl.Callback]:
    """Returns the callbacks that end a training and average its weights, as configured."""
    callbacks: list[pl.Callback] = []
    if training.max_minutes is not None:
        callbacks.append(TimeLimit(training.max_minutes))
    cycle = training.judged_every
    if training.patience is not None and cycle is not None:
        callbacks.append(PatienceAtRestarts(training.monitor, training.patience, cycle))
    if training.ema is not None:
        callbacks.append(AveragedWeights(training.ema))
    return callbacks
