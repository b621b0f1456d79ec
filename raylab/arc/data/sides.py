"""The pairs of each side of a split, in one store."""

from dataclasses import dataclass

from torch import Tensor

from raylab.arc.data.batching import Indices, PairStore, group_indices, store_pairs
from raylab.arc.data.content import Contents, contents_of, same_tasks
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.splits import Split, split_tasks
from raylab.arc.seen import Seen, TaskSet
from raylab.config.arc import DataConfig


@dataclass(frozen=True)
class Sides:
    """The pairs that are trained on, that choose the checkpoint, and that are reported.

    Attributes:
        store: The pairs of all tasks.
        split: Ids of the tasks of each side.
        groups: Sorted names of the groups of tasks.
        group_of_task: (tasks,) int64 position of each task's group.
        train: Pairs of the store to train on.
        val: Pairs of the store that choose the checkpoint.
        test: Pairs of the store that figures are reported on.
        seen: What a model is trained on and chosen on with these sides.
    """

    store: PairStore
    split: Split
    groups: tuple[str, ...]
    group_of_task: Tensor
    train: Indices
    val: Indices
    test: Indices
    seen: Seen


def load_sides(config: DataConfig) -> Sides:
    """Loads and splits the tasks of `config`.

    Raises:
        DataError: The tasks or their split cannot be used.
    """
    tasks = load_tasks(config)
    groups = group_tasks(tasks, config.taxonomy)
    contents = contents_of(tasks)
    split = split_tasks(tasks, groups, config, same_tasks(contents))
    store = store_pairs(tasks)
    names, group_of_task = group_indices(store, groups)
    train, val, test = map(store.pairs_of, (split.train, split.val, split.test))
    seen = Seen(_task_set(split.train, contents), _task_set(split.val, contents))
    return Sides(store, split, names, group_of_task, train, val, test, seen)


def _task_set(ids: tuple[str, ...], contents: Contents) -> TaskSet:
    return TaskSet(frozenset(ids), frozenset(pair for id_ in ids for pair in contents[id_]))
