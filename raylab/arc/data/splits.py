"""The split of a task set into training and validation tasks, never by pair."""

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


@dataclass(frozen=True)
class Split:
    """Sorted task ids; the two sides are disjoint and not empty."""

    train: tuple[str, ...]
    val: tuple[str, ...]


def split_tasks(tasks: Sequence[Task], groups: Mapping[str, str], config: DataConfig) -> Split:
    """Splits `tasks` by the file `config.split`, or else by `config.split_seed`.

    A split file `{"train": [ids], "val": [ids]}` must hold every loaded task, on one side. Ids of
    tasks that are not loaded are ignored, with a logged warning if neither `tasks` nor `every`
    narrowed the task set.

    Without a file, `round(n * val_fraction)` tasks are drawn for validation, but at least one per
    side. The strata are groups, and within a group the terciles of output size (mean cells
    of a task's outputs, ranked over all tasks). Each group, and each stratum, gets its exact
    share rounded down or up. The split does not depend on the order of the tasks.

    Args:
        tasks: tasks with distinct ids.
        groups: the group of each of them, by id.
        config: the split file, or fraction and seed of the split.

    Raises:
        DataError: the file is malformed, lacks a loaded task or has one on both sides; a side
            would be empty.
    """
    if config.split is not None:
        split, unused = _split_by_file(config.split, sorted(task.id for task in tasks))
        if unused and config.tasks is None and config.every == 1:
            logger.warning(
                "%s: %d of its task ids are not loaded: %s",
                config.split,
                len(unused),
                _some(unused),
            )
        return split
    if len(tasks) < 2:
        raise DataError(
            f"a split into training and validation needs two tasks or more, not {len(tasks)}: name "
            "more in data.tasks or lower data.every; a split file (data.split=FILE) can then say "
            "which of them validate"
        )
    return _split_by_seed(tasks, groups, config)


def _split_by_file(path: str, loaded: list[str]) -> tuple[Split, list[str]]:
    """Returns the split, and the ids in the file that are not loaded."""
    sides = _read_split(path)
    both = sorted(sides["train"] & sides["val"])
    if both:
        raise DataError(f"{path}: in both train and val: {_some(both)}")
    missing = [id_ for id_ in loaded if id_ not in sides["train"] | sides["val"]]
    if missing:
        raise DataError(
            f"{path}: neither in train nor in val: {_some(missing)}; add them, or keep them out "
            "with data.tasks"
        )
    split = Split(
        train=tuple(id_ for id_ in loaded if id_ in sides["train"]),
        val=tuple(id_ for id_ in loaded if id_ in sides["val"]),
    )
    for side, ids in (("train", split.train), ("val", split.val)):
        if not ids:
            raise DataError(
                f"{path}: none of the {len(loaded)} loaded tasks is in {side}: load some that are "
                "(data.tasks, data.every), or leave data.split out to draw a split"
            )
    return split, sorted((sides["train"] | sides["val"]).difference(loaded))


def _read_split(path: str) -> dict[str, set[str]]:
    content = read_json(Place.at(path))
    if not isinstance(content, dict) or set(cast(dict[str, object], content)) != {"train", "val"}:
        raise DataError(f'{path}: expected an object {{"train": [ids], "val": [ids]}}')
    sides: dict[str, set[str]] = {}
    for side, ids in cast(dict[str, object], content).items():
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


def _split_by_seed(tasks: Sequence[Task], groups: Mapping[str, str], config: DataConfig) -> Split:
    tercile = _size_terciles(tasks)

    def place(task: Task) -> tuple[str, int, int]:
        return groups[task.id], tercile[task.id], _draw(config.split_seed, task.id)

    n = len(tasks)
    n_val = min(max(round(n * config.val_fraction), 1), n - 1)
    chosen = _systematic_sample(n, n_val, _draw(config.split_seed, "start") % n)
    sides = list(zip(sorted(tasks, key=place), chosen, strict=True))
    return Split(
        train=tuple(sorted(task.id for task, is_val in sides if not is_val)),
        val=tuple(sorted(task.id for task, is_val in sides if is_val)),
    )


def _draw(seed: int, name: str) -> int:
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
