"""Generations of a task set: the same tasks in other colours and orientations."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raylab.arc.data.tasks import COLOURS, Grid, Pair, Task

SYMMETRIES = 8


@dataclass(frozen=True, eq=False)
class Redrawing:
    """A relabelling of the colours and a symmetry of the square, for all grids of one task.

    `colours` is a permutation of 0..9, (10,) uint8: colour c becomes `colours[c]`. The background
    0 is a colour like the others. `symmetry` is 0..7: `symmetry % 4` quarter turns
    counter-clockwise, then, from 4 on, a transposition.
    """

    colours: NDArray[np.uint8]
    symmetry: int

    def apply(self, grid: Grid) -> Grid:
        """Returns `grid`, (H, W), redrawn as a new contiguous array, (H, W) or (W, H)."""
        turned = np.rot90(grid, self.symmetry % 4)
        return self.colours[np.ascontiguousarray(turned.T if self.symmetry >= 4 else turned)]


def redrawing(task_id: str, seed: int) -> Redrawing:
    """Returns the redrawing of the task `task_id` in the generation `seed` (>= 0).

    It depends on these two alone, and is uniform over the 10! x 8 possibilities, the identity
    included. It is drawn from the bits of `SeedSequence`, which are the same in all versions of
    numpy; the methods of `Generator` make no such promise.
    """
    id_hash = int.from_bytes(hashlib.sha256(task_id.encode()).digest())
    bits = np.random.SeedSequence([seed, id_hash]).generate_state(COLOURS + 1, np.uint64)
    colours = np.argsort(bits[:COLOURS], kind="stable").astype(np.uint8)
    return Redrawing(colours, int(bits[COLOURS]) % SYMMETRIES)


def redraw(tasks: Iterable[Task], seed: int) -> tuple[Task, ...]:
    """Returns `tasks` in the generation `seed` (>= 0), in the same order and with the same ids.

    All pairs of a task, inputs and outputs, get the same `redrawing`.
    """
    return tuple(_redraw_task(task, redrawing(task.id, seed)) for task in tasks)


def _redraw_task(task: Task, drawing: Redrawing) -> Task:
    def redrawn(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
        return tuple(Pair(drawing.apply(p.input), drawing.apply(p.output)) for p in pairs)

    return Task(task.id, redrawn(task.demonstrations), redrawn(task.questions))
