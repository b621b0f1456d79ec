"""The tasks and pairs to score, which no model has seen, and the units of their scores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.config.sections import DataConfig, ScoringConfig
from raylab.arc.data.content import TaskSet, fingerprint_tasks
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Task
from raylab.core.errors import DataError
from raylab.core.log import log_line

Units = Mapping[str, tuple[str, ...]]
"""Ids of the tasks of each unit."""


def part_seen(tasks: Sequence[Task], seen: frozenset[int]) -> tuple[Task, ...]:
    """Returns tasks with their seen pairs as demonstrations and the others as questions.

    Tasks without a seen pair stay as they are; tasks with only seen pairs are left out.
    """
    if not seen:
        return tuple(tasks)
    parted: list[Task] = []
    contents = fingerprint_tasks(tasks)
    for task in tasks:
        old = [fingerprint in seen for fingerprint in contents[task.id]]
        if any(old):
            new = tuple(compress(task.pairs, [not flag for flag in old]))
            task = replace(task, demonstrations=tuple(compress(task.pairs, old)), questions=new)
        if not all(old):
            parted.append(task)
    return tuple(parted)


def choose_units(
    checkpoints: Mapping[str, Checkpoint], data: DataConfig, scoring: ScoringConfig
) -> Units:
    """Chooses the tasks of `data` that no model has seen, or all, and logs their number."""
    tasks, seen = load_tasks(data), TaskSet()
    if not scoring.include_seen:
        seen = _seen_tasks(checkpoints, data)
    if by_pair := scores_by_pair(data, scoring):
        new = part_seen(tasks, seen.pairs)
    else:
        contents = fingerprint_tasks(tasks)
        new = [task for task in tasks if not seen.holds(task.id, contents[task.id])]
    if not new:
        raise DataError(
            f"one of the models {', '.join(checkpoints)} was trained on or chosen on "
            f"{'each pair' if by_pair else 'each'} of the {len(tasks)} tasks of "
            f"data.source={data.source}: score them anyway with scoring.include_seen=true, or name "
            "others by data=, data.subset, data.path or data.tasks"
        )
    left_out = (
        "on the pairs that no model was trained on or chosen on; the tasks may have been seen"
        if by_pair
        else f"{len(tasks) - len(new)} that a model was trained on or chosen on are left out"
    )
    message = f"{len(new)} of {len(tasks)} tasks are scored, {left_out}"
    log_line(message, scored=len(new), tasks=len(tasks))
    others = sorted({task.id for task in tasks} - {task.id for task in new} - seen.ids)
    if others and not by_pair:
        log_line(f"seen under another id: {', '.join(others)}", seen=others)
    return _units_of(new, data, scoring)


def scores_by_pair(data: DataConfig, scoring: ScoringConfig) -> bool:
    """Returns True if seen pairs are left out instead of seen tasks."""
    return data.split_by == "pair" and not scoring.include_seen


def _seen_tasks(checkpoints: Mapping[str, Checkpoint], data: DataConfig) -> TaskSet:
    """Returns the tasks on which models trained and, unless `data.select_on_test`, were chosen."""
    seen = TaskSet()
    for checkpoint in checkpoints.values():
        seen |= checkpoint.seen.tasks(chosen=not data.select_on_test)
    return seen


def seen_pairs(
    checkpoints: Mapping[str, Checkpoint], data: DataConfig, scoring: ScoringConfig
) -> frozenset[int]:
    """Returns the fingerprints of the pairs to leave out, if seen pairs are left out."""
    by_pair = scores_by_pair(data, scoring)
    return _seen_tasks(checkpoints, data).pairs if by_pair else frozenset()


def _units_of(tasks: Iterable[Task], data: DataConfig, scoring: ScoringConfig) -> Units:
    units: dict[str, list[str]] = {}
    for task, group in group_tasks(tasks, data.taxonomy).items():
        units.setdefault(task if scoring.unit == "task" else group, []).append(task)
    return {unit: tuple(units[unit]) for unit in sorted(units)}
