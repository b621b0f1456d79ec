"""Contexts to compare the recursive model's with, and what a trained model takes from its context.

Train with other contexts by `model=custom model.target=tests.contexts:Oracle` or `Sequence`, and
question a trained model by `python -m tests.contexts CHECKPOINT`.
"""

import sys
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from raylab.arc.checkpoints import Checkpoint, read_checkpoint
from raylab.arc.config.models import RecursiveConfig
from raylab.arc.config.sections import DataConfig, TaskSource
from raylab.arc.data.batching import Batch
from raylab.arc.data.split import load_sides
from raylab.arc.data.steps import Augmentation, StepPlan
from raylab.arc.data.tasks import Grid
from raylab.arc.models.context import D_CONTEXT
from raylab.arc.models.custom import import_model_classes
from raylab.arc.models.recursive import Recursive
from raylab.arc.scoring.evaluation import model_on

SIZES = {"d_model": 128, "d_ff": 352, "steps": 1}
PAIRS, VALIDATION = 1500, 0.005
"""Those of the curriculum's page, whose split tells which pairs a model was not trained on."""
MOVERS: Mapping[str, Callable[[Grid], Grid]] = {
    "flip_columns": np.fliplr,
    "flip_rows": np.flipud,
    "quarter_turn": lambda grid: np.rot90(grid, -1),
    "half_turn": lambda grid: np.rot90(grid, 2),
    "transpose": np.transpose,
    "right": lambda grid: np.roll(grid, 1, axis=1),
    "down": lambda grid: np.roll(grid, 1, axis=0),
    "left": lambda grid: np.roll(grid, -1, axis=1),
    "up": lambda grid: np.roll(grid, -1, axis=0),
}
MOVING_FAMILIES = ("flip_columns", "flip_rows", "quarter_turn", "half_turn", "transpose", "shift")


class Oracle(Recursive):
    """The recursive model with a learned vector of each task in place of its context."""

    def __init__(self, tasks: int = 42) -> None:
        super().__init__(RecursiveConfig.model_validate(SIZES))
        self.context = cast(Any, _TaskTable(tasks, D_CONTEXT))


class _TaskTable(nn.Module):
    def __init__(self, tasks: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(tasks, width)

    def forward(self, batch: Batch, colours: nn.Embedding) -> Tensor:
        return self.table(batch.tasks)


class Sequence(Recursive):
    """The recursive model whose context reads pairs as one sequence alone."""

    def __init__(self) -> None:
        super().__init__(RecursiveConfig.model_validate(SIZES))
        self.context.correspondence = cast(Any, _Nothing())


class _Nothing(nn.Module):
    def forward(self, inputs: object, outputs: object) -> float:
        return 0.0


@torch.inference_mode()
def question(checkpoint: Checkpoint, batches: int = 60) -> str:
    """Returns what a recursive model does with pairs that it was not trained on, in a sentence."""
    model = model_on(checkpoint, torch.device("cpu"))
    assert isinstance(model, Recursive)
    sides = load_sides(
        DataConfig(
            source=TaskSource.CURRICULUM,
            split_by="pair",
            pairs_per_task=PAIRS,
            val_fraction=VALIDATION,
        )
    )
    families = np.array([id_.split("-")[0] for id_ in sides.store.task_ids])
    plan = StepPlan(
        sides.store,
        sides.test,
        batch_size=64,
        demonstrations=checkpoint.model.context_pairs,
        augmentation=Augmentation(demonstrations="batch"),
    )
    contexts: list[Tensor] = []
    labels: list[str] = []
    wrong = exchanged = 0
    for batch in islice((batch for draws in plan for batch in plan[draws].batches), batches):
        contexts.append(model.context(batch, model.colours))
        labels += families[batch.tasks].tolist()
        answers = model.answers(batch.without_outputs).grids
        sources, answered, targets = (
            grids.as_images(grids.cells).numpy() for grids in (batch.source, answers, batch.target)
        )
        for at, family in enumerate(families[batch.tasks]):
            if family in MOVING_FAMILIES:
                source, answer, target = (
                    images[at, : size[at, 0], : size[at, 1]]
                    for images, size in (
                        (sources, batch.source.sizes),
                        (answered, answers.sizes),
                        (targets, batch.target.sizes),
                    )
                )
                if not np.array_equal(answer, target):
                    wrong += 1
                    moved = (move(source) for move in MOVERS.values())
                    exchanged += any(np.array_equal(answer, other) for other in moved)
    return (
        f"{exchanged} of {wrong} wrong answers of movers are another mover's; "
        f"a linear probe reads the family in {100 * _probe(torch.cat(contexts), labels):.1f} % "
        "of contexts"
    )


def _probe(contexts: Tensor, labels: list[str]) -> float:
    """Returns the share of the second half of the contexts whose family a linear map reads."""
    half = len(labels) // 2
    probe = LogisticRegression(max_iter=2000).fit(contexts[:half].numpy(), labels[:half])
    return float(probe.score(contexts[half:].numpy(), labels[half:]))


if __name__ == "__main__":
    import_model_classes(("tests.contexts:Oracle", "tests.contexts:Sequence"))
    sys.stdout.write(question(read_checkpoint(sys.argv[1])) + "\n")
