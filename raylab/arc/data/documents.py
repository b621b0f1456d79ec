"""JSON documents of tasks: which of them are kept, and their grids and faults."""

import codecs
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import numpy as np

from raylab.arc.data.tasks import COLOURS, MAX_SIDE, NO_OUTPUT, Grid, Pair
from raylab.bounded import parse_json
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from raylab.files import Place
from raylab.printable import join_names

T = TypeVar("T")
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


class Document(NamedTuple):
    """The JSON text of one task, read on demand."""

    id: str
    file: str
    read: Callable[[], bytes]

    @property
    def place(self) -> str:
        """The file and the task, for errors."""
        return f"{self.file}: task {self.id}"


def read_json(file: Place) -> object:
    """Returns the content of a JSON file.

    Raises:
        DataError: the file is missing or unreadable, is not JSON (with line and column), is larger
            or deeper than raylab reads, or an object in it holds a key twice.
    """
    return parse_json(file.read(TASKS_BYTES), str(file))


def read_mapping(file: Place, form: str) -> dict[str, object]:
    """Returns the object in a JSON file; `form` describes it in errors.

    Raises:
        DataError: As `read_json`, or the file holds something else.
    """
    content = read_json(file)
    with faults_in(str(file), form):
        return msgspec.convert(content, dict[str, object])


def kept_ids(available: Iterable[str], config: DataConfig, where: str) -> list[str]:
    """Returns the ids that the configuration keeps, sorted.

    Raises:
        DataError: `data.tasks` names ids that are not available, or is an empty list.
    """
    ids = sorted(available)
    if config.tasks is not None:
        require_names(config.tasks, ids, "data.tasks", f"{where} holds no task")
        ids = sorted({*config.tasks})
    return ids[:: config.every]


def require_names(names: Sequence[str], available: Sequence[str], key: str, fault: str) -> None:
    """Checks the names that a key of the configuration lists.

    Raises:
        DataError: It lists none, or some that are not `available`, with the nearest that are.
    """
    if not names:
        raise DataError(f"{key} is an empty list: name some, or leave it out for all")
    if unknown := sorted({*names} - {*available}):
        named = [
            f"{name} (nearest: {get_close_matches(name, available, 1, 0.0)[0]})"
            for name in unknown[:5]
        ]
        raise DataError(f"{key}: {fault} {join_names([*named, *unknown[5:]])}")


def read_documents(
    documents: Iterable[Document], config: DataConfig, where: str, read: Callable[[Document], T]
) -> list[T]:
    """Returns what `read` makes of each document that the configuration keeps, by id.

    Raises:
        DataError: Two documents have the same id, a requested id is unknown, or documents are
            malformed, with the faults of all.
    """
    by_id: dict[str, Document] = {}
    for document in documents:
        other = by_id.setdefault(document.id, document)
        if other is not document:
            raise DataError(
                f"task {document.id} occurs twice: {other.file} and {document.file}; "
                "point data.path at one set of tasks"
            )
    results: list[T] = []
    faults: list[str] = []
    for id_ in kept_ids(by_id, config, where):
        try:
            results.append(read(by_id[id_]))
        except DataError as error:
            faults.append(str(error))
    if faults:
        raise _joined(faults)
    return results


def _joined(faults: Sequence[str]) -> DataError:
    """Returns the error of all faults, which names the first of them."""
    listed = [*faults[:MOST_FAULTS]]
    if len(faults) > len(listed):
        listed.append(f"and {len(faults) - len(listed)} more")
    places = " (pairs, rows and columns count from 0)" if "]: " in "".join(listed) else ""
    if len(faults) == 1:
        return DataError(faults[0] + places)
    return DataError("\n  ".join((f"{len(faults)} faults{places}:", *listed)))


def parse(document: Document, decoder: msgspec.json.Decoder[T], form: str) -> T:
    """Returns the decoded document; `form` describes such documents in errors.

    Raises:
        DataError: It cannot be decoded.
    """
    raw = document.read()
    with faults_in(document.place, form):
        try:
            return decoder.decode(raw.removeprefix(codecs.BOM_UTF8))
        except (ValueError, RecursionError):
            # Text that is no JSON at all has its line and column named.
            parse_json(raw, document.place)
            raise


@contextmanager
def faults_in(where: str, form: str) -> Generator[None]:
    """Turns errors of what does not decode into a `DataError` that names its place.

    Args:
        where: The file, and the task in it.
        form: The form of what is decoded, for errors.
    """
    try:
        yield
    except (ValueError, RecursionError) as error:
        what, _, path = str(error).partition(" - at `$")
        place = path.rstrip("`").lstrip(".")
        fault = f"{place}: {what}" if place else f"{what}; expected {form}"
        raise DataError(f"{where}: {fault}") from None


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
