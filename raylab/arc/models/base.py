"""The interface of every architecture: a batch in, cells and sizes out.

A model predicts the cells of the output, and its height and width from source and demonstrations.
If the demonstrations agree on a rule for the size, answers follow the rule instead of the
prediction. `AutoregressiveModel` writes cell by cell and is scored under teacher forcing, as
published; `ParallelModel` writes all cells at once, in the chosen size. Logits are over the ten
colours: padding is never an answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

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
    """B grids in the chosen sizes."""
    log_likelihoods: Tensor
    """(B,) float32, at most 0: log-probability of all cells and, if predicted, of the size."""
    by_rule: Tensor
    """(B,) bool: the size rule gave the size."""


class Sizes(NamedTuple):
    """The sizes that B queries are answered in."""

    sides: Tensor
    """(B, 2) int64: height and width."""
    log_likelihoods: Tensor
    """(B,) float32: log-probability of height and width; 0 if the size rule gave them."""
    by_rule: Tensor
    """(B,) bool: the size rule gave the size."""


class SizeCode(nn.Module):
    """Code of the height and width of the output, added to each of its tokens.

    All architectures have it, so that they know equally much about the shape. It starts at zero.
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
    """True if `answers` takes the likeliest logits of `forward` cell by cell.

    Then each cell is scored after the true cells before it; otherwise the answer is scored.
    """

    size_rule: bool = True
    """True to answer in the size that `demonstrated_sizes` implies, where it implies one."""

    @abstractmethod
    def forward(self, batch: Batch) -> Logits:
        """Returns the logits of every target cell, given the true size of the output."""

    def training_logits(self, batch: Batch) -> Sequence[Logits]:
        """Returns all logits to compare with the target in training, which averages the losses."""
        return (self(batch),)

    @abstractmethod
    def answers(self, batch: Batch) -> Answers:
        """Returns answers from source and demonstrations alone; scoring passes no targets."""

    def choose_sizes(self, batch: Batch, logits: Tensor) -> Sizes:
        """Returns the sizes to answer in: by the size rule, or else the likeliest.

        Args:
            batch: B queries.
            logits: (B, 2, 30) logits of height - 1 and width - 1.
        """
        sides = logits.argmax(dim=-1) + 1
        implied = demonstrated_sizes(batch) if self.size_rule else torch.zeros_like(sides)
        by_rule = implied[:, 0] > 0
        sides = torch.where(by_rule[:, None], implied, sides)
        return Sizes(sides, likeliest(logits).sum(dim=1).masked_fill(by_rule, 0.0), by_rule)


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


def likeliest(logits: Tensor) -> Tensor:
    """Returns the log-probability of the likeliest choice of (..., N) logits, (...) float32."""
    return logits.float().log_softmax(dim=-1).amax(dim=-1)


def canvas(sizes: Tensor) -> Grids:
    """Returns blank grids of (B, 2) `sizes`: all cells are `PAD`, and padding is at (0, 0)."""
    areas = sizes.prod(dim=1)
    places = torch.arange(int(areas.max()), device=sizes.device)
    within = places < areas[:, None]
    rows = torch.where(within, places // sizes[:, 1:], 0)
    cols = torch.where(within, places % sizes[:, 1:], 0)
    return Grids(torch.full_like(rows, PAD), rows, cols, sizes, not bool(within.all()))


def inside(grids: Grids) -> Tensor:
    """Returns (B, L) bool, True for the cells of each grid, blank ones included."""
    places = torch.arange(grids.cells.shape[1], device=grids.cells.device)
    return places < grids.sizes.prod(dim=1)[:, None]


def overlay(grids: Grids, canvas: Grids) -> Tensor:
    """Returns the (B, T) colours of the grids at the cells of a canvas; `PAD` outside either."""
    height, width = grids.sizes.unbind(1)
    covered = (canvas.rows < height[:, None]) & (canvas.cols < width[:, None]) & inside(canvas)
    places = torch.where(covered, canvas.rows * width[:, None] + canvas.cols, 0)
    return grids.cells.gather(1, places).where(covered, PAD)


def exact_matches(predicted: Grids, target: Grids) -> Tensor:
    """Returns (B,) bool, True where size and all cells of the prediction equal the target's."""
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
