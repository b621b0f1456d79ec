"""Documents, each the JSON of one task: finding, selecting and parsing them."""

import codecs
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from raylab.arc.data.tasks import COLOURS, Grid, Task
from raylab.bounded import parse_json
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place

_T = TypeVar("_T")
TASKS_BYTES = 1 << 26
"""Longest file of tasks that is read."""
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
    """Returns the task with its first `limit` pairs, demonstrations first; None keeps all."""
    if limit is None:
        return task
    left = max(0, limit - len(task.demonstrations))
    return replace(
        task, demonstrations=task.demonstrations[:limit], questions=task.questions[:left]
    )


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


def parse(
    document: Document, decode: Callable[[bytes], _T], fault_of: Callable[[object], str | None]
) -> _T:
    """Returns the decoded document.

    Args:
        document: Document of one task.
        decode: Decodes valid text fast; raises ValueError for any other.
        fault_of: Describes the fault in the plain JSON.

    Raises:
        DataError: It cannot be decoded, with task, pair, row and column.
    """
    raw = document.read()
    try:
        return decode(without_bom(raw))
    except (ValueError, RecursionError) as error:
        where = f"{document.file}: task {document.id}"
        raise DataError(f"{where}: {fault_of(parse_json(raw, where)) or error}") from None


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
