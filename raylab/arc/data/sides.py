"""The pairs of each side of a split, in one store; loads without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raylab.arc.data.content import fingerprints
from raylab.arc.data.curriculum.source import held_out_tasks, same_rules
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import LEFT_OUT, TEST, TRAIN, VAL, sides_by_task, split_pairs
from raylab.arc.data.store import Indices, PairStore, group_indices, store_pairs
from raylab.arc.seen import Seen, TaskSet
from raylab.config.arc import DataConfig, TaskSource


@dataclass(frozen=True)
class Sides:
    """The pairs that are trained on, that choose the checkpoint, and that are reported.

    Attributes:
        store: The pairs of all tasks.
        contents: (pairs,) int64 fingerprint of each pair of the store.
        groups: Sorted names of the groups of tasks.
        group_of_task: (tasks,) int64 position of each task's group.
        train: Pairs of the store to train on.
        val: Pairs of the store that choose the checkpoint.
        test: Pairs of the store that figures are reported on.
        rules: Counts of `raylab.arc.comparators.rules` on the pairs of `val` and `test`, by side,
            if several trainings share them.
    """

    store: PairStore
    contents: Indices
    groups: tuple[str, ...]
    group_of_task: Indices
    train: Indices
    val: Indices
    test: Indices
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @property
    def seen(self) -> Seen:
        """What a model is trained on and chosen on with these sides."""
        return Seen(self._task_set(self.train), self._task_set(self.val))

    def tasks_of(self, pairs: Indices) -> list[str]:
        """Returns the ids of the tasks of some pairs, in the order of the store."""
        return [self.store.task_ids[task] for task in np.unique(self.store.task_of[pairs])]

    def _task_set(self, pairs: Indices) -> TaskSet:
        contents = frozenset(self.contents[pairs].tolist())
        return TaskSet(frozenset(self.tasks_of(pairs)), contents)


def load_sides(config: DataConfig) -> Sides:
    """Loads and splits the tasks of `config`: by task, by pair, or by level or family.

    A query is shown demonstrations of its task: those of its side, or in a split by pair the pairs
    that are trained on.

    Raises:
        DataError: The tasks or their split cannot be used, or there is no pair.
    """
    tasks = load_tasks(config)
    groups, store = group_tasks(tasks, config.taxonomy), store_pairs(tasks)
    contents, ids = fingerprints(store), store.task_ids
    drawn = config.source is TaskSource.CURRICULUM
    if config.split_by == "task":
        same = same_rules(ids) if drawn else ()
        sides = sides_by_task(tasks, groups, store, contents, config, same)
        shown = [own[sides[own] != LEFT_OUT] for own in store.demonstrations]
    else:
        held_out = held_out_tasks(ids, config) if drawn else frozenset[str]()
        sides = split_pairs(store, contents, config, held_out)
        at = [np.flatnonzero(store.task_of == task) for task in range(len(ids))]
        shown = [
            store.demonstrations[task] if ids[task] in held_out else own[sides[own] == TRAIN]
            for task, own in enumerate(at)
        ]
    train, val, test = (np.flatnonzero(sides == side) for side in (TRAIN, VAL, TEST))
    return Sides(
        replace(store, demonstrations=tuple(shown)),
        contents,
        *group_indices(store, groups),
        train,
        test if config.select_on_test else val,
        test,
    )
