"""The interface of every architecture: a batch in, cells and sizes out.

A model predicts the height and width of the output from source and demonstrations, and its cells.
When it answers, a rule that the demonstrations agree on decides the size before the prediction.
`AutoregressiveModel` writes cell by cell and is scored under teacher forcing, as published;
`ParallelModel` writes all cells at once, in the size that it has predicted. Logits are over the ten
colours: padding is never an answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import MAX_SIDE, PAD
from raylab.arc.models.size_rule import demonstrated_sizes


class Logits(NamedTuple):
    """Logits that training compares with the target."""

    cells: Tensor
    """(B, T, 10): colours of each target cell."""
    sizes: Tensor
    """(B, 2, 30): height - 1 and width - 1 of the output."""


class Answers(NamedTuple):
    """Free-running answers to B queries."""

    grids: Grids
    """B grids of their own predicted sizes."""
    log_likelihoods: Tensor
    """(B,) float32, at most 0: log-probability of all cells and, if predicted, of the size."""
    by_rule: Tensor
    """(B,) bool: the size is that of the size rule."""


class Sizes(NamedTuple):
    """The sizes that B queries are answered in."""

    sides: Tensor
    """(B, 2) int64: height and width."""
    log_likelihoods: Tensor
    """(B,) float32: log-probability of height and width; 0 of the size rule."""
    by_rule: Tensor
    """(B,) bool: the size is that of the size rule."""


class SizeCode(nn.Module):
    """Code of the height and width of the output, added to every token of it.

    All architectures have it, so that none knows more of the shape than another. It starts at zero:
    without it a model computes what one without it computed.
    """

    def __init__(self, d_model: int) -> None:
        """Codes sizes in `d_model` dimensions."""
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2, MAX_SIDE, d_model))

    def forward(self, sizes: Tensor) -> Tensor:
        """Returns (B, D) codes of (B, 2) heights and widths, each 1 to 30."""
        height, width = (sizes - 1).unbind(1)
        return self.table[0, height] + self.table[1, width]


class GridModel(nn.Module, ABC):
    """A model of grids. A subclass defines `forward` and `answers`."""

    teacher_forced: ClassVar[bool]
    """True for a model whose `answers` take the likeliest logits of `forward` cell by cell.

    Its cells are scored with the true ones before them, any other's as it answers.
    """

    size_rule: bool = True
    """True to answer in the size that `demonstrated_sizes` implies, where it implies one."""

    @abstractmethod
    def forward(self, batch: Batch) -> Logits:
        """Returns the logits of every target cell; the model is told the output's true size."""

    def training_logits(self, batch: Batch) -> Sequence[Logits]:
        """Returns all logits that training compares with the target; their losses are averaged."""
        return (self(batch),)

    @abstractmethod
    def answers(self, batch: Batch) -> Answers:
        """Returns answers from source and demonstrations alone; scoring passes no targets."""

    def choose_sizes(self, batch: Batch, logits: Tensor) -> Sizes:
        """Returns the sizes to answer in: by the size rule, or else the likeliest.

        Args:
            batch: B queries.
            logits: (B, 2, 30) of height - 1 and width - 1.
        """
        sides = logits.argmax(dim=-1) + 1
        implied = demonstrated_sizes(batch) if self.size_rule else torch.zeros_like(sides)
        by_rule = implied[:, 0] > 0
        sides = torch.where(by_rule[:, None], implied, sides)
        return Sizes(sides, likeliest(logits).sum(dim=1).masked_fill(by_rule, 0.0), by_rule)


def likeliest(logits: Tensor) -> Tensor:
    """Returns the log-probability of the likeliest choice of (..., N) logits, (...) float32."""
    return logits.float().log_softmax(dim=-1).amax(dim=-1)


def canvas(sizes: Tensor) -> Grids:
    """Returns grids of `PAD` alone of (B, 2) `sizes`; those after the last cell lie at (0, 0)."""
    areas = sizes.prod(dim=1)
    places = torch.arange(int(areas.max()), device=sizes.device)
    within = places < areas[:, None]
    rows = torch.where(within, places // sizes[:, 1:], 0)
    cols = torch.where(within, places % sizes[:, 1:], 0)
    return Grids(torch.full_like(rows, PAD), rows, cols, sizes, not bool(within.all()))


def inside(grids: Grids) -> Tensor:
    """Returns (B, L) bool, True for the cells of each grid, blank ones too."""
    places = torch.arange(grids.cells.shape[1], device=grids.cells.device)
    return places < grids.sizes.prod(dim=1)[:, None]


def overlay(grids: Grids, canvas: Grids) -> Tensor:
    """Returns the (B, T) colours of grids at the cells of B others; `PAD` outside either."""
    height, width = grids.sizes.unbind(1)
    covered = (canvas.rows < height[:, None]) & (canvas.cols < width[:, None]) & inside(canvas)
    places = torch.where(covered, canvas.rows * width[:, None] + canvas.cols, 0)
    return grids.cells.gather(1, places).where(covered, PAD)


def exact_matches(predicted: Grids, target: Grids) -> Tensor:
    """Returns (B,) bool, True where a prediction has the target's size and all of its cells."""
    length = min(predicted.cells.shape[1], target.cells.shape[1])
    same_size = (predicted.sizes == target.sizes).all(dim=1)
    same_cells = (predicted.cells[:, :length] == target.cells[:, :length]).all(dim=1)
    return same_size & same_cells


class SizeHead(nn.Module):
    """Predictor of the output's height and width from a summary and the size of the source."""

    def __init__(self, d_summary: int) -> None:
        """Reads summaries of `d_summary` dimensions."""
        super().__init__()
        self.linear = nn.Linear(d_summary + 2 * MAX_SIDE, 2 * MAX_SIDE)

    def forward(self, summary: Tensor, sizes: Tensor) -> Tensor:
        """Returns (B, 2, 30) logits of height - 1 and width - 1, given (B, 2) source `sizes`."""
        sides = F.one_hot(sizes - 1, MAX_SIDE).flatten(1).to(summary.dtype)
        return self.linear(torch.cat((summary, sides), dim=1)).view(-1, 2, MAX_SIDE)
