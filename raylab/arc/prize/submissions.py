"""`submission.json` in the public format: `{task: [{"attempt_1": grid, "attempt_2": grid}, ...]}`.

The list has an entry for each test input of the task, in order.
"""

import json
from collections.abc import Iterable, Mapping
from typing import cast

from raylab.arc.data.documents import SIDES, grid_fault, kind_of, read_json
from raylab.arc.data.tasks import Task
from raylab.arc.prize.scores import attempts_of
from raylab.arc.prize.votes import QuestionAnswers, TaskAnswers
from raylab.arc.records import GridRows
from raylab.errors import DataError
from raylab.files import Place

SUBMISSION = "submission.json"
KEYS = ("attempt_1", "attempt_2")


def submission_bytes(answers: Mapping[str, TaskAnswers], views: int) -> bytes:
    """Returns the file of the attempts that the first `views` vote for."""
    content = {
        task: [dict(zip(KEYS, both, strict=True)) for both in attempts_of(of.questions, views)]
        for task, of in sorted(answers.items())
    }
    return json.dumps(content, separators=(",", ":")).encode()


def read_submission(file: Place, tasks: Iterable[Task]) -> dict[str, TaskAnswers]:
    """Returns the attempts of a submission at `tasks`, as answers in two views.

    Raises:
        DataError: The file is missing or is not JSON, lacks a task or has one that is not among
            them, or has attempts that are no grids. The message names file, task, test input,
            attempt, row and column.
    """
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(
            f"{file}: expected an object {{task id: [attempts]}}, found {kind_of(content)}"
        )
    entries = cast("dict[str, object]", content)
    asked = {task.id: task for task in tasks}
    if unknown := sorted(entries.keys() - asked.keys()):
        raise DataError(
            f"{file}: task {unknown[0]}{_and_more(unknown)} is not among the {len(asked)} tasks of "
            "data=: name the tasks that the submission is of by data=, data.subset or data.path"
        )
    if missing := sorted(asked.keys() - entries.keys()):
        raise DataError(
            f"{file}: task {missing[0]}{_and_more(missing)} is missing: a submission answers all "
            "tasks of data=; name those that it is of by data.tasks"
        )
    answers: dict[str, TaskAnswers] = {}
    for id_, task in asked.items():
        where = f"{file}: task {id_}"
        questions = tuple(_questions(entries[id_], len(task.questions), where))
        answers[id_] = TaskAnswers(task=id_, questions=questions, seconds=0.0)
    return answers


def _questions(content: object, inputs: int, where: str) -> Iterable[QuestionAnswers]:
    if not isinstance(content, list):
        raise DataError(
            f"{where}: expected a list of {{{', '.join(KEYS)}}}, found {kind_of(content)}"
        )
    given = cast("list[object]", content)
    if len(given) != inputs:
        raise DataError(f"{where}: attempts at {len(given)} test inputs, the task has {inputs}")
    for index, entry in enumerate(given):
        yield _question(entry, f"{where}: test input {index}")


def _question(content: object, where: str) -> QuestionAnswers:
    if not isinstance(content, dict):
        raise DataError(
            f"{where}: expected an object {{{', '.join(KEYS)}}}, found {kind_of(content)}"
        )
    entry = cast("dict[str, object]", content)
    if unknown := sorted(entry.keys() - set(KEYS)):
        raise DataError(f"{where}: {unknown[0]!r} is no attempt: there are {' and '.join(KEYS)}")
    grids: list[tuple[GridRows, float]] = []
    for key in KEYS:
        if key not in entry:
            raise DataError(f"{where}: {key} is missing")
        if fault := grid_fault(entry[key], SIDES):
            raise DataError(f"{where}: {key}{fault}")
        rows = cast("list[list[int]]", entry[key])
        grids.append((tuple(map(tuple, rows)), 0.0))
    return QuestionAnswers.of(grids)


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
