"""Recognition of tasks by their pairs, even if they are turned, recoloured or have another id.

Two tasks are the same if they share half of their pairs. In ARC-AGI-1 and 2 (8,334 pairs), tasks
that were published under two ids share half of their pairs or more, and different tasks at most a
quarter; in a re-arc archive with 150 pairs a task, different tasks share at most 7 %.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from raylab.arc.data.tasks import COLOURS, MAX_SIDE, Indices, PairStore, Task, store_pairs

T = TypeVar("T", int, str)

TWINS = (
    frozenset({"070dd51e", "40853293"}),
    frozenset({"50a16a69", "caa06a1f"}),
    frozenset({"55783887", "db695cfb"}),
)
"""Ids under which ARC-AGI-1 and 2 publish one task. re-arc generates other pairs for each of the
two, so that only the ids tell that they are one task."""

CHUNK_PAIRS = 64
"""Pairs that are fingerprinted at once, so that their arrays fit into a processor's cache."""
WEIGHT_BITS = 21
"""Bits of a weight. A double holds sums of products of two weights over a whole grid exactly."""
WEIGHTS = (
    np.random.PCG64(np.random.SeedSequence(0)).random_raw((2, 2, MAX_SIDE))
    >> np.uint64(64 - WEIGHT_BITS)
).astype(np.float64)
"""Two random functions of a coordinate, each for inputs and outputs, (2, 2, 30). The raw numbers of
PCG64 are the same on every machine and in every version of numpy."""


def fingerprints(store: PairStore) -> Indices:
    """Returns a 64-bit number for each pair, equal for its 8 symmetries and all recolourings.

    Other pairs have other numbers, up to hash collisions. The cells of a colour are hashed by their
    sum of f(row) g(column), where f and g are random functions. The sums are then combined over the
    colours and over the 8 symmetries, in a way that does not depend on their order.
    """
    ends = np.append(store.offsets, len(store.cells))
    cuts = [*range(0, len(store.sizes), 2 * CHUNK_PAIRS), len(store.sizes)]
    numbers: list[Indices] = []
    for first, last in pairwise(cuts):
        cells, sizes = store.cells[ends[first] : ends[last]], store.sizes[first:last]
        lengths = sizes.prod(axis=1)
        grid = np.repeat(np.arange(len(sizes)), lengths)
        height, width = sizes[grid].T
        row, col = np.divmod(np.arange(len(cells)) - (lengths.cumsum() - lengths)[grid], width)
        side, colour = grid % 2, grid // 2 * COLOURS + cells
        total = np.zeros(len(sizes) // 2, np.uint64)
        for rows, cols, f in product((row, height - 1 - row), (col, width - 1 - col), (0, 1)):
            weights = WEIGHTS[side, f, rows] * WEIGHTS[side, 1 - f, cols]
            # Sums of whole numbers below 2^53 are exact, so their order does not matter.
            sums = np.bincount(colour, weights, COLOURS * len(total)).reshape(-1, COLOURS)
            total += _mix(_mix(sums.astype(np.uint64)).sum(axis=1))
        numbers.append(_mix(total).astype(np.int64))
    return np.concatenate(numbers)


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scrambles 64-bit numbers by the permutation of SplitMix64."""
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
    contents: Mapping[str, Collection[int]], equal: Iterable[Set[str]] = ()
) -> dict[str, str]:
    """Returns the first id, in the order of the alphabet, of the same task for each id.

    Two ids are the same task if `TWINS` or a class of `equal` ids joins them, or if they share half
    of the distinct pairs of the smaller one. The relation is transitive. `contents` are the
    fingerprints of the pairs of each task.
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
    """Returns the least item of the connected component of each item."""
    least = {item: item for item in items}

    def root(item: T) -> T:
        while (above := least[item]) != item:
            # Each step halves the path, so that long chains stay cheap.
            least[item] = item = least[above]
        return item

    for two in links:
        low, high = sorted(map(root, two))
        least[high] = low
    return {item: root(item) for item in least}


@dataclass(frozen=True)
class TaskSet:
    """Tasks by id, and by the fingerprints of their pairs."""

    ids: frozenset[str] = frozenset()
    pairs: frozenset[int] = frozenset()

    def __or__(self, other: "TaskSet") -> "TaskSet":
        return TaskSet(self.ids | other.ids, self.pairs | other.pairs)

    def holds(self, task: str, pairs: Collection[int]) -> bool:
        """Returns True if one of the task's ids, or half of its `pairs`, is among these."""
        distinct = {*pairs}
        shared = distinct & self.pairs
        return not self.ids.isdisjoint(published_ids(task)) or 0 < len(distinct) <= 2 * len(shared)


@dataclass(frozen=True)
class Seen:
    """The tasks that trained a model, and those that chose its epoch.

    Figures on them say nothing about new tasks.
    """

    trained_on: TaskSet
    chosen_on: TaskSet = TaskSet()

    def __or__(self, other: "Seen") -> "Seen":
        return Seen(self.trained_on | other.trained_on, self.chosen_on | other.chosen_on)

    def tasks(self, *, chosen: bool = True) -> TaskSet:
        """Returns all tasks that were seen, with those that chose the epoch if `chosen`."""
        return self.trained_on | self.chosen_on if chosen else self.trained_on
