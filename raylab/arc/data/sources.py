"""The sources of tasks, and loading from them."""

from collections.abc import Callable, Iterable

from raylab.arc.data.arc_json import load_arc_json
from raylab.arc.data.curriculum.source import load_curriculum
from raylab.arc.data.generations import redraw
from raylab.arc.data.packaged import load_packaged
from raylab.arc.data.re_arc import load_re_arc
from raylab.arc.data.tasks import Task
from raylab.config.arc import DataConfig, TaskSource

SOURCES: dict[TaskSource, Callable[[DataConfig], Iterable[Task]]] = {
    TaskSource.ARC_AGI_1: load_packaged,
    TaskSource.ARC_AGI_2: load_packaged,
    TaskSource.ARC_JSON: load_arc_json,
    TaskSource.RE_ARC: load_re_arc,
    TaskSource.CURRICULUM: load_curriculum,
}
"""The loader of each source; it returns the tasks that the configuration keeps, by id."""


def load_tasks(config: DataConfig) -> tuple[Task, ...]:
    """Returns the tasks that `config` names, sorted by id; at least one, each with a demonstration.

    `config.tasks` is applied first, then `every`, `pairs_per_task` and `generation`. Tasks that
    are not kept are neither read nor checked. Two kinds of pairs are left out, and counted in a
    logged warning: test pairs without an output, which cannot be scored, and re-arc
    pairs with a side over 30 (the published generator of `e26a3af2` draws some up to 38).

    Raises:
        DataError: a source or file is missing or unreadable, a grid or its JSON is malformed, an
            id is unknown or occurs twice. The message names file, task, pair, row and column.
    """
    tasks = tuple(SOURCES[config.source](config))
    return tasks if config.generation is None else redraw(tasks, config.generation)
