"""Test-time training: a copy of a model learns from the demonstrations of one task.

Each demonstration in turn is left out of the context and becomes a query, in several views of the
task.
"""

import hashlib
import io
import time
from collections.abc import Iterator
from itertools import count

import torch
from torch import nn

from raylab.arc.checkpoints import load_tensors
from raylab.arc.config.sections import (
    Precision,
    TaskTrainingConfig,
    TrainingConfig,
    VotesConfig,
)
from raylab.arc.data.batching import Draw
from raylab.arc.data.steps import StepPlan
from raylab.arc.data.store import store_pairs
from raylab.arc.data.tasks import Task
from raylab.arc.device import hardware_precision
from raylab.arc.loss import step_loss
from raylab.arc.models.base import GridModel
from raylab.arc.prize.votes import draw_views
from raylab.core.errors import CheckpointError, NonFiniteLossError
from raylab.core.files import Place

SPECIALIST_BYTES = 1 << 30


def train_on_task(
    model: GridModel,
    task: Task,
    training: TaskTrainingConfig,
    votes: VotesConfig,
    *,
    demonstrations: int,
    device: torch.device,
) -> int:
    """Trains a model on the demonstrations of a task, not its questions; returns the steps made.

    Afterwards the model is in evaluation mode. Random draws depend only on the task and
    `votes.seed`. `model` is a copy on `device`, and changes. Each query has `demonstrations` in its
    context.
    """
    seed = int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:4]) ^ votes.seed
    shown = Task(task.id, task.demonstrations)
    views = draw_views(shown, training.augmentations, votes)
    store = store_pairs([view.task(shown) for view in views])
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

    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr)
    defaults = TrainingConfig()
    half = hardware_precision(Precision.AUTO, device.type) is Precision.BFLOAT16
    total = torch.zeros((), device=device)
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        start, done = time.monotonic(), 0
        for done, draws in enumerate(draw_epochs(), 1):
            step = plan[draws].to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = step_loss(model, step, defaults.shape_loss_weight)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), defaults.gradient_clip)
            optimizer.step()
            total += loss.detach()
            is_late = training.seconds and time.monotonic() - start > training.seconds
            if done == training.steps or is_late:
                break
    if not bool(total.isfinite()):
        raise NonFiniteLossError(
            f"training on task {task.id} gave a loss of {float(total)}: lower "
            f"scoring.test_time_training.lr, which is {training.lr}"
        )
    model.eval()
    return done


def specialist_file(model: GridModel) -> bytes:
    """Returns the weights of a model as a file that torch loads with `weights_only`."""
    buffer = io.BytesIO()
    torch.save({name: weight.cpu() for name, weight in model.state_dict().items()}, buffer)
    return buffer.getvalue()


def become_specialist(model: GridModel, file: Place) -> None:
    """Gives a model the weights of a specialist."""
    weights = load_tensors(file, SPECIALIST_BYTES)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{file} is a specialist of another model than the one that answers: name the run "
            "that kept those of this model, or leave scoring.test_time_training.specialists out"
        ) from error
