"""Test-time training: a copy of a model learns from the demonstrations of one task.

Each demonstration in turn is left out of the context and becomes a query, in several views of the
task. Either all weights learn, or adapters (Hu et al. 2021, *LoRA*): the product of two thin
matrices, of which the first starts at 0, is added to the weight of each linear layer. PyTorch's
parametrizations also apply where code reads a layer's weight; layers wrapped as in `peft` would
not.
"""

import hashlib
import io
import math
import time
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from raylab.arc.checkpoints import load_tensors
from raylab.arc.data.batching import Draw
from raylab.arc.data.steps import StepPlan, TrainingStep
from raylab.arc.data.store import store_pairs
from raylab.arc.data.tasks import Task
from raylab.arc.loss import step_loss
from raylab.arc.models.base import GridModel
from raylab.arc.prize.votes import draw_views
from raylab.config.arc import TaskTrainingConfig, TrainingConfig, VotesConfig
from raylab.errors import CheckpointError, ConfigError, NonFiniteLossError
from raylab.files import Place

SPECIALIST_BYTES = 1 << 30
DOWN = ".parametrizations.weight.0.down"
"""Ending of the names of adapters' second matrices."""


class Specialist(NamedTuple):
    """The weights that training on a task changed, and the number of its steps."""

    file: bytes
    """All weights, or the adapters, as a file that torch loads with `weights_only`."""
    steps: int
    """Optimiser steps."""


class LowRank(nn.Module):
    """The adapter of a weight."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        """Adapts (N, M) weights by a product of rank `rank`, at most N and M."""
        super().__init__()
        rows, columns = weight.shape
        rank = min(rank, rows, columns)
        self.up = nn.Parameter(weight.new_zeros(rows, rank))
        self.down = nn.Parameter(torch.randn_like(weight[:rank]) / math.sqrt(columns))

    def forward(self, weight: Tensor) -> Tensor:
        """Returns the adapted weight."""
        return weight + self.up @ self.down


def train_on_task(
    model: GridModel,
    task: Task,
    training: TaskTrainingConfig,
    votes: VotesConfig,
    *,
    demonstrations: int,
    device: torch.device,
) -> Specialist:
    """Trains a model on the demonstrations of a task; its questions are not read.

    Afterwards the model is in evaluation mode, with the adapters folded into its weights. Random
    draws depend only on the task and `votes.seed`.

    Args:
        model: a copy that may change, on the device.
        task: a task with a demonstration or more.
        training: steps or seconds, learning rate, rank and views.
        votes: how views are drawn.
        demonstrations: demonstrations in the context of each query.
        device: the device to train on.

    Raises:
        ConfigError: `rank` is set, and the model has no linear layer.
        NonFiniteLossError: the loss became NaN or infinite.
    """
    seed = int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:4]) ^ votes.seed
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if training.rank:
            _adapt(model, training.rank)
        drawn = _steps(task, training, votes, demonstrations)
        steps = _fit(model, drawn, training, task.id, device)
    frozen = {
        name
        for name, weight in model.named_parameters(remove_duplicate=False)
        if not weight.requires_grad
    }
    learnt = {
        name: weight.detach().cpu().contiguous()
        for name, weight in model.state_dict().items()
        if name not in frozen
    }
    _fold(model)
    buffer = io.BytesIO()
    torch.save(learnt, buffer)
    return Specialist(buffer.getvalue(), steps)


def become_specialist(model: GridModel, file: Place) -> None:
    """Gives a model the weights of a specialist.

    Raises:
        CheckpointError: The file is broken, or of another model.
    """
    learnt = load_tensors(file, SPECIALIST_BYTES)
    ranks = [len(weight) for name, weight in learnt.items() if name.endswith(DOWN)]
    if ranks:
        _adapt(model, max(ranks))
    try:
        unexpected = model.load_state_dict(learnt, strict=not ranks).unexpected_keys
        if unexpected:
            raise RuntimeError(f"no {unexpected[0]} in the model")
    except RuntimeError as error:
        raise CheckpointError(
            f"{file} is a specialist of another model than the one that answers: name the run "
            "that kept those of this model, or leave scoring.test_time_training.specialists out"
        ) from error
    _fold(model)


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def _adapt(model: nn.Module, rank: int) -> None:
    """Freezes a model and gives its linear layers adapters."""
    layers = _linear_layers(model)
    if not layers:
        raise ConfigError(
            "scoring.test_time_training.rank needs linear layers, and the model has none: set it "
            "to null"
        )
    model.requires_grad_(False)
    adapters = [LowRank(layer.weight, rank) for layer in layers]
    for layer, adapter in zip(layers, adapters, strict=True):
        parametrize.register_parametrization(layer, "weight", adapter)


def _fold(model: nn.Module) -> None:
    """Adds the adapters to the weights of their layers; switches to evaluation mode."""
    model.eval()
    for layer in _linear_layers(model):
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight")


def _steps(
    task: Task, training: TaskTrainingConfig, votes: VotesConfig, demonstrations: int
) -> Iterator[TrainingStep]:
    """Yields the steps of endless passes over all demonstrations in all views."""
    shown = Task(task.id, task.demonstrations)
    store = store_pairs(
        [view.task(shown) for view in draw_views(shown, training.augmentations, votes)]
    )
    plan = StepPlan(
        store,
        store.pairs,
        batch_size=training.batch_size,
        demonstrations=demonstrations,
        seed=votes.seed,
    )

    def draw_epochs() -> Iterator[tuple[Draw, ...]]:
        for epoch in count():
            plan.set_epoch(epoch)
            yield from plan

    return map(plan.__getitem__, draw_epochs())


def _fit(
    model: GridModel,
    steps: Iterator[TrainingStep],
    training: TaskTrainingConfig,
    task: str,
    device: torch.device,
) -> int:
    """Trains for the configured steps or seconds, at least one step; returns the steps made."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=training.lr)
    defaults = TrainingConfig()
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    total = torch.zeros((), device=device)
    model.train()
    start, done = time.monotonic(), 0
    for done, step in enumerate(steps, 1):
        moved = step.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = step_loss(model, moved, defaults.shape_loss_weight)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, defaults.gradient_clip)
        optimizer.step()
        total += loss.detach()
        is_late = training.seconds and time.monotonic() - start > training.seconds
        if done == training.steps or is_late:
            break
    if not bool(total.isfinite()):
        raise NonFiniteLossError(
            f"training on task {task} gave a loss of {float(total)}: lower "
            f"scoring.test_time_training.lr, which is {training.lr}"
        )
    return done
