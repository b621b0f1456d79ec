"""ARC tasks: the data model."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

COLOURS = 10
PAD = 10
"""Marks cells outside a grid in padded batches."""
MAX_SIDE = 30

Grid = NDArray[np.uint8]
"""A grid, (height, width) uint8, colours 0..9, sides 1..30."""


NO_OUTPUT: Grid = np.zeros((0, 0), dtype=np.uint8)
"""The output of a question whose answer is hidden or unknown."""


@dataclass(frozen=True, eq=False)
class Pair:
    """An input grid and its output grid, which is `NO_OUTPUT` if it is missing."""

    input: Grid
    output: Grid

    @property
    def is_answered(self) -> bool:
        """True if the pair has an output."""
        return self.output.size > 0


@dataclass(frozen=True, eq=False)
class Task:
    """A task. Its `demonstrations` may serve as context, its `questions` never do.

    ARC's train pairs are demonstrations and its test pairs are questions; all pairs of a re-arc or
    curriculum task are demonstrations. `group` is None if the source does not group its tasks.
    """

    id: str
    demonstrations: tuple[Pair, ...]
    questions: tuple[Pair, ...] = ()
    group: str | None = None

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Demonstrations, then questions."""
        return self.demonstrations + self.questions

    @property
    def longest_visible_side(self) -> int:
        """The longest side of its grids, other than the outputs of questions."""
        grids = [pair.input for pair in self.pairs] + [own.output for own in self.demonstrations]
        return max(max(grid.shape) for grid in grids)

    @property
    def without_outputs(self) -> "Task":
        """The task as a solver may see it: without the outputs of its questions."""
        return replace(
            self, questions=tuple(Pair(pair.input, NO_OUTPUT) for pair in self.questions)
        )

    @property
    def answered(self) -> "Task":
        """The task without the questions that have no output."""
        return replace(self, questions=tuple(pair for pair in self.questions if pair.is_answered))
