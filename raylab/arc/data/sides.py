"""The pairs of each side of a split, in one store."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from raylab.arc.data.batching import Indices, PairStore, group_indices, store_pairs
from raylab.arc.data.parts import Parts, load_parts
from raylab.arc.seen import Seen, TaskSet
from raylab.config.arc import DataConfig


@dataclass(frozen=True)
class Sides:
    """The pairs that are trained on, that choose the checkpoint, and that are reported.

    Attributes:
        store: The pairs of all tasks.
        contents: Fingerprint of each pair of the store.
        groups: Sorted names of the groups of tasks.
        group_of_task: (tasks,) int64 position of each task's group.
        train: Pairs of the store to train on.
        val: Pairs of the store that choose the checkpoint.
        test: Pairs of the store that figures are reported on.
    """

    store: PairStore
    contents: Sequence[int]
    groups: tuple[str, ...]
    group_of_task: Tensor
    train: Indices
    val: Indices
    test: Indices

    @property
    def seen(self) -> Seen:
        """What a model is trained on and chosen on with these sides."""
        return Seen(self._task_set(self.train), self._task_set(self.val))

    def tasks_of(self, pairs: Indices) -> list[str]:
        """Returns the ids of the tasks of some pairs, in the order of the store."""
        return [self.store.task_ids[task] for task in np.unique(self.store.task_of[pairs])]

    def _task_set(self, pairs: Indices) -> TaskSet:
        contents = frozenset(self.contents[pair] for pair in pairs.tolist())
        return TaskSet(frozenset(self.tasks_of(pairs)), contents)


def load_sides(config: DataConfig) -> Sides:
    """Loads and splits the tasks of `config`, by task or by pair.

    Raises:
        DataError: The tasks or their split cannot be used.
    """
    return sides_of(load_parts(config))


def sides_of(parts: Parts) -> Sides:
    """Copies the pairs of split tasks into one store.

    Raises:
        DataError: There is no pair.
    """
    store = store_pairs(parts.tasks)
    sides = np.repeat(np.tile((0, 1, 2), len(parts.tasks)), np.array(parts.counts).ravel())
    train, val, test = (np.flatnonzero(sides == side) for side in range(3))
    if parts.chosen_on_test:
        val = test
    contents = tuple(one for task in parts.tasks for one in parts.contents[task.id])
    names, group_of_task = group_indices(store, parts.groups)
    return Sides(store, contents, names, group_of_task, train, val, test)
