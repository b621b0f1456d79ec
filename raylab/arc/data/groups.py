"""Groups of tasks, by a published taxonomy or computed from the grids."""

import logging
from collections.abc import Iterable

import msgspec
import numpy as np

from raylab.arc.data.documents import faults_in, read_json
from raylab.arc.data.tasks import COLOURS, Grid, Task
from raylab.errors import DataError
from raylab.files import Place

logger = logging.getLogger(__name__)

UNLISTED = "unlisted"


def group_tasks(tasks: Iterable[Task], taxonomy: str | None = None) -> dict[str, str]:
    """Returns the group of each task, by task id.

    With a `taxonomy`, the path or URI of a JSON file `{task id: group}`, tasks that it does not
    list get the group `unlisted`, and a logged warning counts them. Without one the group is that
    of the source, and if it knows none `{shape_relation}/{palette_relation}`, such as `same/kept`.

    Raises:
        DataError: the taxonomy is missing or malformed.
    """
    tasks = tuple(tasks)
    if taxonomy is None:
        return {task.id: task.group or _computed_group(task) for task in tasks}
    listed = _read_taxonomy(taxonomy)
    unlisted = [task.id for task in tasks if task.id not in listed]
    if unlisted:
        logger.warning(
            "%s: %d of %d tasks are not listed, such as %s: their group is %s",
            taxonomy,
            len(unlisted),
            len(tasks),
            ", ".join(unlisted[:3]),
            UNLISTED,
        )
    return {task.id: listed.get(task.id, UNLISTED) for task in tasks}


def _computed_group(task: Task) -> str:
    return f"{shape_relation(task)}/{palette_relation(task)}"


def shape_relation(task: Task) -> str:
    """Returns the relation of the output shapes to the input shapes, over all pairs of a task.

    - `same`: every output has the shape of its input;
    - `smaller`: every output has another shape than its input, with no more rows or columns;
    - `larger`: every output has another shape than its input, with no fewer rows or columns;
    - `varying`: anything else.
    """
    sources = np.array([pair.input.shape for pair in task.pairs])
    targets = np.array([pair.output.shape for pair in task.pairs])
    differs = (targets != sources).any(axis=1)
    if not differs.any():
        return "same"
    if differs.all() and (targets <= sources).all():
        return "smaller"
    if differs.all() and (targets >= sources).all():
        return "larger"
    return "varying"


def palette_relation(task: Task) -> str:
    """Returns the relation of the output colours to the input colours, over all pairs of a task.

    - `new`: some output has a colour that its input lacks;
    - `kept`: every output has exactly the colours of its input;
    - `reduced`: anything else, so no output has a new colour and some output lacks one.
    """
    sources = np.array([_colours(pair.input) for pair in task.pairs])
    targets = np.array([_colours(pair.output) for pair in task.pairs])
    if (targets & ~sources).any():
        return "new"
    return "kept" if (targets == sources).all() else "reduced"


def _colours(grid: Grid) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.bincount(grid.ravel(), minlength=COLOURS) > 0


def _read_taxonomy(path: str) -> dict[str, str]:
    content = read_json(Place.at(path))
    with faults_in(path, "{task id: group}"):
        listed = msgspec.convert(content, dict[str, str])
    if unnamed := [task for task, group in listed.items() if not group]:
        raise DataError(f"{path}: task {unnamed[0]}: the group is an empty string")
    return listed
