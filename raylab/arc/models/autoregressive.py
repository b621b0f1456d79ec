"""Models that write an output grid cell by cell.

They predict the height and width of the output from source and demonstrations, then its cells from
a start token on. Every token of the output carries the height and width of the output: the true
ones under teacher forcing, the chosen ones free-running. The token at step t also carries the
colour of cell t - 1 and the coordinates of cell t, the cell to predict.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import COLOURS, PAD
from raylab.arc.models.base import Answers, GridModel, SizeCode, canvas, inside, likeliest
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
    """Keys and values, by layer."""
    prefix: Tensor
    """(B,) number of tokens in the caches before those of the output."""
    capacity: int = 0
    """Number of tokens in the caches before those of the output, padding included."""
    memories: Sequence[Memory] = ()
    """Memories of cross-attention, by layer."""
    context: Tensor | None = None
    """(B, C) context of the demonstrations."""


class AutoregressiveModel(GridModel):
    """A model that writes an output grid cell by cell, the likeliest colour each time."""

    teacher_forced: ClassVar[bool] = True
    size_code: SizeCode

    @abstractmethod
    def start(self, batch: Batch) -> Decoding:
        """Reads source and demonstrations and predicts the output's size."""

    @abstractmethod
    def embed(self, cells: Tensor, places: Grids, first: int = 0) -> Tensor:
        """Returns (B, L, D) embeddings of (B, L) cells at the places, which begin at `first`."""

    @abstractmethod
    def step(self, decoding: Decoding, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Returns (B, 1, 10) logits of the next cell.

        Args:
            decoding: The state after `start`, updated by earlier steps.
            x: (B, 1, D) embedding of the previous cell and of the size.
            positions: (B, 1) position of the token in the caches.
            mask: (B, 1, 1, tokens) bool, True where a token may be seen.
        """

    @torch.no_grad()
    def answers(self, batch: Batch) -> Answers:
        """Writes each output in the chosen size, the likeliest colour in each cell."""
        decoding = self.start(batch)
        sizes = self.choose_sizes(batch, decoding.sizes)
        likelihoods = sizes.log_likelihoods
        code = self.size_code(sizes.sides)[:, None]
        grids = canvas(sizes.sides)
        within = inside(grids)
        before = torch.full_like(sizes.sides[:, :1], START)
        for t in range(grids.cells.shape[1]):
            at = slice(t, t + 1)
            place = grids._replace(rows=grids.rows[:, at], cols=grids.cols[:, at])
            x = self.embed(before, place, t) + code
            positions = decoding.prefix[:, None] + t
            places = torch.arange(decoding.capacity + t + 1, device=x.device)
            logits = self.step(decoding, x, positions, (places <= positions)[:, None, None])
            before = logits.argmax(dim=-1)
            grids.cells[:, at] = before
            likelihoods = likelihoods + likeliest(logits)[:, 0].where(within[:, t], 0.0)
        cells = grids.cells.masked_fill(~within, PAD)
        return Answers(grids._replace(cells=cells), likelihoods, sizes.by_rule)


def shift_right(target: Grids) -> Tensor:
    """Returns the (B, T) cells before each target cell: `START`, then all but the last."""
    return F.pad(target.cells[:, :-1], (1, 0), value=START)
