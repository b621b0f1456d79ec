"""Free-running decoding: an output grid from source and demonstrations alone."""

import torch
from torch import Tensor

from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import PAD
from raylab.arc.models.base import START, GridModel


@torch.no_grad()
def greedy_decode(model: GridModel, batch: Batch) -> Grids:
    """Write each output cell by cell, the likeliest colour each time, in the predicted size.

    Nothing of `batch.target` is read.

    Returns:
        B grids of their own predicted sizes, on the device of the batch.
    """
    decoding = model.start(batch)
    sizes = decoding.sizes.argmax(dim=-1) + 1
    areas = sizes.prod(dim=1)
    longest = int(areas.max())
    decoding.reserve(longest)
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
    """(B,) bool: whether a predicted grid has the target's size and every one of its cells."""
    length = min(predicted.cells.shape[1], target.cells.shape[1])
    same_size = (predicted.sizes == target.sizes).all(dim=1)
    same_cells = (predicted.cells[:, :length] == target.cells[:, :length]).all(dim=1)
    return same_size & same_cells


def solved_grids(model: GridModel, batch: Batch, candidates: Tensor) -> Tensor:
    """(B,) bool: which outputs greedy decoding writes exactly, asked of the `candidates` alone.

    A grid whose cells are not all right under teacher forcing, or whose size is not, cannot be
    solved: greedy decoding sees the same true prefix up to the first wrong cell. So only
    candidates (B,) bool that pass both need decoding, and the answer is the same as for all.
    """
    solved = torch.zeros_like(candidates)
    chosen = candidates.nonzero()[:, 0]
    if len(chosen):
        queries = batch.select(chosen)
        solved[chosen] = exact_matches(greedy_decode(model, queries), queries.target)
    return solved
