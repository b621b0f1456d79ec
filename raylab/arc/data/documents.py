"""Documents, each the JSON of one task: finding, selecting and parsing them, and their faults."""

import codecs
import platform
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from raylab.arc.data.tasks import COLOURS, MAX_SIDE, NO_OUTPUT, Grid, Pair, Task
from raylab.bounded import parse_json
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place

_T = TypeVar("_T")
TASKS_BYTES = 1 << 26
"""Longest file of tasks that is read."""
MOST_FAULTS = 20
"""Most faults that an error names."""
Colour = Annotated[int, msgspec.Meta(ge=0, le=COLOURS - 1)]
Row = Annotated[list[Colour], msgspec.Meta(min_length=1, max_length=MAX_SIDE)]
Cells = Annotated[list[Row], msgspec.Meta(min_length=1, max_length=MAX_SIDE)]
AnyRow = Annotated[list[Colour], msgspec.Meta(min_length=1)]
AnyCells = Annotated[list[AnyRow], msgspec.Meta(min_length=1)]


class TrainPair(msgspec.Struct):
    """A demonstration of an ARC task."""

    input: Cells
    output: Cells


class TestPair(msgspec.Struct):
    """A test pair of an ARC task; its output may be unknown."""

    input: Cells
    output: Cells | None = None


class AnyPair(msgspec.Struct):
    """A pair of grids of any sides."""

    input: AnyCells
    output: AnyCells


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
        places = " (pairs, rows and columns count from 0)" if "]: " in lines else ""
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


def parse(document: Document, decode: Callable[[bytes], _T], form: str) -> _T:
    """Returns the decoded document.

    Args:
        document: Document of one task.
        decode: Decodes its text; raises ValueError for one that it cannot.
        form: The form of such a document, for errors.

    Raises:
        MalformedTaskError: It cannot be decoded.
    """
    raw, where = document.read(), f"{document.file}: task {document.id}"
    with faults_in(where, form):
        try:
            return decode(raw.removeprefix(codecs.BOM_UTF8))
        except (ValueError, RecursionError):
            # Text that is no JSON at all has its line and column named.
            parse_json(raw, where)
            raise


@contextmanager
def faults_in(where: str, form: str) -> Generator[None]:
    """Turns errors of what does not decode into those of a malformed task.

    Args:
        where: The file, and the task in it.
        form: The form of what is decoded, for errors.

    Raises:
        MalformedTaskError: It cannot be decoded; the fault has its place.
    """
    try:
        yield
    except DataError as error:
        raise MalformedTaskError([str(error)]) from None
    except (ValueError, RecursionError) as error:
        what, _, path = str(error).partition(" - at `$")
        place = path.rstrip("`").lstrip(".")
        fault = f"{place}: {what}" if place else f"{what}; expected {form}"
        raise MalformedTaskError([f"{where}: {fault}"]) from None


def to_pairs(pairs: Iterable[TrainPair | TestPair | AnyPair], place: str) -> Generator[Pair]:
    """Yields pairs of grids.

    Raises:
        ValueError: The rows of a grid differ in length; it has the pair's place in the list.
    """
    for index, pair in enumerate(pairs):
        target = NO_OUTPUT
        if pair.output is not None:
            target = to_grid(pair.output, f"{place}[{index}].output")
        yield Pair(to_grid(pair.input, f"{place}[{index}].input"), target)


def to_grid(cells: AnyCells, place: str) -> Grid:
    """Returns the rows as a grid.

    Raises:
        ValueError: The rows differ in length; it has the `place` of the grid.
    """
    try:
        return np.array(cells, dtype=np.uint8)
    except ValueError:
        widths = sorted({len(row) for row in cells})
        message = f"rows of {widths[0]} and of {widths[1]} cells - at `${place}`"
        raise ValueError(message) from None
