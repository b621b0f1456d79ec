"""Models that write an output grid cell by cell.

They start from a start token, and predict the height and width of the output from what is known
before the first cell. Every token of the output then carries the height and width that it is
written in: the true ones under teacher forcing, the predicted ones free-running. The token at step
t also carries the colour of cell t - 1 and the coordinates of cell t, the cell to predict.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import COLOURS, PAD
from raylab.arc.models.base import (
    Answers,
    GridModel,
    SizeCode,
    canvas,
    likeliest,
)
from raylab.arc.models.layers import KeyValueCache, Memory

START = PAD + 1
SEPARATOR = PAD + 2
VOCABULARY = COLOURS + 3


@dataclass
class Decoding:
    """The state of decoding B outputs."""

    sizes: Tensor
    """(B, 2, 30) logits of height - 1 and width - 1."""
    caches: list[KeyValueCache]
    prefix: Tensor
    """(B,) number of tokens in the caches before those of the output."""
    capacity: int
    """Number of tokens in the caches before those of the output, padding included."""
    memories: list[Memory]
    context: Tensor | None
    told: Tensor | None = None
    """(B, D) codes of the height and width that the outputs are written in; None before `begin`."""


class AutoregressiveModel(GridModel):
    """A model that writes an output grid cell by cell, the likeliest colour each time."""

    teacher_forced: ClassVar[bool] = True
    size_code: SizeCode

    @abstractmethod
    def start(self, batch: Batch) -> Decoding:
        """Reads source and demonstrations and predicts the output's size."""

    def begin(self, decoding: Decoding, sizes: Tensor) -> None:
        """Begins to write outputs of (B, 2) `sizes`, and makes room for their cells."""
        decoding.told = self.size_code(sizes)
        room = int(sizes.prod(dim=1).max())
        for cache in decoding.caches:
            cache.reserve(room)

    @abstractmethod
    def step(
        self, decoding: Decoding, before: Tensor, rows: Tensor, cols: Tensor, t: int
    ) -> Tensor:
        """Returns (B, 10) logits of cell t at (B,) `rows`, `cols`.

        Args:
            decoding: the state after `start` and `begin`, updated by earlier steps.
            before: (B,) cell t - 1; `START` at t = 0.
            rows: (B,) row of cell t.
            cols: (B,) column of cell t.
            t: index of the cell in its grid, from 0.
        """

    @torch.no_grad()
    def answers(self, batch: Batch) -> Answers:
        """Writes each output cell by cell, always the likeliest colour, in the predicted size."""
        decoding = self.start(batch)
        sizes = decoding.sizes.argmax(dim=-1) + 1
        likelihoods = likeliest(decoding.sizes).sum(dim=1)
        self.begin(decoding, sizes)
        grids = canvas(sizes)
        inside = torch.arange(grids.cells.shape[1], device=sizes.device) < sizes.prod(1)[:, None]
        before = torch.full_like(sizes[:, 0], START)
        for t in range(grids.cells.shape[1]):
            logits = self.step(decoding, before, grids.rows[:, t], grids.cols[:, t], t)
            before = logits.argmax(dim=-1)
            grids.cells[:, t] = before
            likelihoods += likeliest(logits).where(inside[:, t], 0.0)
        cells = grids.cells.masked_fill(~inside, PAD)
        return Answers(grids._replace(cells=cells), likelihoods)


def shifted(target: Grids) -> Tensor:
    """Returns the (B, T) cells before each target cell: `START`, then all but the last."""
    return F.pad(target.cells[:, :-1], (1, 0), value=START)
