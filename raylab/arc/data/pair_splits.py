"""Splits by pair: disjoint pairs of the same tasks on each side, or tasks held out beside them."""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from raylab.arc.data.content import Contents
from raylab.arc.data.splits import SIDES, number_of, side_sizes, sides_needed
from raylab.arc.data.tasks import Pair, Task
from raylab.config.arc import DataConfig
from raylab.errors import DataError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairSplit:
    """Tasks whose demonstrations are their training pairs, and whose questions are all others.

    Held-out tasks are as they were, with test pairs alone.

    Attributes:
        tasks: The tasks; their pairs are in the order of the sides.
        counts: Training, validation and test pairs of each task, each at least 1, except that with
            `data.select_on_test` there are no validation pairs: the test pairs validate; and
            where tasks are held out, the others have no test pairs.
        contents: The fingerprints of the pairs of each task, by id, in their new order.
    """

    tasks: tuple[Task, ...]
    counts: tuple[tuple[int, int, int], ...]
    contents: Contents


def split_pairs(
    tasks: Sequence[Task],
    contents: Contents,
    config: DataConfig,
    held_out: Collection[str] = frozenset(),
) -> PairSplit:
    """Splits the pairs of every task by `config.split_seed`.

    Of the n distinct pairs of a task `round(n * test_fraction)` are drawn for the test, but at
    least one, and `round(m * val_fraction)` of the m others for validation, but at least one. Pairs
    of a task with equal inputs, and pairs of any tasks with equal content (`content.fingerprint`),
    count as one and stay on one side. The split does not depend on the order of tasks or pairs.

    With tasks that are held out, these are the test, and of each other task only validation pairs
    are drawn. Its pairs that count as one with a held-out one are left out, with a logged warning.

    Args:
        tasks: tasks with distinct ids.
        contents: the fingerprints of their pairs.
        config: fractions and seed of the split.
        held_out: ids of tasks to test as a whole.

    Raises:
        DataError: a task has too few distinct pairs.
    """
    classes = _classes(tasks, contents)
    reserved = {one for id_ in held_out for one in classes[id_]}
    side_of: dict[int, str] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        if task.id not in held_out:
            free = {*classes[task.id]} - reserved
            own = sorted(free, key=lambda one: number_of(config.split_seed, str(one)))
            _draw_sides(task.id, own, side_of, config, tested=not held_out)
    parted: list[Task] = []
    counts: list[tuple[int, int, int]] = []
    ordered: dict[str, tuple[int, ...]] = {}
    for task in tasks:
        if task.id in held_out:
            parted.append(task)
            counts.append((0, 0, len(task.pairs)))
            ordered[task.id] = contents[task.id]
            continue
        sides = [side_of.get(one) for one in classes[task.id]]
        train, val, test = ([i for i, of in enumerate(sides) if of == side] for side in SIDES)
        pairs = task.pairs
        shown, asked = _at(train, pairs), _at([*val, *test], pairs)
        parted.append(replace(task, demonstrations=shown, questions=asked))
        counts.append((len(train), len(val), len(test)))
        ordered[task.id] = tuple(contents[task.id][i] for i in (*train, *val, *test))
    if lost := sum(len(task.pairs) for task in tasks) - sum(map(sum, counts)):
        logger.warning("%d pairs are left out: they are equal to pairs of held-out tasks", lost)
    return PairSplit(tuple(parted), tuple(counts), ordered)


def _at(places: Iterable[int], pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    return tuple(pairs[i] for i in places)


def _classes(tasks: Iterable[Task], contents: Contents) -> dict[str, list[int]]:
    """Returns the class of each pair by task: the least fingerprint of pairs that count as one."""
    least: dict[int, int] = {}

    def root(fingerprint: int) -> int:
        while (above := least.setdefault(fingerprint, fingerprint)) != fingerprint:
            fingerprint = above
        return fingerprint

    for task in tasks:
        first: dict[tuple[tuple[int, ...], bytes], int] = {}
        for pair, fingerprint in zip(task.pairs, contents[task.id], strict=True):
            same = first.setdefault((pair.input.shape, pair.input.tobytes()), fingerprint)
            low, high = sorted((root(same), root(fingerprint)))
            least[high] = low
    return {task.id: [root(one) for one in contents[task.id]] for task in tasks}


def _draw_sides(
    task: str, own: list[int], side_of: dict[int, str], config: DataConfig, *, tested: bool
) -> None:
    """Puts the classes of a task on sides, except those that another task has put there."""
    sizes = side_sizes(len(own), config, tested=tested)
    if sizes is None:
        needed = sides_needed(config, tested=tested)
        raise DataError(
            f"task {task} has {len(own)} distinct pairs, and its split needs {needed} or "
            "more of every task: raise data.pairs_per_task, or leave the task out of data.tasks"
        )
    free = [one for one in own if one not in side_of]
    for side, wanted in zip(reversed(SIDES), reversed(sizes), strict=True):
        lacking = wanted - sum(side_of.get(one) == side for one in own)
        taken = free if side == SIDES[0] else free[: max(lacking, 0)]
        side_of |= dict.fromkeys(taken, side)
        free = [one for one in free if one not in side_of]
    empty = [
        s
        for s, wanted in zip(SIDES, sizes, strict=True)
        if wanted and s not in {side_of[one] for one in own}
    ]
    if empty:
        raise DataError(
            f"task {task} shares so many pairs with other tasks that none is left for "
            f"{' and '.join(empty)}: leave it out of data.tasks"
        )
