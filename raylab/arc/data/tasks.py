"""ARC tasks: the data model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COLOURS = 10
PAD = 10
"""Marks cells outside a grid in padded batches."""
MAX_SIDE = 30

Grid = NDArray[np.uint8]
"""A grid, (height, width) uint8, colours 0..9, sides 1..30."""


@dataclass(frozen=True, eq=False)
class Pair:
    """One input grid and its output grid."""

    input: Grid
    output: Grid


@dataclass(frozen=True, eq=False)
class Task:
    """A task. Its `demonstrations` may serve as context, its `questions` never do.

    ARC's own train pairs are demonstrations and its test pairs questions; all pairs of a re-arc
    task and of the curriculum are demonstrations. Its `group` is the one that the source knows.
    """

    id: str
    demonstrations: tuple[Pair, ...]
    questions: tuple[Pair, ...] = ()
    group: str | None = None

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Demonstrations, then questions."""
        return self.demonstrations + self.questions
