"""The loss of grid models: of a training step, and its exact mean over validation pairs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from raylab.arc.data.steps import TrainingStep
from raylab.arc.data.tasks import PAD
from raylab.arc.models.base import GridModel, Logits


def loss_sums(prediction: Logits, cells: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the summed cross-entropies of (B, T) `cells`, and of (B, 2) `sizes` of grids.

    Cells are colours, or `PAD` outside each grid. The cross-entropy of a size is the mean of those
    of height and width. Logits may be of any floating-point type.
    """
    colours, sides = (logits.flatten(0, 1).float() for logits in prediction)
    return (
        F.cross_entropy(colours, cells.flatten(), ignore_index=PAD, reduction="sum"),
        F.cross_entropy(sides, (sizes - 1).flatten(), reduction="sum") / 2,
    )


def step_loss(model: GridModel, step: TrainingStep, shape_weight: float) -> Tensor:
    """Returns the loss of a step, in which every target cell of an epoch has the same weight.

    It is the summed loss of the cells over the mean number of cells in a step, plus `shape_weight`
    times the summed loss of the sizes over the mean number of grids in a step. If a model gives
    several `training_logits`, their losses are averaged.
    """
    sums = [
        (cells / len(predictions), sizes / len(predictions))
        for batch in step.batches
        for predictions in [model.training_logits(batch)]
        for prediction in predictions
        for cells, sizes in [loss_sums(prediction, batch.target.cells, batch.target.sizes)]
    ]
    cells, sizes = (torch.stack(terms).sum() for terms in zip(*sums, strict=True))
    return cells / step.cells + shape_weight * sizes / step.grids


class MeanLoss(Metric):
    """The loss of an epoch: the mean over target cells plus the weighted mean over sizes of grids.

    Means are ratios of sums over all batches and workers, so that they do not depend on how grids
    are batched or shared.
    """

    full_state_update = False
    sums: Tensor
    counts: Tensor

    def __init__(self, shape_weight: float, **kwargs: Any) -> None:
        """Weights the loss of height and width by `shape_weight`."""
        super().__init__(**kwargs)
        self.shape_weight = shape_weight
        zeros = torch.zeros(2, dtype=torch.float64)
        self.add_state("sums", default=zeros, dist_reduce_fx="sum")
        self.add_state("counts", default=zeros.long(), dist_reduce_fx="sum")

    def update(self, prediction: Logits, cells: Tensor, sizes: Tensor) -> None:
        """Adds a batch; the arguments are those of `loss_sums`."""
        self.sums += torch.stack(loss_sums(prediction, cells, sizes)).double()
        self.counts += torch.stack(((cells != PAD).sum(), cells.new_tensor(len(cells))))

    def compute(self) -> Tensor:
        """Returns the loss, a float32 scalar; 0 without a grid."""
        cells, sizes = self.sums / self.counts.clamp(min=1)
        return (cells + self.shape_weight * sizes).float()
