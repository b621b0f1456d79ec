"""The split of a task set: what is trained on, what chooses the checkpoint, what is reported.

Validation pairs choose epochs, settings and the end of a training; test pairs are only ever
reported on. A figure on pairs that also chose would be too good, so there are three sides, except
where `data.select_on_test` asks for the published protocol, which has two.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeVar

import msgspec
import numpy as np

from raylab.arc.data.content import join, same_tasks
from raylab.arc.data.documents import read_json
from raylab.arc.data.store import Indices, PairStore
from raylab.arc.data.tasks import Task
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place

logger = logging.getLogger(__name__)

SIDES = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)
LEFT_OUT = 3
"""The side of pairs that are on none, because another side has an equal one."""
T = TypeVar("T", int, str)


@dataclass(frozen=True)
class Split:
    """Sorted task ids of each side, none empty.

    The sides are disjoint, except that `val` and `test` are the same with `data.select_on_test`.
    """

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A split file; of two lists the second is the test side."""

    train: list[str]
    val: list[str]
    test: list[str] | None = None

    @property
    def sides(self) -> dict[str, set[str]]:
        lists = {"train": self.train, "val": self.val, "test": self.test}
        return {side: {*ids} for side, ids in lists.items() if ids is not None}


# By task.


def split_tasks(
    tasks: Sequence[Task],
    groups: Mapping[str, str],
    config: DataConfig,
    same: Mapping[str, str] | None = None,
) -> Split:
    """Splits `tasks` by the file `config.split`, or else by `config.split_seed`.

    A split file must hold every loaded task, on one side. Ids of tasks that are not loaded are
    ignored, with a logged warning if neither `tasks` nor `every` narrowed the task set. A file of
    three lists is followed. Of two lists, `train` and `val` as published, the second is the test
    side, and validation tasks are drawn from the first.

    Without a file, `round(n * test_fraction)` tasks are drawn for the test, but at least one, and
    then `round(m * val_fraction)` of the m others for validation, but at least one. Each draw is
    stratified by group, and within a group by terciles of output size (mean cells of a
    task's outputs, ranked over the tasks drawn from). Each group, and each stratum, gets its exact
    share rounded down or up. The split does not depend on the order of the tasks.

    Ids that are the same task stay on one side: a draw takes or leaves them together, as the first
    of them, and a file that parts them is followed, with a logged warning.

    With `config.select_on_test` the test tasks are the validation tasks too.

    Args:
        tasks: tasks with distinct ids.
        groups: the group of each of them, by id.
        config: the split file, or fractions and seed of the split.
        same: the first id under which the same task is there, by id; by default no two are.

    Raises:
        DataError: the file is malformed, lacks a loaded task or has one on two sides; a side
            would be empty.
    """
    leader = same or {task.id: task.id for task in tasks}
    if config.split is not None:
        sides = _read_sides(config.split, tasks, config, leader)
        if "test" in sides:
            return Split(*(tuple(sorted(sides[side])) for side in SIDES))
        test = sides["val"]
    else:
        needed, distinct = sides_needed(config), len({*leader.values()})
        if distinct < needed:
            names = "training and test" if needed == 2 else "training, validation and test"
            raise DataError(
                f"a split into {names} needs {needed} tasks or more, not {distinct}: name more in "
                "data.tasks or lower data.every, or name tasks for each side in a split file "
                "(data.split=FILE)"
            )
        test = _draw_tasks(tasks, groups, leader, config, config.test_fraction, needed - 1)
    rest = [task for task in tasks if task.id not in test]
    val = test
    if not config.select_on_test:
        val = _draw_tasks(rest, groups, leader, config, config.val_fraction, 1, "validation")
    train = {task.id for task in rest} - val
    return Split(*(tuple(sorted(side)) for side in (train, val, test)))


def _draw_tasks(
    tasks: Sequence[Task],
    groups: Mapping[str, str],
    leader: Mapping[str, str],
    config: DataConfig,
    fraction: float,
    left: int,
    start: str = "start",
) -> set[str]:
    """Returns the ids of a share of `tasks`; the ids of one task go with the first of them."""
    first: dict[str, Task] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        first.setdefault(leader[task.id], task)
    tercile = _size_terciles([*first.values()])
    stratum = {name: (groups[task.id], tercile[task.id]) for name, task in first.items()}
    names = sorted(first, key=lambda name: number_of(config.split_seed, first[name].id))
    count = share(len(names), fraction, left)
    chosen = draw(sorted(names, key=stratum.__getitem__), count, config.split_seed, start)
    return {task.id for task in tasks if leader[task.id] in chosen}


def _size_terciles(tasks: Sequence[Task]) -> dict[str, int]:
    size = {task.id: np.mean([pair.output.size for pair in task.pairs]) for task in tasks}
    ranked = sorted(size, key=lambda id_: (size[id_], id_))
    return {id_: 3 * rank // len(ranked) for rank, id_ in enumerate(ranked)}


def _read_sides(
    path: str, tasks: Sequence[Task], config: DataConfig, leader: Mapping[str, str]
) -> dict[str, set[str]]:
    """Returns the loaded tasks of each list of a split file."""
    try:
        listed = msgspec.convert(read_json(Place.at(path)), _File).sides
    except msgspec.ValidationError as error:
        raise DataError(
            f'{path}: {error}; expected {{"train": [ids], "val": [ids]}}, or with "test": [ids] '
            "as well"
        ) from None
    loaded = {task.id for task in tasks}
    _check_sides(path, listed, loaded)
    unused = sorted(set[str]().union(*listed.values()) - loaded)
    if unused and config.tasks is None and config.every == 1:
        logger.warning(
            "%s: %d of its task ids are not loaded: %s", path, len(unused), _some(unused)
        )
    sides = {side: ids & loaded for side, ids in listed.items()}
    _warn_of_parted_tasks(path, sides, leader)
    if "test" in sides and config.select_on_test:
        raise DataError(
            f"{path} names validation tasks of its own, so data.select_on_test=true has no "
            "use: leave it out, or give a split file of two lists, train and val"
        )
    lonely = len({leader[id_] for id_ in sides["train"]}) == 1
    if lonely and "test" not in sides and not config.select_on_test:
        raise DataError(
            f"{path}: only {min(sides['train'])} of the loaded tasks is in train, so none is left "
            "to validate on: load more (data.tasks, data.every), give a split file of three lists, "
            "train, val and test, or choose on the test tasks (data.select_on_test=true)"
        )
    return sides


def _check_sides(path: str, sides: Mapping[str, set[str]], loaded: Collection[str]) -> None:
    """Checks that every loaded task is on one side, and that none is empty."""
    names = list(sides)
    for index, side in enumerate(names):
        for other in names[:index]:
            if both := sorted(sides[side] & sides[other]):
                raise DataError(f"{path}: in both {other} and {side}: {_some(both)}")
    if missing := sorted(set(loaded).difference(*sides.values())):
        raise DataError(
            f"{path}: neither in {' nor in '.join(names)}: {_some(missing)}; add them, or keep "
            "them out with data.tasks"
        )
    for side, ids in sides.items():
        if ids.isdisjoint(loaded):
            raise DataError(
                f"{path}: none of the {len(loaded)} loaded tasks is in {side}: load some that are "
                "(data.tasks, data.every), or leave data.split out to draw a split"
            )


def _warn_of_parted_tasks(
    path: str, sides: Mapping[str, Iterable[str]], leader: Mapping[str, str]
) -> None:
    places: dict[str, dict[str, str]] = {}
    for side, ids in sides.items():
        for id_ in ids:
            places.setdefault(leader[id_], {})[id_] = side
    for _, side_of in sorted(places.items()):
        if len({*side_of.values()}) > 1:
            parted = ", ".join(f"{id_} ({side})" for id_, side in sorted(side_of.items()))
            logger.warning("%s: the same task stands on several sides: %s", path, parted)


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return ", ".join(ids[:5]) + more


# By pair.


def sides_by_task(
    tasks: Sequence[Task],
    groups: Mapping[str, str],
    store: PairStore,
    contents: Indices,
    config: DataConfig,
    equal: Iterable[frozenset[str]] = (),
) -> Indices:
    """Returns the side of each pair of the store, of different tasks on each side.

    In a drawn split, the sides share no pair either, not even redrawn: a pair that equals one of
    the test, or a training pair that equals one of validation, is left out, with a logged warning.
    A split file is followed.

    Args:
        tasks: the tasks of the store.
        groups: their groups, by id.
        store: their pairs.
        contents: (pairs,) the fingerprints of the pairs.
        config: the split file, or fractions and seed of the split.
        equal: ids that are the same task, besides those that their pairs tell.

    Raises:
        DataError: as `split_tasks`; or a side has no other pairs than another.
    """
    ends = np.bincount(store.task_of, minlength=len(tasks)).cumsum()[:-1]
    parts = np.split(contents, ends)
    own = {id_: part.tolist() for id_, part in zip(store.task_ids, parts, strict=True)}
    split = split_tasks(tasks, groups, config, same_tasks(own, equal))
    place = dict.fromkeys(split.train, TRAIN) | dict.fromkeys(split.val, VAL)
    place |= dict.fromkeys(split.test, TEST)
    sides = np.array([place[task.id] for task in tasks])[store.task_of]
    if config.split is not None:
        return sides
    return _without_equal(sides, contents)


def _without_equal(sides: Indices, contents: Indices) -> Indices:
    """Returns the sides without the pairs that equal one of a later side."""
    before = sides
    for side in (VAL, TRAIN):
        later = np.isin(contents, contents[(sides > side) & (sides != LEFT_OUT)])
        sides = np.where((sides == side) & later, LEFT_OUT, sides)
    if emptied := {*before.tolist()} - {*sides.tolist()}:
        raise DataError(
            f"all {SIDES[min(emptied)]} pairs are equal to pairs of another side: name other tasks "
            "in data.tasks, or split by pair (data.split_by=pair)"
        )
    if lost := int((sides == LEFT_OUT).sum()):
        logger.warning("%d pairs are left out: they are equal to pairs of another side", lost)
    return sides


def split_pairs(
    store: PairStore,
    contents: Indices,
    config: DataConfig,
    held_out: Collection[str] = frozenset(),
) -> Indices:
    """Returns the side of each pair of the store, drawn within every task by `config.split_seed`.

    Of the n distinct pairs of a task `round(n * test_fraction)` are drawn for the test, but at
    least one, and `round(m * val_fraction)` of the m others for validation, but at least one; with
    `config.select_on_test` none. Pairs of a task with equal inputs, and pairs of any tasks with
    equal content, count as one and stay on one side. The split does not depend on the order of
    tasks or pairs.

    With tasks that are held out, these are the test, and of each other task only validation pairs
    are drawn. Its pairs that count as one with a held-out one are left out, with a logged warning.

    Args:
        store: the pairs of tasks with distinct ids.
        contents: (pairs,) their fingerprints.
        config: fractions and seed of the split.
        held_out: ids of tasks to test as a whole.

    Raises:
        DataError: a task has too few distinct pairs.
    """
    numbers, firsts = contents.tolist(), contents[store.input_of].tolist()
    links = [(a, b) for a, b in zip(numbers, firsts, strict=True) if a != b]
    joined = join({one for two in links for one in two}, links)
    classes = [joined.get(number, number) for number in numbers]
    own: dict[str, set[int]] = {id_: set() for id_ in store.task_ids}
    for task, number in zip(store.task_of.tolist(), classes, strict=True):
        own[store.task_ids[task]].add(number)
    reserved = set[int]().union(*(own[id_] for id_ in held_out))
    side_of = dict.fromkeys(reserved, TEST)
    for task in sorted(own.keys() - held_out):
        _draw_sides(task, own[task] - reserved, side_of, config, tested=not held_out)
    sides = np.array([side_of[number] for number in classes])
    if held_out:
        names = np.array(store.task_ids)[store.task_of]
        equal = (sides == TEST) & ~np.isin(names, sorted(held_out))
        sides = np.where(equal, LEFT_OUT, sides)
        if lost := int(equal.sum()):
            logger.warning("%d pairs are left out: they are equal to pairs of held-out tasks", lost)
    return sides


def _draw_sides(
    task: str, own: set[int], side_of: dict[int, int], config: DataConfig, *, tested: bool
) -> None:
    """Puts the classes of a task on sides, except those that another task has put there."""
    sizes = _side_sizes(len(own), config, tested=tested)
    if sizes is None:
        needed = sides_needed(config, tested=tested)
        raise DataError(
            f"task {task} has {len(own)} distinct pairs, and its split needs {needed} or "
            "more of every task: raise data.pairs_per_task, or leave the task out of data.tasks"
        )
    for side in (TEST, VAL, TRAIN):
        free = sorted(own - side_of.keys(), key=lambda one: number_of(config.split_seed, str(one)))
        lacking = sizes[side] - sum(side_of.get(one) == side for one in own)
        count = len(free) if side == TRAIN else min(max(lacking, 0), len(free))
        side_of |= dict.fromkeys(draw(free, count, config.split_seed, task), side)
    filled = {side_of[one] for one in own}
    if empty := [SIDES[side] for side, size in enumerate(sizes) if size and side not in filled]:
        raise DataError(
            f"task {task} shares so many pairs with other tasks that none is left for "
            f"{' and '.join(empty)}: leave it out of data.tasks"
        )


def sides_needed(config: DataConfig, *, tested: bool = True) -> int:
    """Returns the number of sides that must have something: training, validation and test."""
    return 1 + (not config.select_on_test) + tested


def _side_sizes(n: int, config: DataConfig, *, tested: bool) -> tuple[int, int, int] | None:
    """Returns how many of `n` go to training, validation and test; None if `n` is too few."""
    needed = sides_needed(config, tested=tested)
    if n < needed:
        return None
    test = share(n, config.test_fraction, needed - 1) if tested else 0
    val = 0 if config.select_on_test else share(n - test, config.val_fraction, 1)
    return n - test - val, val, test


# The draw.


def draw(ordered: Sequence[T], count: int, seed: int, start: str) -> frozenset[T]:
    """Returns `count` of the `ordered` at even steps, the first by `seed` and `start`.

    Any run of m neighbours gives m * count / n, rounded down or up: where the order is by stratum
    and random in each, every stratum gives its share.
    """
    n = len(ordered)
    if not count:
        return frozenset()
    steps = (np.arange(n + 1) * count + number_of(seed, start) % n) // n
    return frozenset(compress(ordered, np.diff(steps) == 1))


def share(n: int, fraction: float, left: int) -> int:
    """Returns a share of `n`, rounded, at least one; leaves at least `left`."""
    return min(max(round(n * fraction), 1), n - left)


def number_of(seed: int, name: str) -> int:
    """Returns a uniform 64-bit number, the same on every machine and in every version."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8])
