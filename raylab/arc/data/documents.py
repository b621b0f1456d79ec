"""Documents, each the JSON of one task: finding, selecting and parsing them, and their faults."""

import codecs
import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Annotated, TypeVar, cast

import msgspec
import numpy as np

from raylab.arc.data.tasks import COLOURS, MAX_SIDE, Grid, Task
from raylab.bounded import parse_json
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place

_T = TypeVar("_T")
TASKS_BYTES = 1 << 26
"""Longest file of tasks that is read."""
MOST_FAULTS = 20
"""Most faults that an error names."""
SIDES = range(1, MAX_SIDE + 1)
ANY_SIDES = range(1, sys.maxsize)
Colour = Annotated[int, msgspec.Meta(ge=0, le=COLOURS - 1)]
AnyRow = Annotated[list[Colour], msgspec.Meta(min_length=1)]
AnyCells = Annotated[list[AnyRow], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Document:
    """The JSON text of one task, read on demand."""

    id: str
    file: str
    read: Callable[[], bytes]


def read_json(file: Place) -> object:
    """Returns the content of a JSON file.

    Raises:
        DataError: the file is missing or unreadable, is not JSON (with line and column), is larger
            or deeper than raylab reads, or an object in it holds a key twice.
    """
    return parse_json(file.read(TASKS_BYTES), str(file))


def kept_ids(available: Iterable[str], config: DataConfig, where: str) -> list[str]:
    """Returns the ids that the configuration keeps, sorted.

    Raises:
        DataError: `data.tasks` names ids that are not available, or is an empty list.
    """
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


def limit_pairs(task: Task, limit: int | None) -> Task:
    """Returns the task with its first `limit` pairs, demonstrations first; None keeps all.

    With a limit, questions without an output are not kept.
    """
    if limit is None:
        return task
    left = max(0, limit - len(task.demonstrations))
    questions = tuple(pair for pair in task.questions if pair.is_answered)[:left]
    return replace(task, demonstrations=task.demonstrations[:limit], questions=questions)


def existing_place(config: DataConfig) -> Place:
    """Returns the place of `config.path`.

    Raises:
        DataError: There is no path, or nothing exists there.
    """
    if config.path is None:
        raise DataError(f"source {config.source} needs data.path=FILE_OR_DIRECTORY")
    place = Place.at(config.path)
    if not place.exists():
        where = f" on {platform.node()}" if place.is_local else ""
        raise DataError(f"data.path={place} does not exist{where}")
    return place


def file_documents(files: Iterable[Place]) -> Iterator[Document]:
    """Yields a document for each file, with the file's stem as its id."""
    for file in files:
        yield Document(file.stem, str(file), partial(file.read, TASKS_BYTES))


def kept_documents(documents: Iterable[Document], config: DataConfig, where: str) -> list[Document]:
    """Returns the documents that the configuration keeps, by id.

    Raises:
        DataError: Two documents have the same id, or a requested id is unknown.
    """
    by_id: dict[str, Document] = {}
    for document in documents:
        other = by_id.setdefault(document.id, document)
        if other is not document:
            raise DataError(
                f"task {document.id} occurs twice: {other.file} and {document.file}; "
                "point data.path at one set of tasks"
            )
    return [by_id[id_] for id_ in kept_ids(by_id, config, where)]


def nothing_found(place: Place, pattern: str) -> DataError:
    """Returns the error for a place without documents; it names directories that have some."""
    message = f"{place}: holds no {pattern}"
    if place.is_directory():
        inside = sorted({str(file.parent) for file in place.files("**/*.json")})
        if inside:
            message += f"; there is JSON in {', '.join(inside[:5])}: point data.path there"
    return DataError(message)


class MalformedTaskError(DataError):
    """A task that cannot be read, with its faults: each has file, task, pair, row and column."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Takes the faults, at least one."""
        self.faults = tuple(faults)
        # What pickling makes the error from.
        super().__init__(self.faults)

    def __str__(self) -> str:
        """Names the first `MOST_FAULTS` of the faults, and how many there are."""
        faults, listed = self.faults, [*self.faults[:MOST_FAULTS]]
        if len(faults) > len(listed):
            listed.append(f"and {len(faults) - len(listed)} more")
        lines = "\n  ".join(listed)
        places = " (rows, columns and pairs count from 0)" if ", row " in lines else ""
        head = f"{len(faults)} faults{places}:\n  "
        return lines + places if len(faults) == 1 else head + lines


def read_all(documents: Iterable[Document], read: Callable[[Document], _T]) -> list[_T]:
    """Returns what `read` makes of each document.

    Raises:
        MalformedTaskError: Some are malformed, with the faults of all.
    """
    results: list[_T] = []
    faults: list[str] = []
    for document in documents:
        try:
            results.append(read(document))
        except MalformedTaskError as error:
            faults += error.faults
    if faults:
        raise MalformedTaskError(faults)
    return results


def parse(
    document: Document,
    decode: Callable[[bytes], _T],
    faults_of: Callable[[object], Iterable[str]],
) -> _T:
    """Returns the decoded document.

    Args:
        document: Document of one task.
        decode: Decodes valid text fast; raises ValueError for any other.
        faults_of: Describes the faults in the plain JSON.

    Raises:
        MalformedTaskError: It cannot be decoded.
    """
    raw = document.read()
    try:
        return decode(without_bom(raw))
    except (ValueError, RecursionError) as error:
        where = f"{document.file}: task {document.id}"
        try:
            faults = [*faults_of(parse_json(raw, where))]
        except DataError as broken:
            raise MalformedTaskError([str(broken)]) from None
        raise MalformedTaskError([f"{where}: {fault}" for fault in faults or [error]]) from None


def to_grid(cells: AnyCells) -> Grid:
    """Returns the rows as a grid.

    Raises:
        ValueError: The rows differ in length.
    """
    # numpy refuses ragged rows with a ValueError.
    return np.array(cells, dtype=np.uint8)


def without_bom(raw: bytes) -> bytes:
    """Returns the UTF-8 text without its byte order mark."""
    return raw.removeprefix(codecs.BOM_UTF8)


# Faults in plain JSON. msgspec and numpy read valid files fast; this only explains the others.


def pairs_faults(part: str, content: object, sides: range) -> Iterator[str]:
    """Yields the faults of a list of pairs, a grid's first. `part` names it in the faults."""
    if not isinstance(content, list):
        yield f"{part}pairs: expected a list of {{input, output}}, found {kind_of(content)}"
    elif not content:
        yield f"{part}pairs: the list is empty"
    else:
        for index, pair in enumerate(cast(list[object], content)):
            for fault in pair_faults(pair, sides, output_needed=True):
                yield f"{part}pair {index}{fault}"


def pair_faults(content: object, sides: range, output_needed: bool) -> Iterator[str]:
    """Yields the faults of a pair, a grid's first. A test pair may lack its output."""
    if not isinstance(content, dict):
        yield f": expected an object {{input, output}}, found {kind_of(content)}"
        return
    pair = cast(dict[str, object], content)
    for side in ("input", "output"):
        if side == "output" and not output_needed and pair.get(side) is None:
            continue
        if side not in pair:
            yield f': the key "{side}" is missing'
        elif fault := grid_fault(pair[side], sides):
            yield f" {side}{fault}"


def grid_fault(content: object, sides: range) -> str | None:
    """Returns the fault of a grid whose sides must be in `sides`; None if it has none."""
    if not isinstance(content, list):
        return f": expected a list of rows, found {kind_of(content)}"
    rows = cast(list[object], content)
    if len(rows) not in sides:
        return f": {len(rows)} rows, a grid has 1 to {MAX_SIDE}"
    width = None
    for index, row in enumerate(rows):
        fault = _row_fault(row, width, sides)
        if fault:
            return f", row {index}{fault}"
        width = len(cast(list[object], row))
    return None


def _row_fault(content: object, width: int | None, sides: range) -> str | None:
    if not isinstance(content, list):
        return f": expected a list of colours, found {kind_of(content)}"
    row = cast(list[object], content)
    if width is not None and len(row) != width:
        return f": {len(row)} columns, the rows above have {width}"
    if len(row) not in sides:
        return f": {len(row)} columns, a grid has 1 to {MAX_SIDE}"
    for column, cell in enumerate(row):
        # type, not isinstance: True is an int.
        if type(cell) is not int or not 0 <= cell < COLOURS:
            value = json.dumps(cell)[:40]
            return f", column {column}: {value} is no colour, an integer 0..{COLOURS - 1}"
    return None


def kind_of(content: object) -> str:
    """Returns the JSON type of a value, in words."""
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
