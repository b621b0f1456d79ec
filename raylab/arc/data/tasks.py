"""ARC tasks: the data model, and the pairs of a task set in contiguous arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raylab.core.errors import DataError

COLOURS = 10
PAD = 10
"""Marks cells outside a grid in padded batches."""
MAX_SIDE = 30

Grid = NDArray[np.uint8]
"""A grid, (height, width) uint8, colours 0..9, sides 1..30."""


NO_OUTPUT: Grid = np.zeros((0, 0), dtype=np.uint8)
"""The output of a question whose answer is hidden or unknown."""
Indices = NDArray[np.int64]


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


@dataclass(frozen=True)
class PairStore:
    """The pairs of a task set in contiguous arrays; grid 2i is pair i's input, 2i+1 its output."""

    task_ids: tuple[str, ...]
    cells: NDArray[np.uint8]
    offsets: Indices
    """(2N,) first cell of each grid."""
    sizes: Indices
    """(2N, 2) height and width of each grid."""
    task_of: Indices
    """(N,) task of each pair."""
    demonstrations: tuple[Indices, ...]
    """Pairs that may serve as context, by task."""
    input_of: Indices
    """(N,) first pair of the same task with an equal input."""

    @property
    def lengths(self) -> Indices:
        """(N, 2) cells of each pair's input and output."""
        return self.sizes.prod(axis=1).reshape(-1, 2)

    @property
    def pairs(self) -> Indices:
        """(N,) all pairs."""
        return np.arange(len(self.task_of))


def store_pairs(tasks: Sequence[Task]) -> PairStore:
    """Copies the grids of `tasks` into contiguous arrays."""
    pairs = [(number, pair) for number, task in enumerate(tasks) for pair in task.pairs]
    if not pairs:
        raise DataError("no task has a pair to train or validate on")
    grids = [grid for _, pair in pairs for grid in (pair.input, pair.output)]
    lengths = np.array([grid.size for grid in grids], dtype=np.int64)
    ends = np.cumsum([len(task.pairs) for task in tasks])
    inputs: dict[tuple[int, tuple[int, ...], bytes], int] = {}
    first_equal = [
        inputs.setdefault((task, pair.input.shape, pair.input.tobytes()), index)
        for index, (task, pair) in enumerate(pairs)
    ]
    return PairStore(
        task_ids=tuple(task.id for task in tasks),
        cells=np.concatenate([grid.ravel() for grid in grids]),
        offsets=lengths.cumsum() - lengths,
        sizes=np.array([grid.shape for grid in grids], dtype=np.int64),
        task_of=np.array([task for task, _ in pairs]),
        demonstrations=tuple(
            np.arange(end - len(task.pairs), end - len(task.questions))
            for end, task in zip(ends.tolist(), tasks, strict=True)
        ),
        input_of=np.array(first_equal, dtype=np.int64),
    )


def group_indices(store: PairStore, groups: Mapping[str, str]) -> tuple[tuple[str, ...], Indices]:
    """Returns the sorted group names, and the (tasks,) position of each task's group."""
    names = tuple(sorted({groups[task] for task in store.task_ids}))
    return names, np.array([names.index(groups[task]) for task in store.task_ids])
