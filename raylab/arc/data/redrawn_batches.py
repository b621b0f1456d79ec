"""Redrawings of whole batches of grids at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylab.arc.data.generations import Redrawing
from raylab.arc.data.tasks import PAD


class Redrawings(NamedTuple):
    """Colours and symmetries of N redrawings as tensors, to redraw padded batches of N grids."""

    colours: Tensor | None
    """(N, 10) int64: what each colour becomes; None keeps them."""
    symmetries: Tensor | None
    """(N,) int64, 0..7; None keeps all grids as they lie."""

    @classmethod
    def of(cls, redrawings: Sequence[Redrawing]) -> "Redrawings":
        """Returns the colours and symmetries of N `redrawings`."""
        return cls(
            torch.from_numpy(np.stack([each.colours for each in redrawings]).astype(np.int64)),
            torch.tensor([each.symmetry for each in redrawings]),
        )

    @property
    def inverse(self) -> "Redrawings":
        """The redrawings that undo these."""
        symmetries = self.symmetries
        return Redrawings(
            None if self.colours is None else self.colours.argsort(dim=1),
            None
            if symmetries is None
            else torch.where(symmetries < 4, -symmetries % 4, symmetries),
        )

    def select(self, index: Tensor) -> "Redrawings":
        """Returns the redrawings at (M,) `index`."""
        return Redrawings(*(None if part is None else part[index] for part in self))


def turned(
    cells: Tensor, sizes: Tensor, symmetries: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns cells, rows, columns and sizes of N grids that are turned by (N,) `symmetries`.

    Args:
        cells: (N, L) cells of the grids, row-major, `PAD` after the last.
        sizes: (N, 2) their heights and widths.
        symmetries: The symmetry of each, as in `Redrawing`.
    """
    height, width = sizes.unbind(dim=1)
    quarter = symmetries % 4
    # A turned grid's rows are its source's rows or, after an odd number of quarter turns and
    # transpositions, its columns; the source may be read from below and from the right.
    across = (quarter % 2 == 1) != (symmetries >= 4)
    up, left = quarter >= 2, (quarter == 1) | (quarter == 2)
    first = torch.where(up, (height - 1) * width, 0) + torch.where(left, width - 1, 0)
    down, right = torch.where(up, -width, width), torch.where(left, -1, 1)
    sizes = torch.where(across[:, None], sizes.flip(1), sizes)
    inside, positions = cells != PAD, torch.arange(cells.shape[1], device=cells.device)
    rows = torch.where(inside, positions // sizes[:, 1:], 0)
    cols = torch.where(inside, positions % sizes[:, 1:], 0)
    source = first[:, None] + rows * torch.where(across, right, down)[:, None]
    source += cols * torch.where(across, down, right)[:, None]
    return torch.where(inside, cells.gather(1, source), PAD), rows, cols, sizes
