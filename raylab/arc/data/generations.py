"""Redrawings of tasks in other colours and orientations, and the generations made of them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raylab.arc.data.tasks import COLOURS, Grid, Pair, Task

SYMMETRIES = 8


IDENTITY = np.arange(COLOURS, dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Redrawing:
    """A permutation of the colours and a symmetry of the square, for all grids of one task.

    Attributes:
        colours: (10,) uint8; colour c becomes `colours[c]`. The background 0 is a colour like the
            others.
        symmetry: 0..7: `symmetry % 4` quarter turns counter-clockwise, then a transposition if
            `symmetry >= 4`.
        order: Numbers of the original demonstrations in the order of the redrawn ones; empty keeps
            the order.
    """

    colours: NDArray[np.uint8]
    symmetry: int
    order: tuple[int, ...] = ()

    def apply(self, grid: Grid) -> Grid:
        """Returns `grid`, (H, W), redrawn as a new contiguous array, (H, W) or (W, H)."""
        turned = np.rot90(grid, self.symmetry % 4)
        return self.colours[np.ascontiguousarray(turned.T if self.symmetry >= 4 else turned)]

    def pair(self, pair: Pair) -> Pair:
        """Returns `pair` with both grids redrawn."""
        return Pair(self.apply(pair.input), self.apply(pair.output))

    def task(self, task: Task) -> Task:
        """Returns `task` with the same id, all its pairs redrawn, its demonstrations in `order`."""
        order = self.order or range(len(task.demonstrations))
        return replace(
            task,
            demonstrations=tuple(self.pair(task.demonstrations[at]) for at in order),
            questions=tuple(map(self.pair, task.questions)),
        )

    @property
    def inverse(self) -> "Redrawing":
        """The redrawing that undoes this one: `a.inverse.task(a.task(t))` is `t`."""
        colours = np.argsort(self.colours).astype(np.uint8)
        order = tuple(np.argsort(self.order).tolist()) if self.order else ()
        # Reflections undo themselves.
        symmetry = self.symmetry if self.symmetry >= 4 else -self.symmetry % 4
        return Redrawing(colours, symmetry, order)


def redrawing(task_id: str, seed: int) -> Redrawing:
    """Returns the redrawing of the task `task_id` in the generation `seed` (>= 0).

    It depends only on these two, and is uniform over all 10! x 8 redrawings, the identity
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
    return tuple(redrawing(task.id, seed).task(task) for task in tasks)
