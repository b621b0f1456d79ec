"""The tasks of the curriculum: their names, and drawing them."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Self

from raylab.arc.data.curriculum import colours, geometry, objects, relations
from raylab.arc.data.curriculum.family import LEVELS, Family, Rule
from raylab.arc.data.documents import kept_ids
from raylab.arc.data.split import draw, number_of, share
from raylab.arc.data.tasks import Task
from raylab.config.arc import CurriculumConfig, DataConfig
from raylab.errors import DataError

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (geometry, colours, objects, relations)
    for family in module.FAMILIES
}
PAIRS = 600
"""Pairs of a task where `data.pairs_per_task` is null."""


@dataclass(frozen=True)
class TaskName:
    """The name of a task, such as `flip_rows-1` or `recolour-1-03`; it tells the task's rule.

    Attributes:
        family: Its family.
        level: Its level of difficulty.
        variant: Which rule of the family it has, from 1 on; None if the family has one task a
            level.
    """

    family: str
    level: int
    variant: int | None = None

    def __str__(self) -> str:
        """Returns the id of the task."""
        return self.group if self.variant is None else f"{self.group}-{self.variant:02}"

    @property
    def group(self) -> str:
        """The group of the task: its family and level."""
        return f"{self.family}-{self.level}"

    @classmethod
    def of(cls, id_: str) -> Self:
        """Returns the name that an id of the curriculum stands for."""
        family, level, *variant = id_.split("-")
        return cls(family, int(level), int(variant[0]) if variant else None)


def load_curriculum(config: DataConfig) -> list[Task]:
    """Draws the tasks of the curriculum that the configuration keeps, by id.

    All pairs of a task are demonstrations. They depend on `curriculum.seed` and the id alone, and
    more pairs begin with the same ones; the rule depends on the id alone.

    Raises:
        DataError: A family or task is unknown, or a task has fewer pairs.
    """
    rules = {str(name): (name, rule) for name, rule in _named_rules(config.curriculum)}
    count = config.pairs_per_task or PAIRS
    tasks: list[Task] = []
    for id_ in kept_ids(rules, config, "the curriculum (data.curriculum)"):
        name, rule = rules[id_]
        pairs = FAMILIES[name.family].pairs(
            id_, LEVELS[name.level], rule, count, config.curriculum.seed
        )
        tasks.append(Task(id_, pairs, group=name.group))
    return tasks


def same_rules(ids: Iterable[str]) -> list[frozenset[str]]:
    """Returns the classes of task ids that have one rule at several levels."""
    classes: dict[tuple[str, int | None], set[str]] = {}
    for id_ in ids:
        name = TaskName.of(id_)
        classes.setdefault((name.family, name.variant), set()).add(id_)
    return [frozenset(ids) for ids in classes.values() if len(ids) > 1]


def held_out_tasks(ids: Iterable[str], config: DataConfig) -> frozenset[str]:
    """Returns the ids of the tasks that a split by level or family tests; none otherwise.

    Raises:
        DataError: All of the tasks are tested, or none.
    """
    names = {id_: TaskName.of(id_) for id_ in ids}
    held: frozenset[str] | frozenset[int] = frozenset()
    if config.split_by == "level":
        held = config.curriculum.held_out_levels
    elif config.split_by == "family":
        held = _held_out_families({name.family for name in names.values()}, config)
    tested = frozenset(
        id_ for id_, name in names.items() if name.family in held or name.level in held
    )
    if held and len(tested) in (0, len(names)):
        raise DataError(
            f"data.split_by={config.split_by} tests {len(tested)} of {len(names)} tasks "
            f"({config.split_by}: {', '.join(map(str, sorted(held, key=str)))}), and trains on the "
            f"others: keep some of both in data.tasks, data.every and data.curriculum"
        )
    return tested


def _held_out_families(families: Collection[str], config: DataConfig) -> frozenset[str]:
    if config.curriculum.test_families is not None:
        key = "data.curriculum.test_families"
        return frozenset(_checked_families(config.curriculum.test_families, key))
    seed, count = config.split_seed, share(len(families), config.test_fraction, 1)
    ordered = sorted(families, key=lambda family: number_of(seed, family))
    return draw(ordered, count, seed, "family")


def _checked_families(names: Iterable[str] | None, key: str) -> list[str]:
    """Returns the names of families, sorted; all for None.

    Raises:
        DataError: A name is unknown, or there is none.
    """
    if names is None:
        return sorted(FAMILIES)
    chosen = sorted({*names})
    for name in chosen:
        if name not in FAMILIES:
            (nearest,) = get_close_matches(name, FAMILIES, n=1, cutoff=0.0)
            raise DataError(
                f"{key}: there is no family {name} (nearest: {nearest}); the families are "
                f"{', '.join(sorted(FAMILIES))}"
            )
    if not chosen:
        raise DataError(f"{key} is an empty list: name families, or leave it out")
    return chosen


def _named_rules(config: CurriculumConfig) -> Iterator[tuple[TaskName, Rule]]:
    for name in _checked_families(config.families, "data.curriculum.families"):
        family = FAMILIES[name]
        for number in sorted({*config.levels}):
            for variant, rule in enumerate(family.rules(LEVELS[number], config.variants), 1):
                yield TaskName(name, number, variant if family.draw_rule else None), rule
