"""ARC JSON: `{train, test}` tasks, one per file or all in one file as on Kaggle."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

import msgspec

from raylab.arc.data.documents import (
    SIDES,
    TASKS_BYTES,
    Colour,
    Document,
    MalformedTaskError,
    existing_place,
    file_documents,
    grid_fault,
    kept_documents,
    kind_of,
    nothing_found,
    pair_faults,
    pairs_faults,
    parse,
    read_all,
    read_json,
    to_grid,
)
from raylab.arc.data.tasks import MAX_SIDE, Grid, Pair, Task
from raylab.bounded import parse_json
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place

logger = logging.getLogger(__name__)

Row = Annotated[list[Colour], msgspec.Meta(min_length=1, max_length=MAX_SIDE)]
Cells = Annotated[list[Row], msgspec.Meta(min_length=1, max_length=MAX_SIDE)]


class _TrainPair(msgspec.Struct):
    input: Cells
    output: Cells


class _TestPair(msgspec.Struct):
    input: Cells
    output: Cells | None = None


class _ArcTask(msgspec.Struct):
    train: Annotated[list[_TrainPair], msgspec.Meta(min_length=1)]
    test: list[_TestPair]


@dataclass(frozen=True)
class _RawTask:
    demonstrations: tuple[Pair, ...]
    questions: list[tuple[Grid, Grid | None]]


_arc_decoder = msgspec.json.Decoder(_ArcTask)


@dataclass(frozen=True)
class ReadTask:
    """A task as it is in its file."""

    id: str
    demonstrations: tuple[Pair, ...]
    questions: tuple[tuple[Grid, Grid | None], ...]
    """Test inputs with their outputs; None where the file and its solutions lack it."""


def load_arc_json(config: DataConfig) -> list[Task]:
    """Returns the ARC JSON tasks that the configuration keeps, by id.

    Test pairs without an output are left out, and counted in a logged warning.
    """
    read = read_arc_json(config)
    questions = [question for task in read for question in task.questions]
    unscored = sum(target is None for _, target in questions)
    if unscored:
        file = _file_of(existing_place(config))
        solutions = None if file is None else _solutions_of(file)
        hint = "" if solutions is None or solutions.exists() else f"; {solutions} does not exist"
        logger.warning(
            "%s: %d of %d test pairs have no output, cannot be scored and are left out%s",
            file or config.path,
            unscored,
            len(questions),
            hint,
        )
    return [
        Task(
            task.id,
            task.demonstrations,
            tuple(Pair(source, target) for source, target in task.questions if target is not None),
        )
        for task in read
    ]


def read_arc_json(config: DataConfig) -> list[ReadTask]:
    """Returns the ARC JSON tasks that the configuration keeps, with all test inputs, by id.

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

    def read(document: Document) -> ReadTask:
        raw = parse(document, _decode_arc_task, _task_faults)
        given = answers.get(document.id)
        questions = raw.questions if given is None else _answered(document, raw, given, solutions)
        return _limited(document.id, raw.demonstrations, questions, config.pairs_per_task)

    return read_all(kept_documents(documents, config, str(file or place)), read)


def _file_of(place: Place) -> Place | None:
    """Returns the one file that holds all tasks; None for a directory of one file each."""
    return _sole_challenges_file(place) if place.is_directory() else place


def _limited(
    id_: str,
    demonstrations: tuple[Pair, ...],
    questions: Sequence[tuple[Grid, Grid | None]],
    limit: int | None,
) -> ReadTask:
    """Returns a task with its first `limit` pairs; None keeps all, and inputs without output."""
    if limit is None:
        return ReadTask(id_, demonstrations, tuple(questions))
    left = max(0, limit - len(demonstrations))
    known = [question for question in questions if question[1] is not None][:left]
    return ReadTask(id_, demonstrations[:limit], tuple(known))


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
    content = parse_json(raw, str(file))
    if not isinstance(content, dict):
        raise DataError(
            f"{file}: expected an object {{task id: {{train, test}}}}, found {kind_of(content)}"
        )
    if "train" in content or "test" in content:
        yield Document(file.stem, str(file), lambda: raw)
        return
    if not content:
        raise DataError(f"{file}: holds no task")
    for id_, task in cast(dict[str, object], content).items():
        yield Document(id_, str(file), partial(_dump_json, task))


def _read_answers(solutions: Place | None) -> dict[str, object]:
    if solutions is None or not solutions.exists():
        return {}
    content = read_json(solutions)
    if not isinstance(content, dict):
        raise DataError(
            f"{solutions}: expected an object {{task id: [output grids]}}, found {kind_of(content)}"
        )
    return cast(dict[str, object], content)


def _answered(
    document: Document, raw: _RawTask, answers: object, solutions: Place | None
) -> list[tuple[Grid, Grid | None]]:
    """Returns the test pairs of `raw`, with missing outputs taken from the solutions file."""
    where = f"{solutions}: task {document.id}"
    if faults := [*_answers_faults(answers)]:
        raise MalformedTaskError([f"{where}: {fault}" for fault in faults])
    grids = cast(list[Cells], answers)
    if len(grids) != len(raw.questions):
        fault = f"{len(grids)} outputs for {len(raw.questions)} test pairs in {document.file}"
        raise MalformedTaskError([f"{where}: {fault}"])
    return [
        (source, to_grid(cells) if target is None else target)
        for (source, target), cells in zip(raw.questions, grids, strict=True)
    ]


def _decode_arc_task(raw: bytes) -> _RawTask:
    task = _arc_decoder.decode(raw)
    questions = [
        (to_grid(pair.input), None if pair.output is None else to_grid(pair.output))
        for pair in task.test
    ]
    demonstrations = tuple(Pair(to_grid(pair.input), to_grid(pair.output)) for pair in task.train)
    return _RawTask(demonstrations, questions)


def _dump_json(content: object) -> bytes:
    return json.dumps(content).encode()


def _task_faults(content: object) -> Iterator[str]:
    if isinstance(content, list):
        yield "expected an object {train, test}, found a list; source re_arc reads lists of pairs"
    elif not isinstance(content, dict):
        yield f"expected an object {{train, test}}, found {kind_of(content)}"
    else:
        task = cast(dict[str, object], content)
        yield from (f'the key "{key}" is missing' for key in ("train", "test") if key not in task)
        if "train" in task:
            yield from pairs_faults("train ", task["train"], SIDES)
        if "test" in task:
            yield from _test_pairs_faults(task["test"])


def _test_pairs_faults(content: object) -> Iterator[str]:
    if not isinstance(content, list):
        yield f"test pairs: expected a list of {{input, output}}, found {kind_of(content)}"
        return
    for index, pair in enumerate(cast(list[object], content)):
        for fault in pair_faults(pair, SIDES, output_needed=False):
            yield f"test pair {index}{fault}"


def _answers_faults(grids: object) -> Iterator[str]:
    if not isinstance(grids, list):
        yield f"expected a list of output grids, found {kind_of(grids)}"
        return
    for index, grid in enumerate(cast(list[object], grids)):
        if fault := grid_fault(grid, SIDES):
            yield f"test pair {index} output{fault}"
