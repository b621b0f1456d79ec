"""The interface of every architecture: a batch in, cells and sizes out.

A model predicts the cells of the output, and its height and width from source and demonstrations.
If the demonstrations agree on a rule for the size, answers follow the rule instead of the
prediction. `ParallelModel` writes all cells at once, in the chosen size. `AutoregressiveModel`
writes cell by cell, from a start token on, and is scored under teacher forcing, as published. Its
tokens carry the height and width of the output: the true ones under teacher forcing, the chosen
ones free-running. The token at step t also carries the colour of cell t - 1 and the coordinates of
cell t, the cell to predict. Logits are over the ten colours: padding is never an answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.data.batching import MISSING, Batch, Grids
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, PAD
from raylab.arc.models.layers import KeyValueCache, Memory

START = PAD + 1
SEPARATOR = PAD + 2
VOCABULARY = COLOURS + 3


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

        The (B, 2, 30) logits are of height - 1 and width - 1.
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
        read `batch.target`. The B canvases are of colour `PAD` and at most T cells, and `encoded`
        is the second value that `read` returned.
        """

    def forward(self, batch: Batch) -> Logits:
        return self.training_logits(batch)[-1]

    def training_logits(self, batch: Batch) -> Sequence[Logits]:
        sizes, encoded = self.read(batch)
        blank = batch.target._replace(cells=torch.full_like(batch.target.cells, PAD))
        return [Logits(cells, sizes) for cells in self.paint(batch, blank, encoded)]

    @torch.no_grad()
    def answers(self, batch: Batch) -> Answers:
        logits, encoded = self.read(batch)
        sizes = self.choose_sizes(batch, logits)
        blank = canvas(sizes.sides)
        logits = self.paint(batch, blank, encoded)[-1]
        cells = inside(blank)
        likelihoods = sizes.log_likelihoods + likeliest(logits).where(cells, 0.0).sum(dim=1)
        colours = logits.argmax(dim=-1).where(cells, PAD)
        return Answers(blank._replace(cells=colours), likelihoods, sizes.by_rule)


@dataclass
class Decoding:
    """The state of decoding B outputs."""

    sizes: Tensor
    """(B, 2, 30) logits of height - 1 and width - 1."""
    caches: list[KeyValueCache]
    """Keys and values, by layer."""
    prefix: Tensor
    """(B,) number of tokens in the caches before the output."""
    capacity: int = 0
    """The same for the whole batch, padding included."""
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
        super().__init__()
        self.linear = nn.Linear(d_summary + 2 * MAX_SIDE, 2 * MAX_SIDE)

    def forward(self, summary: Tensor, sizes: Tensor) -> Tensor:
        """Returns (B, 2, 30) logits of height - 1 and width - 1, given (B, 2) source `sizes`."""
        sides = F.one_hot(sizes - 1, MAX_SIDE).flatten(1).to(summary.dtype)
        return self.linear(torch.cat((summary, sides), dim=1)).view(-1, 2, MAX_SIDE)


def demonstrated_sizes(batch: Batch) -> Tensor:
    """Returns the sizes that the demonstrations imply, (B, 2) int64; 0 where they imply none.

    A rule multiplies the sides of the source by fixed ratios (1 where the size stays), swaps them,
    takes constant sides, or adds fixed differences. The first rule that all demonstrations of a
    query follow, and that gives sides of 1 to 30, decides. The target is not read.
    """
    source, index = batch.source.sizes, batch.demo_index
    if not index.shape[1]:
        return torch.zeros_like(source)
    present = index.amax(dim=1, keepdim=True)
    index = torch.where(index == MISSING, present, index)
    inputs, outputs = (
        F.pad(grids.sizes, (0, 0, 0, 1), value=1)[index]
        for grids in (batch.demo_inputs, batch.demo_outputs)
    )
    first_input, first_output = inputs[:, :1], outputs[:, :1]
    scaled = source * outputs[:, 0] / inputs[:, 0]
    # In the order that is right most often on the training tasks of ARC-AGI-1.
    proposals = (
        (inputs * first_output == outputs * first_input, torch.where(scaled % 1 == 0, scaled, 0)),
        (outputs == inputs.flip(2), source.flip(1)),
        (outputs == first_output, outputs[:, 0]),
        (outputs - inputs == first_output - first_input, source + (outputs - inputs)[:, 0]),
    )
    sizes = torch.zeros_like(source)
    for followed, proposal in reversed(proposals):
        valid = ((proposal >= 1) & (proposal <= MAX_SIDE)).all(dim=1)
        decides = followed.all(dim=2).all(dim=1) & valid
        sizes = torch.where(decides[:, None], proposal.long(), sizes)
    return torch.where(present == MISSING, 0, sizes)
