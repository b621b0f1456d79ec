"""The pairs of each side of a split, in one store. Importing this module does not import torch."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from raylab.arc.config.sections import DataConfig, TaskSource
from raylab.arc.data.content import Seen, TaskSet, fingerprints
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import (
    LEFT_OUT,
    TEST,
    TRAIN,
    VAL,
    sides_by_task,
    split_pairs,
    split_questions,
)
from raylab.arc.data.store import Indices, PairStore, group_indices, store_pairs


@dataclass(frozen=True)
class Sides:
    """The training, validation and test pairs of a task set.

    Attributes:
        contents: (pairs,) int64 fingerprint of each pair of the store.
        groups: Sorted names of the groups of tasks.
        group_of_task: (tasks,) int64 position of each task's group.
        posed: The store with the demonstrations that are shown with test pairs.
        train: Pairs of the store to train on.
        val: Pairs of the store that choose the checkpoint.
        test: Pairs of the store that figures are reported on.
    """

    store: PairStore
    contents: Indices
    groups: tuple[str, ...]
    group_of_task: Indices
    posed: PairStore
    train: Indices
    val: Indices
    test: Indices

    @property
    def seen(self) -> Seen:
        """The tasks that a training on these sides sees."""
        sides = (
            TaskSet(frozenset(self.tasks_of(pairs)), frozenset(self.contents[pairs].tolist()))
            for pairs in (self.train, self.val)
        )
        return Seen(*sides)

    def tasks_of(self, pairs: Indices) -> list[str]:
        """Returns the ids of the tasks of some pairs, in the order of the store."""
        return [self.store.task_ids[task] for task in np.unique(self.store.task_of[pairs])]


def load_sides(config: DataConfig) -> Sides:
    """Loads and splits the tasks of `config`: by task, pair or question.

    The demonstrations of a query are demonstrations of its task on its own side; if pairs of a task
    are on several sides, they are its training pairs. Test questions of a split by question are
    shown all demonstrations, as in ARC.

    Raises:
        DataError: The tasks or their split cannot be used, or there is no pair.
    """
    tasks = load_tasks(config)
    groups, store = group_tasks(tasks, config.taxonomy), store_pairs(tasks)
    contents = fingerprints(store)
    if config.split_by == "task":
        # A rule of the curriculum is one task at all of its levels.
        levels: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        for id_ in store.task_ids if config.source is TaskSource.CURRICULUM else ():
            family, _, *variant = id_.split("-")
            levels[family, *variant].add(id_)
        same = map(frozenset, levels.values())
        sides = sides_by_task(tasks, groups, store, contents, config, same)
        shown = [own[sides[own] != LEFT_OUT] for own in store.demonstrations]
    else:
        split = split_pairs if config.split_by == "pair" else split_questions
        sides = split(store, contents, config)
        own = [np.flatnonzero(store.task_of == task) for task in range(len(tasks))]
        shown = [pairs[sides[pairs] == TRAIN] for pairs in own]
    train, val, test = (np.flatnonzero(sides == side) for side in (TRAIN, VAL, TEST))
    kept = replace(store, demonstrations=tuple(shown))
    return Sides(
        kept,
        contents,
        *group_indices(store, groups),
        store if config.split_by == "question" else kept,
        train,
        test if config.select_on_test else val,
        test,
    )
