"""`submission.json` in the public format: `{task: [{"attempt_1": grid, "attempt_2": grid}, ...]}`.

The list has an entry for each test input of the task, in order.
"""

import json
from collections.abc import Iterable, Mapping

import msgspec

from raylab.arc.data.documents import Cells, faults_in, read_json, to_grid
from raylab.arc.data.tasks import Task
from raylab.arc.prize.scores import attempts_of
from raylab.arc.prize.votes import QuestionAnswers, TaskAnswers, as_rows
from raylab.core.errors import DataError
from raylab.core.files import Place
from raylab.core.printable import join_names

SUBMISSION = "submission.json"
KEYS = ("attempt_1", "attempt_2")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    attempt_1: Cells
    attempt_2: Cells


def submission_bytes(answers: Mapping[str, TaskAnswers], views: int) -> bytes:
    """Returns the file of the attempts that the first `views` vote for."""
    content = {
        task: [dict(zip(KEYS, both, strict=True)) for both in attempts_of(own.questions, views)]
        for task, own in sorted(answers.items())
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
    with faults_in(str(file), "{task id: [attempts]}"):
        entries = msgspec.convert(content, dict[str, object])
    posed = {task.id: task for task in tasks}
    if unknown := sorted(entries.keys() - posed.keys()):
        raise DataError(
            f"{file} answers {join_names(unknown)}, not among the {len(posed)} tasks of data=: "
            "name the tasks that the submission is of by data=, data.subset or data.path"
        )
    if missing := sorted(posed.keys() - entries.keys()):
        raise DataError(
            f"{file} lacks {join_names(missing)}, and a submission answers all tasks of data=: "
            "name those that it is of by data.tasks"
        )
    return {
        id_: TaskAnswers(
            task=id_,
            questions=tuple(_questions(entries[id_], len(task.questions), f"{file}: task {id_}")),
            seconds=0.0,
        )
        for id_, task in posed.items()
    }


def _questions(content: object, inputs: int, where: str) -> list[QuestionAnswers]:
    with faults_in(where, f"a list of {{{', '.join(KEYS)}}}"):
        entries = msgspec.convert(content, list[_Entry])
        if len(entries) != inputs:
            raise DataError(
                f"{where}: attempts at {len(entries)} test inputs, the task has {inputs}"
            )
        return [
            QuestionAnswers.of(
                (as_rows(to_grid(getattr(entry, key), f"[{index}].{key}")), 0.0, None)
                for key in KEYS
            )
            for index, entry in enumerate(entries)
        ]
