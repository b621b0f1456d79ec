"""Models that write all cells of an output at once, on a canvas of the output's size."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import PAD
from raylab.arc.models.base import Answers, GridModel, Logits, canvas, inside, likeliest


class ParallelModel(GridModel):
    """A model that writes all cells at once. A subclass defines `read` and `paint`.

    The canvas has the output's true size in training, and the size of `choose_sizes` in answers. No
    input has true cells, so that all figures are free-running.
    """

    teacher_forced: ClassVar[bool] = False

    @abstractmethod
    def read(self, batch: Batch) -> tuple[Tensor, Any]:
        """Returns (B, 2, 30) logits of height - 1 and width - 1, and whatever `paint` needs.

        It must not read `batch.target`.
        """

    @abstractmethod
    def paint(self, batch: Batch, blank: Grids, encoded: Any) -> Sequence[Tensor]:
        """Returns (B, T, 10) logits of the colours of a blank canvas, one tensor per refinement.

        Training compares each tensor with the target, and the last one is the answer. It must not
        read `batch.target`.

        Args:
            batch: B queries.
            blank: A canvas for each query, of colour `PAD` and at most T cells.
            encoded: The second value that `read` returned.
        """

    def forward(self, batch: Batch) -> Logits:
        """Returns the last logits of every target cell, on a canvas of the true size."""
        return self.training_logits(batch)[-1]

    def training_logits(self, batch: Batch) -> Sequence[Logits]:
        """Returns all logits of every target cell, on a canvas of the true size."""
        sizes, encoded = self.read(batch)
        blank = batch.target._replace(cells=torch.full_like(batch.target.cells, PAD))
        return [Logits(cells, sizes) for cells in self.paint(batch, blank, encoded)]

    @torch.no_grad()
    def answers(self, batch: Batch) -> Answers:
        """Chooses the size, then the likeliest colours on a canvas of that size."""
        logits, encoded = self.read(batch)
        sizes = self.choose_sizes(batch, logits)
        blank = canvas(sizes.sides)
        logits = self.paint(batch, blank, encoded)[-1]
        cells = inside(blank)
        likelihoods = sizes.log_likelihoods + likeliest(logits).where(cells, 0.0).sum(dim=1)
        colours = logits.argmax(dim=-1).where(cells, PAD)
        return Answers(blank._replace(cells=colours), likelihoods, sizes.by_rule)
