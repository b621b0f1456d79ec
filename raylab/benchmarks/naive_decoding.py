"""Free-running decoding without the key-value cache, without the early stop, or without both.

A baseline for `AutoregressiveModel.answers`; the answers are the same.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import PAD
from raylab.arc.models.autoregressive import START, AutoregressiveModel, Decoding
from raylab.arc.models.layers import MAX_CELLS

NextCells = Callable[[Grids, int], Tensor]
"""Returns the (B,) cells t of grids whose earlier cells are written."""


@torch.no_grad()
def naive_decode(
    model: AutoregressiveModel, batch: Batch, *, cache: bool, early_stop: bool
) -> Grids:
    """Writes each output cell by cell, the likeliest colour each time, in the predicted size.

    Args:
        model: a model in evaluation mode, on the device of the batch.
        batch: B queries; `batch.target` is not read.
        cache: keep what was computed for earlier cells; otherwise the network reads source,
            demonstrations and all cells so far anew for each cell.
        early_stop: stop at the longest output; otherwise at the last cell of a 30 x 30 canvas.

    Returns:
        B grids of their own predicted sizes, on the device of the batch.
    """
    decoding = model.start(batch)
    sizes = decoding.sizes.argmax(dim=-1) + 1
    areas = sizes.prod(dim=1)
    longest = int(areas.max())
    canvas = _canvas(sizes, longest if early_stop else MAX_CELLS)
    next_cells = _cached(model, decoding, canvas) if cache else _recomputed(model, batch)
    for t in range(canvas.cells.shape[1]):
        canvas.cells[:, t] = next_cells(canvas, t)
    cells, rows, cols = (tensor[:, :longest] for tensor in canvas[:3])
    inside = torch.arange(longest, device=sizes.device) < areas[:, None]
    return Grids(cells.masked_fill(~inside, PAD), rows, cols, sizes, not bool(inside.all()))


def _canvas(sizes: Tensor, length: int) -> Grids:
    """Returns grids of `length` black cells; those after the last cell of a size are at (0, 0)."""
    places = torch.arange(length, device=sizes.device).expand(len(sizes), -1)
    inside = places < sizes.prod(dim=1)[:, None]
    rows = torch.where(inside, places // sizes[:, 1:], 0)
    cols = torch.where(inside, places % sizes[:, 1:], 0)
    return Grids(torch.zeros_like(rows), rows, cols, sizes, padded=False)


def _recomputed(model: AutoregressiveModel, batch: Batch) -> NextCells:
    def next_cells(grids: Grids, t: int) -> Tensor:
        cells, rows, cols = (tensor[:, : t + 1] for tensor in grids[:3])
        known = batch._replace(target=Grids(cells, rows, cols, grids.sizes, padded=False))
        return model(known).cells[:, t].argmax(dim=-1)

    return next_cells


def _cached(model: AutoregressiveModel, decoding: Decoding, canvas: Grids) -> NextCells:
    model.begin(decoding, canvas.sizes)
    for cache in decoding.caches:
        cache.reserve(canvas.cells.shape[1] - int(canvas.sizes.prod(dim=1).max()))

    def next_cells(grids: Grids, t: int) -> Tensor:
        before = grids.cells[:, t - 1] if t else torch.full_like(grids.cells[:, 0], START)
        logits = model.step(decoding, before, grids.rows[:, t], grids.cols[:, t], t)
        return logits.argmax(dim=-1)

    return next_cells
