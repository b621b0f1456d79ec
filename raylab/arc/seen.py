"""The tasks that a model was made with, which it must not be scored on."""

from collections.abc import Collection
from dataclasses import dataclass

from raylab.arc.data.content import ids_of


@dataclass(frozen=True)
class TaskSet:
    """Tasks by id and by content.

    Attributes:
        ids: Their ids.
        pairs: Fingerprints of their pairs, as in `raylab.arc.data.content`.
    """

    ids: frozenset[str] = frozenset()
    pairs: frozenset[int] = frozenset()

    def __or__(self, other: "TaskSet") -> "TaskSet":
        """Returns the tasks of both."""
        return TaskSet(self.ids | other.ids, self.pairs | other.pairs)

    def holds(self, task: str, pairs: Collection[int]) -> bool:
        """Returns True if the task is among these: by an id of it, or by half of its `pairs`."""
        distinct = {*pairs}
        shared = distinct & self.pairs
        return not self.ids.isdisjoint(ids_of(task)) or 0 < len(distinct) <= 2 * len(shared)


@dataclass(frozen=True)
class Seen:
    """The tasks that a model was made with; figures on them say nothing about new tasks.

    Attributes:
        trained_on: The tasks that the weights were trained on.
        chosen_on: The tasks that chose the epoch.
    """

    trained_on: TaskSet
    chosen_on: TaskSet = TaskSet()

    def __or__(self, other: "Seen") -> "Seen":
        """Returns what either has seen."""
        return Seen(self.trained_on | other.trained_on, self.chosen_on | other.chosen_on)

    def tasks(self, *, chosen: bool = True) -> TaskSet:
        """Returns all tasks that were seen, or without those that it was only `chosen` on."""
        return self.trained_on | self.chosen_on if chosen else self.trained_on
