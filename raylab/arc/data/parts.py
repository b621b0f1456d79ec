"""The tasks of a configuration with the side of each of their pairs; loads without torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from raylab.arc.data.content import Contents, contents_of, same_tasks
from raylab.arc.data.curriculum.source import held_out_tasks, same_rules
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.pair_splits import split_pairs
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.splits import split_tasks
from raylab.arc.data.tasks import Task
from raylab.config.arc import DataConfig, TaskSource


@dataclass(frozen=True)
class Parts:
    """Tasks that are split.

    Attributes:
        tasks: The tasks; the pairs of each are in the order of the sides.
        counts: Training, validation and test pairs of each task.
        groups: Group of each task, by id.
        contents: Fingerprints of the pairs of each task, by id, in the order of its pairs.
        chosen_on_test: True if there are no validation pairs and the test pairs validate.
    """

    tasks: tuple[Task, ...]
    counts: tuple[tuple[int, int, int], ...]
    groups: Mapping[str, str]
    contents: Contents
    chosen_on_test: bool


def load_parts(config: DataConfig) -> Parts:
    """Loads and splits the tasks of `config`.

    Raises:
        DataError: The tasks or their split cannot be used.
    """
    tasks = load_tasks(config)
    groups = group_tasks(tasks, config.taxonomy)
    contents = contents_of(tasks)
    drawn = config.source is TaskSource.CURRICULUM
    if config.split_by != "task":
        held_out = held_out_tasks(contents, config) if drawn else frozenset[str]()
        split = split_pairs(tasks, contents, config, held_out)
        return Parts(split.tasks, split.counts, groups, split.contents, config.select_on_test)
    same = same_tasks(contents, same_rules(contents) if drawn else ())
    split = split_tasks(tasks, groups, config, same)
    train, val = {*split.train}, {*split.val} - {*split.test}

    def counts(task: Task) -> tuple[int, int, int]:
        pairs = len(task.pairs)
        if task.id in train:
            return pairs, 0, 0
        return (0, pairs, 0) if task.id in val else (0, 0, pairs)

    return Parts(tuple(tasks), tuple(map(counts, tasks)), groups, contents, config.select_on_test)
