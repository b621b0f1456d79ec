"""The split by pair: disjoint pairs of the same tasks on each side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from raylab.arc.data.content import Contents
from raylab.arc.data.splits import SIDES, number_of, side_sizes
from raylab.arc.data.tasks import Pair, Task
from raylab.config.arc import DataConfig
from raylab.errors import DataError


@dataclass(frozen=True)
class PairSplit:
    """Tasks whose demonstrations are their training pairs, and whose questions are all others.

    Attributes:
        tasks: The tasks; their pairs are in the order of the sides.
        counts: Training, validation and test pairs of each task, each at least 1. With
            `data.select_on_test` there are no validation pairs: the test pairs validate.
    """

    tasks: tuple[Task, ...]
    counts: tuple[tuple[int, int, int], ...]


def split_pairs(tasks: Sequence[Task], contents: Contents, config: DataConfig) -> PairSplit:
    """Splits the pairs of every task by `config.split_seed`.

    Of the n distinct pairs of a task `round(n * test_fraction)` are drawn for the test, but at
    least one, and `round(m * val_fraction)` of the m others for validation, but at least one. Pairs
    of a task with equal inputs, and pairs of any tasks with equal content (`content.fingerprint`),
    count as one and stay on one side. The split does not depend on the order of tasks or pairs.

    Args:
        tasks: tasks with distinct ids.
        contents: the fingerprints of their pairs.
        config: fractions and seed of the split.

    Raises:
        DataError: a task has too few distinct pairs.
    """
    classes = _classes(tasks, contents)
    side_of: dict[int, str] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        own = sorted({*classes[task.id]}, key=lambda one: number_of(config.split_seed, str(one)))
        _draw_sides(task.id, own, side_of, config)
    split = [_parted(task, [side_of[one] for one in classes[task.id]]) for task in tasks]
    return PairSplit(tuple(task for task, _ in split), tuple(counts for _, counts in split))


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


def _draw_sides(task: str, own: list[int], side_of: dict[int, str], config: DataConfig) -> None:
    """Puts the classes of a task on sides, except those that another task has put there."""
    sizes = side_sizes(len(own), config)
    if sizes is None:
        needed = 2 if config.select_on_test else 3
        raise DataError(
            f"task {task} has {len(own)} distinct pairs, and a split by pair needs {needed} or "
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


def _parted(task: Task, sides: Sequence[str]) -> tuple[Task, tuple[int, int, int]]:
    parts: dict[str, tuple[Pair, ...]] = {
        side: tuple(p for p, of in zip(task.pairs, sides, strict=True) if of == side)
        for side in SIDES
    }
    train, val, test = (parts[side] for side in SIDES)
    parted = replace(task, demonstrations=train, questions=(*val, *test))
    return parted, (len(train), len(val), len(test))
