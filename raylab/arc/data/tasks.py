"""ARC tasks: the data model, redrawings, and the pairs of a task set in contiguous arrays."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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
SYMMETRIES = 8
IDENTITY = np.arange(COLOURS, dtype=np.uint8)


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
    # The shape is part of the key, because 1 x 4 and 2 x 2 cells may have the same bytes.
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
