"""Free-running decoding: an output grid from source and demonstrations alone."""

import torch
from torch import Tensor

from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import PAD
from raylab.arc.models.base import START, GridModel


@torch.no_grad()
def greedy_decode(model: GridModel, batch: Batch) -> Grids:
    """Writes each output cell by cell, the likeliest colour each time, in the predicted size.

    `batch.target` is not read.

    Returns:
        B grids of their own predicted sizes, on the device of the batch.
    """
    decoding = model.start(batch)
    sizes = decoding.sizes.argmax(dim=-1) + 1
    areas = sizes.prod(dim=1)
    longest = int(areas.max())
    model.begin(decoding, sizes)
    places = torch.arange(longest, device=sizes.device)
    inside = places < areas[:, None]
    rows = torch.where(inside, places // sizes[:, 1:], 0)
    cols = torch.where(inside, places % sizes[:, 1:], 0)
    cells = torch.full_like(rows, PAD)
    before = torch.full_like(areas, START)
    for t in range(longest):
        before = model.step(decoding, before, rows[:, t], cols[:, t], t).argmax(dim=-1)
        cells[:, t] = before
    padded = not bool(inside.all())
    return Grids(cells.masked_fill(~inside, PAD), rows, cols, sizes, padded)


def exact_matches(predicted: Grids, target: Grids) -> Tensor:
    """Returns (B,) bool, True where a prediction has the target's size and all of its cells."""
    length = min(predicted.cells.shape[1], target.cells.shape[1])
    same_size = (predicted.sizes == target.sizes).all(dim=1)
    same_cells = (predicted.cells[:, :length] == target.cells[:, :length]).all(dim=1)
    return same_size & same_cells


def solved_grids(model: GridModel, batch: Batch, candidates: Tensor) -> Tensor:
    """Returns (B,) bool, True where greedy decoding writes the output exactly.

    Only `candidates`, (B,) bool, are decoded: those with the right size and, under teacher
    forcing, the right cells. No other grid can be solved, because greedy decoding sees the same
    true prefix up to its first wrong cell.
    """
    solved = torch.zeros_like(candidates)
    chosen = candidates.nonzero()[:, 0]
    if len(chosen):
        queries = batch.select(chosen)
        solved[chosen] = exact_matches(greedy_decode(model, queries), queries.target)
    return solved
