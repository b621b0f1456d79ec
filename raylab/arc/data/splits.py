"""The split of a task set: what is trained on, what chooses the checkpoint, what is reported.

Validation tasks choose epochs, settings and the end of a training; test tasks are only ever
reported on. A figure on tasks that also chose would be too good, so there are three sides, except
where `data.select_on_test` asks for the published protocol, which has two.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
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


def split_tasks(tasks: Sequence[Task], groups: Mapping[str, str], config: DataConfig) -> Split:
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

    With `config.select_on_test` the test tasks are the validation tasks too.

    Args:
        tasks: tasks with distinct ids.
        groups: the group of each of them, by id.
        config: the split file, or fractions and seed of the split.

    Raises:
        DataError: the file is malformed, lacks a loaded task or has one on two sides; a side
            would be empty.
    """
    if config.split is not None:
        return _split_by_file(config.split, tasks, groups, config)
    needed = 2 if config.select_on_test else 3
    if len(tasks) < needed:
        sides = "training and test" if config.select_on_test else "training, validation and test"
        raise DataError(
            f"a split into {sides} needs {needed} tasks or more, not {len(tasks)}: name more in "
            "data.tasks or lower data.every, or name tasks for each side in a split file "
            "(data.split=FILE)"
        )
    test = _draw(tasks, groups, config.test_fraction, config.split_seed, "start", needed - 1)
    rest = [task for task in tasks if task.id not in test]
    return _with_validation(rest, tuple(sorted(test)), groups, config)


def _split_by_file(
    path: str, tasks: Sequence[Task], groups: Mapping[str, str], config: DataConfig
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
    if len(kept) == len(SIDES):
        if config.select_on_test:
            raise DataError(
                f"{path} names validation tasks of its own, so data.select_on_test=true has no "
                "use: leave it out, or give a split file of two lists, train and val"
            )
        return Split(**kept)
    rest = [loaded[id_] for id_ in kept["train"]]
    if len(rest) < 2 and not config.select_on_test:
        raise DataError(
            f"{path}: only {rest[0].id} of the loaded tasks is in train, so none is left to "
            "validate on: load more (data.tasks, data.every), give a split file of three lists, "
            "train, val and test, or choose on the test tasks (data.select_on_test=true)"
        )
    return _with_validation(rest, kept["val"], groups, config)


def _with_validation(
    rest: Sequence[Task], test: tuple[str, ...], groups: Mapping[str, str], config: DataConfig
) -> Split:
    """Returns the split into `test` and `rest`, of which validation tasks are drawn if needed."""
    if config.select_on_test:
        return Split(tuple(sorted(task.id for task in rest)), test, test)
    val = _draw(rest, groups, config.val_fraction, config.split_seed, "validation", 1)
    train = sorted(task.id for task in rest if task.id not in val)
    return Split(tuple(train), tuple(sorted(val)), test)


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


def _draw(
    tasks: Sequence[Task],
    groups: Mapping[str, str],
    fraction: float,
    seed: int,
    start: str,
    left: int,
) -> frozenset[str]:
    """Returns the ids of a stratified share of `tasks`, at least one; leaves at least `left`."""
    tercile = _size_terciles(tasks)

    def place(task: Task) -> tuple[str, int, int]:
        return groups[task.id], tercile[task.id], _number(seed, task.id)

    n = len(tasks)
    count = min(max(round(n * fraction), 1), n - left)
    chosen = _systematic_sample(n, count, _number(seed, start) % n)
    ordered = sorted(tasks, key=place)
    return frozenset(task.id for task, drawn in zip(ordered, chosen, strict=True) if drawn)


def _number(seed: int, name: str) -> int:
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
