"""The split of a task set: what is trained on, what chooses the checkpoint, what is reported.

Validation tasks choose epochs, settings and the end of a training; test tasks are only ever
reported on. A figure on tasks that also chose would be too good, so there are three sides, except
where `data.select_on_test` asks for the published protocol, which has two.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from raylab.arc.data.documents import read_json
from raylab.arc.data.tasks import Task
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place

logger = logging.getLogger(__name__)

SIDES = ("train", "val", "test")


@dataclass(frozen=True)
class Split:
    """Sorted task ids of each side, none empty.

    The sides are disjoint, except that `val` and `test` are the same with `data.select_on_test`.
    """

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]


def split_tasks(
    tasks: Sequence[Task],
    groups: Mapping[str, str],
    config: DataConfig,
    same: Iterable[frozenset[str]] = (),
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
        same: disjoint classes of ids that are the same task.

    Raises:
        DataError: the file is malformed, lacks a loaded task or has one on two sides; a side
            would be empty.
    """
    leader = _leaders(tasks, same)
    if config.split is not None:
        return _split_by_file(config.split, tasks, groups, config, leader)
    needed = sides_needed(config)
    distinct = len({*leader.values()})
    if distinct < needed:
        sides = "training and test" if config.select_on_test else "training, validation and test"
        raise DataError(
            f"a split into {sides} needs {needed} tasks or more, not {distinct}: name more in "
            "data.tasks or lower data.every, or name tasks for each side in a split file "
            "(data.split=FILE)"
        )
    lottery = _Lottery(groups, leader, config.split_seed)
    test = lottery.draw(tasks, config.test_fraction, start="start", left=needed - 1)
    rest = [task for task in tasks if task.id not in test]
    return _with_validation(rest, test, config, lottery)


def _leaders(tasks: Sequence[Task], same: Iterable[frozenset[str]]) -> dict[str, str]:
    """Returns for the id of each task the first id under which the same task is loaded."""
    leader = {task.id: task.id for task in tasks}
    for ids in same:
        loaded = ids & leader.keys()
        leader |= dict.fromkeys(loaded, min(loaded, default=""))
    return leader


def _split_by_file(
    path: str,
    tasks: Sequence[Task],
    groups: Mapping[str, str],
    config: DataConfig,
    leader: Mapping[str, str],
) -> Split:
    sides = _read_split(path)
    loaded = {task.id: task for task in sorted(tasks, key=lambda task: task.id)}
    _check_sides(path, sides, loaded)
    if unused := sorted(set[str]().union(*sides.values()) - loaded.keys()):
        if config.tasks is None and config.every == 1:
            logger.warning(
                "%s: %d of its task ids are not loaded: %s", path, len(unused), _some(unused)
            )
    kept = {side: tuple(id_ for id_ in loaded if id_ in ids) for side, ids in sides.items()}
    _warn_of_parted_tasks(path, kept, leader)
    if len(kept) == len(SIDES):
        if config.select_on_test:
            raise DataError(
                f"{path} names validation tasks of its own, so data.select_on_test=true has no "
                "use: leave it out, or give a split file of two lists, train and val"
            )
        return Split(**kept)
    rest = [loaded[id_] for id_ in kept["train"]]
    own = _leaders(rest, _classes(leader))
    if len({*own.values()}) < 2 and not config.select_on_test:
        raise DataError(
            f"{path}: only {rest[0].id} of the loaded tasks is in train, so none is left to "
            "validate on: load more (data.tasks, data.every), give a split file of three lists, "
            "train, val and test, or choose on the test tasks (data.select_on_test=true)"
        )
    lottery = _Lottery(groups, own, config.split_seed)
    return _with_validation(rest, frozenset(kept["val"]), config, lottery)


def _classes(leader: Mapping[str, str]) -> list[frozenset[str]]:
    """Returns the classes of ids with one leader."""
    classes: defaultdict[str, set[str]] = defaultdict(set)
    for id_, first in leader.items():
        classes[first].add(id_)
    return [frozenset(ids) for ids in classes.values()]


def _warn_of_parted_tasks(
    path: str, kept: Mapping[str, Sequence[str]], leader: Mapping[str, str]
) -> None:
    side_of = {id_: side for side, ids in kept.items() for id_ in ids}
    for ids in _classes(leader):
        if len({side_of[id_] for id_ in ids}) > 1:
            parted = ", ".join(f"{id_} ({side_of[id_]})" for id_ in sorted(ids))
            logger.warning("%s: the same task stands on several sides: %s", path, parted)


@dataclass(frozen=True)
class _Lottery:
    """The stratified draws of a split; only leaders are drawn, the others go with theirs."""

    groups: Mapping[str, str]
    leader: Mapping[str, str]
    seed: int

    def draw(
        self, tasks: Sequence[Task], fraction: float, *, start: str, left: int
    ) -> frozenset[str]:
        """Returns the ids of a share of `tasks`, at least one; leaves at least `left`."""
        leaders = [task for task in tasks if self.leader[task.id] == task.id]
        tercile = _size_terciles(leaders)

        def place(task: Task) -> tuple[str, int, int]:
            return self.groups[task.id], tercile[task.id], number_of(self.seed, task.id)

        n = len(leaders)
        count = share(n, fraction, left)
        chosen = _systematic_sample(n, count, number_of(self.seed, start) % n)
        ordered = sorted(leaders, key=place)
        drawn = {task.id for task, is_drawn in zip(ordered, chosen, strict=True) if is_drawn}
        return frozenset(task.id for task in tasks if self.leader[task.id] in drawn)


def _with_validation(
    rest: Sequence[Task], test: frozenset[str], config: DataConfig, lottery: _Lottery
) -> Split:
    """Returns the split into `test` and `rest`, of which validation tasks are drawn if needed."""
    val = test
    if not config.select_on_test:
        val = lottery.draw(rest, config.val_fraction, start="validation", left=1)
    train = {task.id for task in rest} - val
    return Split(*(tuple(sorted(side)) for side in (train, val, test)))


def _check_sides(path: str, sides: Mapping[str, set[str]], loaded: Mapping[str, Task]) -> None:
    """Checks that every loaded task is on one side, and that none is empty."""
    names = list(sides)
    for index, side in enumerate(names):
        for other in names[:index]:
            if both := sorted(sides[side] & sides[other]):
                raise DataError(f"{path}: in both {other} and {side}: {_some(both)}")
    missing = [id_ for id_ in loaded if not any(id_ in ids for ids in sides.values())]
    if missing:
        raise DataError(
            f"{path}: neither in {' nor in '.join(names)}: {_some(missing)}; add them, or keep "
            "them out with data.tasks"
        )
    for side, ids in sides.items():
        if not ids & loaded.keys():
            raise DataError(
                f"{path}: none of the {len(loaded)} loaded tasks is in {side}: load some that are "
                "(data.tasks, data.every), or leave data.split out to draw a split"
            )


def _read_split(path: str) -> dict[str, set[str]]:
    """Returns the lists of a split file by side, in the order of `SIDES`; `test` may be absent."""
    content = read_json(Place.at(path))
    known = ({*SIDES[:2]}, {*SIDES})
    if not isinstance(content, dict) or set(cast(dict[str, object], content)) not in known:
        raise DataError(
            f'{path}: expected an object {{"train": [ids], "val": [ids]}}, or with "test": [ids] '
            "as well"
        )
    lists = cast(dict[str, object], content)
    sides: dict[str, set[str]] = {}
    for side in (side for side in SIDES if side in lists):
        ids = lists[side]
        if not isinstance(ids, list):
            raise DataError(f"{path}: {side}: expected a list of task ids, found {ids!r:.40}")
        for index, id_ in enumerate(cast(list[object], ids)):
            if not isinstance(id_, str):
                raise DataError(f"{path}: {side}, entry {index}: {id_!r:.40} is no task id")
        sides[side] = set(cast(list[str], ids))
    return sides


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return ", ".join(ids[:5]) + more


def sides_needed(config: DataConfig, *, tested: bool = True) -> int:
    """Returns the number of sides that must have something: training, validation and test."""
    return 1 + (not config.select_on_test) + tested


def side_sizes(n: int, config: DataConfig, *, tested: bool = True) -> tuple[int, int, int] | None:
    """Returns how many of `n` go to training, validation and test; None if `n` is too few.

    With `config.select_on_test` none go to validation, and without `tested` none to the test.
    """
    needed = sides_needed(config, tested=tested)
    if n < needed:
        return None
    test = share(n, config.test_fraction, needed - 1) if tested else 0
    val = 0 if config.select_on_test else share(n - test, config.val_fraction, 1)
    return n - test - val, val, test


def share(n: int, fraction: float, left: int) -> int:
    """Returns a share of `n`, rounded, at least one; leaves at least `left`."""
    return min(max(round(n * fraction), 1), n - left)


def number_of(seed: int, name: str) -> int:
    """Returns a uniform 64-bit number, the same on every machine and in every version."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8])


def _size_terciles(tasks: Sequence[Task]) -> dict[str, int]:
    size = {task.id: np.mean([pair.output.size for pair in task.pairs]) for task in tasks}
    ranked = sorted(size, key=lambda id_: (size[id_], id_))
    return {id_: 3 * rank // len(ranked) for rank, id_ in enumerate(ranked)}


def _systematic_sample(n: int, k: int, start: int) -> NDArray[np.bool_]:
    """Returns an (n,) bool array with `k` True at even steps; `start` in 0..n-1 places the first.

    Any run of m neighbours holds m * k / n of them, rounded down or up.
    """
    steps = (np.arange(n + 1) * k + start) // n
    return np.diff(steps) == 1
