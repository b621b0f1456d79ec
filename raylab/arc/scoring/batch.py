"""The scoring of a batch, shared by validation in training and by evaluation.

Models answer `Batch.without_outputs`, which holds no target.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from raylab.arc.data.batching import Batch
from raylab.arc.data.tasks import PAD
from raylab.arc.loss import MeanLoss
from raylab.arc.metrics import grid_counts
from raylab.arc.models.base import GridModel, Logits, exact_matches, overlay


class Prediction(NamedTuple):
    """The predicted cells, and which queries are solved."""

    cells: Tensor
    """(B, T) int64: the colour of each target cell, `PAD` where the model paints none."""
    right_size: Tensor
    """(B,) bool: height and width of the free-running answer are right."""
    size_by_rule: Tensor
    """(B,) bool: the size rule gave them."""
    solved: Tensor
    """(B,) bool: the free-running answer is the output."""
    logits: Logits | None = None
    """The output of `forward`, if it was computed."""


def count_batch(model: GridModel, batch: Batch, losses: MeanLoss | None = None) -> Tensor:
    """Predicts B queries and returns their counts, (B, counts) int64 in the order of `Count`.

    A model that writes cell by cell is teacher-forced, as in the published protocol; any other
    predicts the cells of the size that it answers in. Free-running answers decide which grids are
    solved. Their loss is added to `losses`.
    """
    prediction = predict(model, batch)
    target = batch.target
    if losses is not None:
        logits = prediction.logits or model(batch)
        losses.update(logits, target.cells, target.sizes)
    return grid_counts(
        batch.source.as_images(batch.source.cells),
        target.as_images(target.cells),
        target.as_images(prediction.cells),
        solved=prediction.solved,
        shape_correct=prediction.right_size,
        shape_by_rule=prediction.size_by_rule,
        free_running=not model.teacher_forced,
    )


def predict(model: GridModel, batch: Batch) -> Prediction:
    """Returns the predictions of a model for a batch on its device."""
    target = batch.target
    if not model.teacher_forced:
        answers = model.answers(batch.without_outputs)
        return Prediction(
            overlay(answers.grids, target),
            (answers.grids.sizes == target.sizes).all(dim=1),
            answers.by_rule,
            exact_matches(answers.grids, target),
        )
    logits = model(batch)
    cells = logits.cells.argmax(dim=-1)
    sizes = model.choose_sizes(batch.without_outputs, logits.sizes)
    right_size = (sizes.sides == target.sizes).all(dim=1)
    right_cells = ((cells == target.cells) | (target.cells == PAD)).all(dim=1)
    right = find_solved(model, batch, right_size & right_cells)
    return Prediction(cells, right_size, sizes.by_rule, right, logits)


def find_solved(model: GridModel, batch: Batch, candidates: Tensor) -> Tensor:
    """Returns (B,) bool, True where the answer of a teacher-forced model is the output.

    Only `candidates`, (B,) bool, are decoded: those with the right size and, under teacher forcing,
    the right cells. No other grid can be solved, because greedy decoding sees the same true prefix
    up to its first wrong cell.
    """
    right = torch.zeros_like(candidates)
    chosen = candidates.nonzero()[:, 0]
    if len(chosen):
        queries = batch.select(chosen)
        right[chosen] = exact_matches(model.answers(queries.without_outputs).grids, queries.target)
    return right
