"""Reading of JSON tasks: documents, the selection of ids, grids, and errors.

Lists of re-arc's pairs, as JSON writers print them, are read fast: a grid of one-digit numbers is
copied from the text, and its numbers are not parsed one by one.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import Annotated

import msgspec
import numpy as np

from raylab.arc.config.sections import DataConfig
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, NO_OUTPUT, Grid, Pair
from raylab.core.bounded import parse_json
from raylab.core.errors import DataError
from raylab.core.files import Place
from raylab.core.printable import join_names

TASKS_BYTES = 1 << 26
"""Longest file of tasks that is read."""
Colour = Annotated[int, msgspec.Meta(ge=0, le=COLOURS - 1)]
Row = Annotated[list[Colour], msgspec.Meta(min_length=1, max_length=MAX_SIDE)]
Cells = Annotated[list[Row], msgspec.Meta(min_length=1, max_length=MAX_SIDE)]

SPACES = b" \t\n\r"
_ZEROS = bytes.maketrans(b"0123456789", b"0" * 10)


def read_json(file: Place) -> object:
    """Returns the content of a JSON file of at most `TASKS_BYTES`; no key may stand twice."""
    return parse_json(file.read(TASKS_BYTES), str(file))


def read_mapping(file: Place, form: str) -> dict[str, object]:
    """Returns the object in a JSON file; `form` describes it in errors."""
    content = read_json(file)
    with faults_in(str(file), form):
        return msgspec.convert(content, dict[str, object])


def kept_ids(available: Iterable[str], config: DataConfig, where: str) -> list[str]:
    """Returns the ids that the configuration keeps, sorted."""
    ids = sorted(available)
    if config.tasks is not None:
        require_names(config.tasks, ids, "data.tasks", f"{where} holds no task")
        ids = sorted({*config.tasks})
    return ids[:: config.every]


def require_names(names: Sequence[str], available: Sequence[str], key: str, fault: str) -> None:
    """Checks the names that a key of the configuration lists."""
    if not names:
        raise DataError(f"{key} is an empty list: name some, or leave it out for all")
    if unknown := sorted({*names} - {*available}):
        # With a cutoff of 0 there always is a nearest one.
        named = [
            f"{name} (nearest: {get_close_matches(name, available, 1, 0.0)[0]})"
            for name in unknown[:5]
        ]
        raise DataError(f"{key}: {fault} {join_names([*named, *unknown[5:]])}")


@contextmanager
def faults_in(where: str, form: str) -> Generator[None]:
    """Turns decoding errors into a `DataError` that names the place of the fault.

    `form` is the expected form in words.
    """
    try:
        yield
    except (ValueError, RecursionError) as error:
        what, _, path = str(error).partition(" - at `$")
        place = path.rstrip("`").lstrip(".")
        fault = f"{place}: {what}" if place else f"{what}; expected {form}"
        raise DataError(f"{where}: {fault}") from None


def to_grid(cells: Sequence[Sequence[int]], place: str) -> Grid:
    """Returns the rows as a grid; a `ValueError` names its `place` if they differ in length."""
    try:
        return np.array(cells, dtype=np.uint8)
    except ValueError:
        widths = sorted({len(row) for row in cells})
        message = f"rows of {widths[0]} and of {widths[1]} cells - at `${place}`"
        raise ValueError(message) from None


_AnyRow = Annotated[list[Colour], msgspec.Meta(min_length=1)]
_AnyCells = Annotated[list[_AnyRow], msgspec.Meta(min_length=1)]


class _ShownPair(msgspec.Struct):
    """A pair of grids with sides of any length, which others than ARC have."""

    input: _AnyCells
    output: _AnyCells


class _TestPair(msgspec.Struct):
    input: _AnyCells
    output: _AnyCells | None = None


_ShownPairs = Annotated[list[_ShownPair], msgspec.Meta(min_length=1)]


class ArcTask(msgspec.Struct):
    """A task of ARC JSON."""

    train: _ShownPairs
    test: list[_TestPair]


class _RawPair(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw
    output: msgspec.Raw


_DECODER = msgspec.json.Decoder(list[_RawPair])


def to_pairs(pairs: Iterable[_ShownPair | _TestPair], place: str) -> Iterator[Pair]:
    """Yields pairs of grids; errors name their places in the list."""
    for index, pair in enumerate(pairs):
        target = NO_OUTPUT
        if pair.output is not None:
            target = to_grid(pair.output, f"{place}[{index}].output")
        yield Pair(to_grid(pair.input, f"{place}[{index}].input"), target)


def re_arc_pairs(content: bytes, file: str) -> Iterator[Pair]:
    """Yields the pairs of a JSON list one by one, of grids with sides of any length.

    Pairs after the last one that is asked for are only checked to be objects of an input and an
    output.
    """
    try:
        pairs = _DECODER.decode(content)
    except (ValueError, RecursionError):
        pairs = []
    # A repeated key, or text in place of a grid, adds quotes to the four of a pair.
    if content.count(b'"') != 4 * len(pairs):
        pairs = []
    done = 0
    for pair in pairs:
        source, target = _grid(bytes(pair.input)), _grid(bytes(pair.output))
        if source is None or target is None:
            break
        yield Pair(source, target)
        done += 1
    if 0 < done == len(pairs):
        return
    # Any other JSON is parsed number by number, which finds and names its faults.
    others = msgspec.convert(parse_json(content, file), _ShownPairs)
    yield from islice(to_pairs(others, ""), done, None)


def _grid(text: bytes) -> Grid | None:
    """Returns the grid that JSON of equal rows of one-digit numbers holds; None of other JSON."""
    shape = text.translate(_ZEROS, SPACES)
    # A first row of W numbers ends at 2 W + 1; with its comma, a row has 2 W + 2 characters.
    width = max(shape.find(b"]") - 1, 0) // 2
    height = (len(shape) - 1) // (2 * width + 2)
    row = b"[" + b",".join([b"0"] * width) + b"]"
    if width < 1 or shape != b"[" + b",".join([row] * height) + b"]":
        return None
    digits = np.frombuffer(text.translate(None, SPACES + b"[],"), np.uint8)
    return (digits - ord("0")).reshape(height, width)
