"""Optimisers, schedules, averages and early stopping, against hand-made values and plain loops."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pydantic import ValidationError
from pytorch_lightning.callbacks import LambdaCallback
from torch import Tensor, nn
from torch.optim import AdamW, Muon
from torch.utils.data import DataLoader

from raylab.arc.config.jobs import TuneConfig
from raylab.arc.config.sections import TrainingConfig
from raylab.arc.optimisation import (
    MuonAndAdamW,
    build_optimiser,
    hidden_matrices,
    orthogonalise,
    wsd_factor,
)
from raylab.arc.training.loop import build_trainer
from raylab.core.errors import ConfigError
from tests.arc.conftest import SMALL_MODELS, small_model

# The learning rate


def test_a_warm_up_a_stable_phase_and_a_decay() -> None:
    # Ten times the rate at the end.
    training = TrainingConfig(schedule="wsd", warmup=0.05, decay=0.2, lr=1.68e-5)
    rates = {step: wsd_factor(step, 100, training) for step in (0, 3, 4, 50, 80, 90, 99)}
    # Five steps rise by 0.2 each, twenty fall from 1 to 0.1.
    assert rates == pytest.approx({0: 0.2, 3: 0.8, 4: 1.0, 50: 1.0, 80: 1.0, 90: 0.55, 99: 0.145})
    # Below that rate nothing falls, or rises.
    slow = TrainingConfig(schedule="wsd", warmup=0, decay=0.9, lr=1e-9)
    assert {wsd_factor(step, 100, slow) for step in (0, 50, 99)} == {1.0}
    constant = TrainingConfig(schedule="wsd", warmup=0, decay=0)
    assert {wsd_factor(step, 100, constant) for step in range(100)} == {1.0}


def test_shares_beyond_the_run_and_a_training_without_an_end_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"warmup=0\.5 and decay=0\.6 .* exceed 1"):
        TrainingConfig(warmup=0.5, decay=0.6)
    with pytest.raises(ValidationError, match="set max_minutes"):
        TrainingConfig(epochs=None)


def test_trials_of_different_schedules_are_not_compared_at_equal_epochs() -> None:
    def sweep(*schedules: str, **changes: Any) -> TuneConfig:
        space = {"model": {"champion": {}}, "training": {"schedule": {"choice": [*schedules]}}}
        return TuneConfig.model_validate({"space": space, **changes})

    with pytest.raises(ValidationError, match="set stop_early=false"):
        sweep("wsd", "cosine_restarts")
    sweep("wsd", "cosine_restarts", stop_early=False)
    sweep("wsd")


# Optimisers


@pytest.mark.parametrize("architecture", SMALL_MODELS)
def test_muon_takes_the_hidden_matrices_alone(architecture: str) -> None:
    model = small_model(SMALL_MODELS[architecture])
    chosen = {id(weight) for weight in hidden_matrices(model)}
    names = {name for name, weight in model.named_parameters() if id(weight) in chosen}
    assert all(name.endswith(".weight") for name in names)
    assert any("qkv" in name for name in names) and any("wide" in name for name in names)
    assert not any("colours" in name or "size" in name or "output" in name for name in names)
    optimiser = build_optimiser(model, TrainingConfig(optimiser="muon"), fused=True)
    held = [weight for group in optimiser.param_groups for weight in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def test_a_model_without_hidden_matrices_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.optimiser=adamw"):
        build_optimiser(nn.Embedding(3, 4), TrainingConfig(optimiser="muon"), fused=True)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 10))


def update(model: nn.Module, step: int, *optimisers: torch.optim.Optimizer) -> None:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    model.zero_grad()
    model(inputs).square().mean().backward()
    for optimiser in optimisers:
        optimiser.step()


def test_two_optimisers_in_one_do_what_they_do_apart_even_after_a_checkpoint() -> None:
    training = TrainingConfig(optimiser="muon", weight_decay=0.1, lr=0.01)
    plain = network()
    matrix, *others = (plain[0].weight, plain[0].bias, *plain[2].parameters())
    apart = (
        Muon([matrix], lr=0.01, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=0.01, betas=(0.95, 0.999), weight_decay=0.1),
    )
    joined = network()
    optimiser = build_optimiser(joined, training, fused=False)
    assert isinstance(optimiser, MuonAndAdamW)
    for step in range(6):
        if step == 3:
            # As a resumed run does.
            saved, weights = optimiser.state_dict(), joined.state_dict()
            joined = network()
            joined.load_state_dict(weights)
            optimiser = build_optimiser(joined, training, fused=False)
            optimiser.load_state_dict(saved)
        for group in (*optimiser.param_groups, *(one.param_groups[0] for one in apart)):
            group["lr"] = 0.01 / (step + 1)
        update(plain, step, *apart)
        update(joined, step, optimiser)
    start = network()
    for ours, theirs, first in zip(
        joined.parameters(), plain.parameters(), start.parameters(), strict=True
    ):
        # torch computes Muon's updates in bfloat16, with 8 bits of precision.
        assert (ours - theirs).norm() < 0.02 * (theirs - first).norm()


@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_has_like_singular_values(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    values = u.T @ orthogonalise(matrix) @ v.T
    assert values.diagonal().min() > 0.6 and values.diagonal().max() < 1.3
    assert (values - values.diagonal().diag()).abs().max() < 1e-4


# Averaged weights


class Line(pl.LightningModule):
    """One weight, trained towards 1, that notes what it is after steps and in validation.

    It reports the values of what is monitored that it is handed, one a validation.
    """

    def __init__(self, monitor: str = "val_loss", values: Sequence[float] = ()) -> None:
        super().__init__()
        self.monitor, self.values = monitor, iter(values)
        self.weight = nn.Parameter(torch.zeros(1))
        self.trained: list[float] = []
        self.validated: list[float] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return (self.weight - 1).square().sum()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trained.append(self.weight.item())

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.validated.append(self.weight.item())
        self.log(self.monitor, next(self.values, 0.0), batch_size=1)


def train(line: Line, *callbacks: pl.Callback, **training: Any) -> pl.Trainer:
    """Trains in epochs of five steps, each with a validation."""
    settings = TrainingConfig.model_validate({"gradient_clip": 99.0, "patience": None} | training)
    trainer = build_trainer(settings, callbacks=callbacks, accelerator="cpu")
    trainer.fit(line, DataLoader(range(5)), DataLoader(range(1)))
    return trainer


def test_the_average_is_validated_and_saved_and_the_weights_are_trained_on(tmp_path: Path) -> None:
    line = Line()
    path = tmp_path / "c"
    save = LambdaCallback(on_train_epoch_end=lambda trainer, _: trainer.save_checkpoint(path))
    train(line, save, epochs=3, ema=0.6)
    # The gap to 1 shrinks by 1 - 2 * 0.2 at each step.
    weights = [1 - 0.6**step for step in range(1, 16)]
    assert line.trained == pytest.approx(weights)
    means = [weights[0]]
    for count, weight in enumerate(weights[1:], start=1):
        decay = min(0.6, (1 + count) / (10 + count))
        means.append(decay * means[-1] + (1 - decay) * weight)
    assert line.validated == pytest.approx([means[4], means[9], means[14]])
    saved = torch.load(path, weights_only=True)
    assert saved["state_dict"]["weight"].item() == pytest.approx(means[-1])
    assert saved["current_model_state"]["weight"].item() == pytest.approx(weights[-1])


# Early stopping


@pytest.mark.parametrize(
    ("restart_epochs", "patience", "accuracies", "epochs"),
    [
        # The best is the second, and two that are no better follow it.
        (None, 2, [0.1, 0.3, 0.2, 0.3, 0.9, 0.9], 4),
        # An improvement starts the count anew.
        (None, 2, [0.2, 0.1, 0.3, 0.2, 0.4, 0.1], 6),
        (None, None, [0.5, 0.4, 0.3, 0.2, 0.1, 0.0], 6),
        # Cosines end after epochs 3 and 6. After 3, one epoch was no better than the second; after
        # 6 four were no better.
        (3, 2, [0.1, 0.3, 0.2, 0.2, 0.2, 0.3, 0.9, 0.9], 6),
        # After 4 the patience is used up, and the end of the cosine is better than all before.
        (3, 2, [0.1, 0.3, 0.2, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3, 0.9], 9),
        # One cosine over the whole training ends after it.
        (8, 1, [0.3, 0.2, 0.2, 0.2, 0.2], 5),
    ],
)
def test_training_stops_after_validations_without_improvement_where_a_cosine_ends(
    restart_epochs: int | None, patience: int | None, accuracies: list[float], epochs: int
) -> None:
    settings = {"restart_epochs": restart_epochs or 6, "judge_at_restarts": bool(restart_epochs)}
    # Of losses, less is better.
    losses = [1 - accuracy for accuracy in accuracies]
    for monitor, values in (("val_grid_accuracy", accuracies), ("val_loss", losses)):
        given = settings | {"epochs": len(values), "monitor": monitor, "patience": patience}
        assert train(Line(monitor, values), **given).current_epoch == epochs
