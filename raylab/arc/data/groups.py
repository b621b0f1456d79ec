"""Groups of tasks, by a published taxonomy or computed from the grids."""

import logging
from collections.abc import Iterable
from typing import Annotated

import msgspec
import numpy as np

from raylab.arc.data.documents import faults_in, read_json
from raylab.arc.data.tasks import COLOURS, Task
from raylab.core.files import Place
from raylab.core.printable import join_names

logger = logging.getLogger(__name__)

UNLISTED = "unlisted"


def group_tasks(tasks: Iterable[Task], taxonomy: str | None = None) -> dict[str, str]:
    """Returns the group of each task, by task id.

    A `taxonomy` is the path or URI of a JSON file `{task id: group}`. Tasks that it does not list
    get the group `unlisted`, and a logged warning counts them. Without a taxonomy, the group is
    the one that the source gives, or else `{shape_relation}/{palette_relation}`, such as
    `same/kept`.
    """
    tasks = tuple(tasks)
    if taxonomy is None:
        return {
            task.id: task.group or f"{shape_relation(task)}/{palette_relation(task)}"
            for task in tasks
        }
    content = read_json(Place.at(taxonomy))
    with faults_in(taxonomy, "{task id: group}"):
        listed = msgspec.convert(content, dict[str, Annotated[str, msgspec.Meta(min_length=1)]])
    if unlisted := [task.id for task in tasks if task.id not in listed]:
        counted = f"{len(unlisted)} of {len(tasks)} tasks are not listed: {join_names(unlisted)}"
        logger.warning("%s: %s; their group is %s", taxonomy, counted, UNLISTED)
    return {task.id: listed.get(task.id, UNLISTED) for task in tasks}


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
    return "larger" if differs.all() and (targets >= sources).all() else "varying"


def palette_relation(task: Task) -> str:
    """Returns the relation of the output colours to the input colours, over all pairs of a task.

    - `new`: some output has a colour that its input lacks;
    - `kept`: every output has exactly the colours of its input;
    - `reduced`: anything else, so no output has a new colour and some output lacks one.
    """
    grids = [grid for pair in task.pairs for grid in (pair.input, pair.output)]
    present = np.array([np.bincount(grid.ravel(), minlength=COLOURS) > 0 for grid in grids])
    sources, targets = present[::2], present[1::2]
    if (targets & ~sources).any():
        return "new"
    return "kept" if (targets == sources).all() else "reduced"
