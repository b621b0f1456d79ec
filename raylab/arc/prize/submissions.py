"""`submission.json` in the public format: `{task: [{"attempt_1": grid, "attempt_2": grid}, ...]}`.

The list has an entry for each test input of the task, in order.
"""

import json
import logging
from collections.abc import Iterable, Mapping

import msgspec
from pydantic import TypeAdapter, ValidationError

from raylab.arc.data.documents import read_mapping
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, Task
from raylab.arc.prize.scores import attempts_of
from raylab.arc.prize.votes import QuestionAnswers, TaskAnswers
from raylab.arc.records import GridRows
from raylab.core.errors import DataError
from raylab.core.files import Place
from raylab.core.printable import join_names

logger = logging.getLogger(__name__)

SUBMISSION = "submission.json"
KEYS = ("attempt_1", "attempt_2")
# ARC Prize's scorer reads cells by pydantic too, which takes 3.0, "3" and true for whole numbers.
ROWS: TypeAdapter[GridRows] = TypeAdapter(GridRows)


def submission_bytes(answers: Mapping[str, TaskAnswers], views: int) -> bytes:
    """Returns the file of the attempts that the first `views` vote for."""
    content = {
        task: [dict(zip(KEYS, both, strict=True)) for both in attempts_of(own.questions, views)]
        for task, own in sorted(answers.items())
    }
    return json.dumps(content, separators=(",", ":")).encode()


def read_submission(file: Place, tasks: Iterable[Task]) -> dict[str, TaskAnswers]:
    """Returns the attempts of a submission at `tasks`, as answers in two views.

    An attempt that is missing or no grid has no rows, and solves nothing; a logged warning counts
    them.

    Raises:
        DataError: The file is missing or is not JSON, has a task that is not among `tasks`, has no
            list of attempts for a task, or no grid. The message names file, task and test input.
    """
    content, posed = read_mapping(file, "{task id: [attempts]}"), {task.id: task for task in tasks}
    if unknown := sorted(content.keys() - posed.keys()):
        raise DataError(
            f"{file} answers {join_names(unknown)}, not among the {len(posed)} tasks of data=: "
            "name the tasks that the submission is of by data=, data.subset or data.path"
        )
    answers: dict[str, TaskAnswers] = {}
    wrong: list[str] = []
    for id_, task in posed.items():
        own = _attempts(content.get(id_), len(task.questions), f"{file}: task {id_}")
        wrong += [
            f"task {id_} [{at}].{key}"
            for at, both in enumerate(own)
            for key, grid in zip(KEYS, both, strict=True)
            if not grid
        ]
        questions = tuple(QuestionAnswers.of((grid, 0.0, None) for grid in both) for both in own)
        answers[id_] = TaskAnswers(task=id_, questions=questions, seconds=0.0)
    attempts = sum(len(KEYS) * len(own.questions) for own in answers.values())
    if wrong and len(wrong) == attempts:
        raise DataError(
            f"{file}: no attempt is a grid of colours 0 to 9: write each as rows, such as "
            "[[0, 1], [2, 3]]"
        )
    if wrong:
        logger.warning(
            "%s: %d of %d attempts are missing or no grid of colours 0 to 9, so wrong: %s",
            file,
            len(wrong),
            attempts,
            join_names(wrong),
        )
    return answers


def _attempts(content: object, inputs: int, where: str) -> list[list[GridRows]]:
    """Returns both attempts at each test input of a task."""
    try:
        entries = msgspec.convert(content, list[dict[str, object] | None] | None) or []
    except msgspec.ValidationError as error:
        form = f"a list of {{{', '.join(KEYS)}}}"
        raise DataError(f"{where}: {error}; expected {form}") from None
    if len(entries) > inputs:
        raise DataError(f"{where}: attempts at {len(entries)} test inputs, the task has {inputs}")
    attempts = [entry or {} for entry in entries] + [{}] * (inputs - len(entries))
    for at, entry in enumerate(attempts):
        if others := sorted(entry.keys() - {*KEYS}):
            raise DataError(
                f"{where}: [{at}] has {join_names(others)}: leave all but {' and '.join(KEYS)} out"
            )
    return [[_grid(entry.get(key)) for key in KEYS] for entry in attempts]


def _grid(value: object) -> GridRows:
    """Returns the rows of a grid, and none of any other value."""
    try:
        rows = ROWS.validate_python(value)
    except ValidationError:
        return ()
    widths = {*map(len, rows)}
    sides = (len(rows), *widths)
    is_grid = len(widths) == 1 and 1 <= min(sides) <= max(sides) <= MAX_SIDE
    return rows if is_grid and all(0 <= cell < COLOURS for row in rows for cell in row) else ()
