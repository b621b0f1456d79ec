"""ARC JSON: `{train, test}` tasks, one per file or all in one file as on Kaggle."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import msgspec

from raylab.arc.data.documents import (
    TASKS_BYTES,
    Cells,
    Document,
    MalformedTaskError,
    TestPair,
    TrainPair,
    existing_place,
    faults_in,
    file_documents,
    kept_documents,
    limit_pairs,
    nothing_found,
    parse,
    read_all,
    read_json,
    to_grid,
    to_pairs,
)
from raylab.arc.data.tasks import Pair, Task
from raylab.bounded import parse_json
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place

logger = logging.getLogger(__name__)

FORM = "{train: [pairs], test: [pairs]}; data=re_arc reads lists of pairs"


class _ArcTask(msgspec.Struct):
    train: Annotated[list[TrainPair], msgspec.Meta(min_length=1)]
    test: list[TestPair]


_arc_decoder = msgspec.json.Decoder(_ArcTask)


def load_arc_json(config: DataConfig) -> list[Task]:
    """Returns the ARC JSON tasks that the configuration keeps, by id, with all test inputs.

    A test pair has no output where neither the file nor its solutions have one.

    Raises:
        DataError: a file is missing or malformed, an id is unknown or occurs twice.
    """
    place = existing_place(config)
    file = _file_of(place)
    if file is None:
        documents = list(file_documents(place.files("*.json")))
        if not documents:
            raise nothing_found(place, "<task id>.json")
        solutions = None
    else:
        documents = list(_challenge_documents(file))
        solutions = _solutions_of(file)
    answers = _read_answers(solutions)

    def read(document: Document) -> Task:
        task = replace(parse(document, _decode_arc_task, FORM), id=document.id)
        if document.id in answers:
            task = _answered(document, task, answers[document.id], solutions)
        return limit_pairs(task, config.pairs_per_task)

    return read_all(kept_documents(documents, config, str(file or place)), read)


def without_unanswered(tasks: Sequence[Task], config: DataConfig) -> list[Task]:
    """Returns ARC JSON tasks without the test pairs that lack an output; logs their number."""
    questions = [pair for task in tasks for pair in task.questions]
    unanswered = sum(not pair.is_answered for pair in questions)
    if unanswered:
        file = _file_of(existing_place(config))
        solutions = None if file is None else _solutions_of(file)
        hint = "" if solutions is None or solutions.exists() else f"; {solutions} does not exist"
        logger.warning(
            "%s: %d of %d test pairs have no output, cannot be scored and are left out%s",
            file or config.path,
            unanswered,
            len(questions),
            hint,
        )
    return [
        replace(task, questions=tuple(pair for pair in task.questions if pair.is_answered))
        for task in tasks
    ]


def _file_of(place: Place) -> Place | None:
    """Returns the one file that holds all tasks; None for a directory of one file each."""
    return _sole_challenges_file(place) if place.is_directory() else place


def _sole_challenges_file(folder: Place) -> Place | None:
    """Returns the Kaggle challenges file of `folder`; None if there is none.

    Raises:
        DataError: the folder holds several, or other task files as well.
    """
    files = folder.files("*.json")
    challenges = [file for file in files if "challenges" in file.name]
    companions = ("challenges", "solutions", "submission")
    others = [file for file in files if not any(word in file.name for word in companions)]
    if not challenges:
        return None
    if len(challenges) > 1 or others:
        found = ", ".join(file.name for file in [*challenges, *others][:5])
        raise DataError(f"{folder}: holds several task files ({found}): name one as data.path")
    return challenges[0]


def _solutions_of(challenges: Place) -> Place | None:
    if "challenges" not in challenges.name:
        return None
    return challenges.parent / challenges.name.replace("challenges", "solutions")


def _challenge_documents(file: Place) -> Iterator[Document]:
    """Yields the documents of `{id: {train, test}}`, or of a file that is one task itself."""
    raw = file.read(TASKS_BYTES)
    with faults_in(str(file), "{task id: {train, test}}"):
        content = msgspec.convert(parse_json(raw, str(file)), dict[str, object])
    if "train" in content or "test" in content:
        yield Document(file.stem, str(file), lambda: raw)
        return
    if not content:
        raise DataError(f"{file}: holds no task")
    for id_, task in content.items():
        yield Document(id_, str(file), partial(_dump_json, task))


def _read_answers(solutions: Place | None) -> dict[str, object]:
    if solutions is None or not solutions.exists():
        return {}
    with faults_in(str(solutions), "{task id: [output grids]}"):
        return msgspec.convert(read_json(solutions), dict[str, object])


def _answered(document: Document, task: Task, answers: object, solutions: Place | None) -> Task:
    """Returns the task with missing outputs taken from the solutions file."""
    where = f"{solutions}: task {document.id}"
    with faults_in(where, "a list of output grids"):
        cells = msgspec.convert(answers, list[Cells])
        grids = [to_grid(rows, f"[{index}]") for index, rows in enumerate(cells)]
    if len(grids) != len(task.questions):
        fault = f"{len(grids)} outputs for {len(task.questions)} test pairs in {document.file}"
        raise MalformedTaskError([f"{where}: {fault}"])
    questions = tuple(
        pair if pair.is_answered else Pair(pair.input, grid)
        for pair, grid in zip(task.questions, grids, strict=True)
    )
    return replace(task, questions=questions)


def _decode_arc_task(raw: bytes) -> Task:
    task = _arc_decoder.decode(raw)
    return Task("", tuple(to_pairs(task.train, "train")), tuple(to_pairs(task.test, "test")))


def _dump_json(content: object) -> bytes:
    return json.dumps(content).encode()
