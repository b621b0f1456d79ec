"""The rows of a file: CSV as spreadsheets write it, JSON, JSON lines, or Parquet.

A row that cannot be read is a `RowFault` in its place, so that whoever reads can tell all at once.
"""

import csv
import io
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any, BinaryIO, ClassVar, NamedTuple, cast

import pyarrow.parquet as pq
from pyarrow.fs import FileType

from raylab.core.bounded import LINE_BYTES, elements, over, parse_json
from raylab.core.errors import DataError, RaylabError
from raylab.core.files import REQUEST_BYTES, Place
from raylab.core.printable import join_names
from raylab.label.codebooks.codebook import quote
from raylab.label.config.jobs import CasesConfig

TABLES, OBJECTS = (".csv", ".tsv"), (".jsonl", ".ndjson", ".json")
SHEETS = (b"PK\3\4", b"\xd0\xcf\x11\xe0")
"""The first bytes of spreadsheets, whatever their name."""
AS_CSV = "save a spreadsheet as CSV UTF-8"
HEAD_BYTES = 1 << 16
"""The encoding and the separator are read from this many first bytes."""
MAX_SHOWN = 20
"""Most rows, faults and columns that a message names."""
MAX_COLUMNS = 1000
"""Most keys of objects that are remembered."""
LOST = re.compile("[\udc80-\udcff]")
"""A byte that the encoding of a file does not have."""
FOREIGN = re.compile("[^\0-\x7f\ufffd]")
"""A character beyond ASCII, which proves the encoding that could read it."""
MEANINGS = ("trap", "reviewed", "open_book", "bait")
"""Keys of meta that mean something to raylab; a column of that name is the file's own affair."""
MISSING = ("", "na", "nan", "<na>", "n/a", "#n/a", "null", "[]", "-")
"""Missing values as programs and people write them, in lower case."""
BATCH_ROWS = 16
"""Few rows of Parquet at a time: a text that a file holds once may stand in each of them."""


class RowFault(NamedTuple):
    """The reason why a row cannot be used, and its kind."""

    kind: str
    problem: str


Rows = Iterator[tuple[str, object]]
"""Rows, or their faults, each behind its place, as errors name it."""


class Columns:
    """The columns of a file, and what each wanted column holds.

    Attributes:
        wanted: Names of columns by what they hold, such as `id` or `gold topics`.
        seen: The columns of all rows so far, and whether each is wanted.
        has_ids: False if rows are numbered instead.
    """

    noun: ClassVar[str] = "cases"
    encoding_key: ClassVar[str] = "cases.encoding"
    """What errors call the file, and the key of its encoding."""

    def __init__(self, location: str, config: CasesConfig) -> None:
        gold = config.gold if isinstance(config.gold, dict) else {"": config.gold}
        named = {"id": config.id, "description": config.text}
        named |= {f"gold {name}".strip(): column for name, column in gold.items()}
        self.wanted = {own: column or own for own, column in named.items()}
        self.wanted |= {"candidate": "candidate", "meta": "meta"}
        self.has_ids = True
        self._location = location
        self._needed = {own for own, column in named.items() if column} | {"description"}
        self.seen, self._met = dict[str, bool](), set[str]()
        self._latest, self._names = list[str](), dict[str, str]()

    def match(self, columns: Sequence[str]) -> dict[str, str]:
        """Returns the columns by what they hold, whatever their case and blanks."""
        alike = {_fold(column): column for column in reversed(columns)}
        alike |= {column: column for column in columns}
        ways = {own: alike.get(name) or alike.get(_fold(name)) for own, name in self.wanted.items()}
        return {own: column for own, column in ways.items() if column}

    def of_row(self, columns: list[str]) -> dict[str, str]:
        """Returns the columns of a row by what they hold, and remembers them."""
        if columns != self._latest:
            self._latest, self._names = columns, self.match(columns)
            if not self.seen:
                self.has_ids = "id" in self._names or "id" in self._needed
            if len(self.seen) < MAX_COLUMNS:
                self.seen = dict.fromkeys(columns, False) | self.seen
            self.seen |= dict.fromkeys(self._names.values(), True)
            self._met |= self._names.keys()
        return self._names

    def require(self) -> None:
        """Refuses a file that lacks a needed column in all rows so far."""
        keys = {"id": "cases.id", "description": "cases.text"}
        if missing := [own for own in self.wanted if own in self._needed - self._met]:
            lacks = [f"{self.wanted[own]} ({keys.get(own, 'cases.gold')}=)" for own in missing]
            there = join_names([*map(quote, self.seen)] or ["none"], MAX_SHOWN)
            raise DataError(
                f"cases {self._location} has no column {join_names(lacks)}. Its columns are "
                f"{there}: say which is which with cases.id=, cases.text= and cases.gold="
            )

    def notes(self) -> Iterator[str]:
        """Yields sentences on what a reader may not expect."""
        if not self.has_ids:
            yield f"{self._location} has no column id: row 12 has the id row-12, and so on."
        others = {name: meta_key(name) for name, is_used in self.seen.items() if not is_used}
        shown = [
            quote(name) if key == name else f"{quote(name)} (as {quote(key)})"
            for name, key in others.items()
        ]
        if shown:
            yield f"{self._location}: {join_names(shown, MAX_SHOWN)} went into meta."


def meta_key(column: str) -> str:
    """Returns the key in meta of a column that holds nothing else."""
    return f"{column} (column)" if column in MEANINGS else column


def is_missing(value: object) -> bool:
    """Returns True for null, NaN, and what is written in their place."""
    return value is None or " ".join(str(value).split()).lower() in MISSING


def _fold(name: str) -> str:
    return " ".join(name.split()).casefold()


def read_rows(location: str, encoding: str | None, columns: Columns) -> Rows:
    """Yields the rows of a file, whose path may be a URI that pyarrow's filesystems open.

    Args:
        encoding: That of text; None takes UTF-8, or UTF-16 with its mark.
        columns: Gets the columns of a table before its first row.

    Raises:
        DataError: The file cannot be read, or lacks a column.
    """
    file = Place.at(location)
    # To open a pipe waits for its writer.
    if file.info().type == FileType.Unknown:
        raise DataError(f"{columns.noun} {location} is no regular file: write its content into one")
    name = file.name.lower().removesuffix(".gz")
    if not name.endswith((*TABLES, *OBJECTS, ".parquet")):
        ends = f"{', '.join((*TABLES, *OBJECTS))} or .parquet"
        raise DataError(f"{columns.noun} {location}: the name should end in {ends}; {AS_CSV}")
    try:
        if name.endswith(".parquet"):
            with (
                file.filesystem.open_input_file(file.path) as content,
                pq.ParquetFile(content) as table,
            ):
                columns.of_row(table.schema_arrow.names)
                columns.require()
                rows = (row for each in table.iter_batches(BATCH_ROWS) for row in each.to_pylist())
                yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))
            return
        stream: Any = file.filesystem.open_input_stream(file.path, compression="detect")
        with io.BufferedReader(stream, REQUEST_BYTES) as content:
            text = _Text(content, columns, location, encoding)
            yield from text.table(columns) if name.endswith(TABLES) else text.objects()
    except RaylabError:
        raise
    except Exception as error:
        # pyarrow raises errors of many kinds for broken files and values beyond Python's types.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{columns.noun} {location} cannot be read: {reason}") from error


class _Text:
    """A text file; bytes that its encoding does not have are kept as lone surrogates."""

    def __init__(
        self, stream: io.BufferedReader, columns: Columns, location: str, encoding: str | None
    ) -> None:
        where, self._key = f"{columns.noun} {location}", columns.encoding_key
        head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
        if head.startswith(SHEETS):
            raise DataError(f"{where} is no text: {AS_CSV}")
        # Windows writes UTF-16 with a mark; without one, 8-bit text is the better guess.
        is_wide = head.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
        self._encoding = encoding or ("utf-16" if is_wide else "utf-8-sig")
        self._where, self._head = where, head.decode(self._encoding, "replace")
        self._is_proven = encoding is not None or is_wide or head.startswith(BOM_UTF8)
        self._is_proven |= FOREIGN.search(self._head) is not None
        self._stream = io.TextIOWrapper(stream, self._encoding, "surrogateescape", newline="")

    def table(self, columns: Columns) -> Rows:
        """Yields the rows of CSV that have a cell, by their number in a spreadsheet."""

        def rank(mark: str) -> tuple[int, int]:
            rows = csv.reader(io.StringIO(self._head, newline=""), delimiter=mark)
            names = next(filter(None, rows), [])
            return len(columns.match(names)), len(names)

        # Excel takes the separator from a first line sep=; that it does not show.
        is_stated = self._head.startswith("sep=")
        # The right separator gives the most wanted columns; of equal ones, the most columns.
        mark = self._head[4] if is_stated else max(",;\t|", key=rank)
        names = list[str]()
        for number, cells in enumerate(self._cells(mark, skip=int(is_stated)), 1):
            place = f"row {number}"
            if isinstance(cells, RowFault):
                yield place, cells
                continue
            # A row of blanks has a number in a spreadsheet, and is no row.
            if not any(map(str.strip, cells)):
                continue
            lost = self._lost(mark.join(cells), place)
            if not names and lost:
                raise DataError(f"{self._where}, {place}: {lost.problem}")
            if not names:
                for column, cell in enumerate(cells, 1):
                    name = " ".join(cell.split()) or f"column {column}"
                    names.append(f"{name} (column {column})" if name in names else name)
                columns.of_row(names)
                columns.require()
            elif len(cells) < len(names) or any(map(str.strip, cells[len(names) :])):
                problem = f"it has {len(cells)} cells, the first row {len(names)}: put a text with "
                problem += f"{mark!r} or a line break between quotation marks"
                yield place, lost or RowFault("other cells", problem)
            else:
                yield place, lost or dict(zip(names, cells, strict=False))

    def _cells(self, mark: str, skip: int) -> Iterator[list[str] | RowFault]:
        """Yields the cells of rows, blank or not, behind some lines."""
        lines, ahead = islice(self._lines(), skip, None), deque[str]()
        taken, width = list[str](), 0

        def take() -> Iterator[str]:
            while line := ahead.popleft() if ahead else next(lines, ""):
                taken.append(line)
                yield line

        # The limit of Python's module is close to the longest text.
        csv.field_size_limit(LINE_BYTES)
        table = csv.reader(take(), delimiter=mark, strict=True)
        while True:
            taken.clear()
            try:
                cells = next(table, None)
            except csv.Error as error:
                # A quotation mark that is none has taken the rows below into its text.
                ahead.extendleft(reversed(taken[1:]))
                table = csv.reader(take(), delimiter=mark, strict=True)
                # Many programs write no quotation marks around texts between tabs.
                cells = taken[0].rstrip("\r\n").split(mark)
                if mark != "\t" or len(cells) != width:
                    problem = (
                        f"its quotation marks do not fit ({error}): double those within a text"
                    )
                    yield RowFault("quotation marks", problem)
                    continue
            if cells is None:
                return
            width = width or len(cells)
            yield cells

    def objects(self) -> Rows:
        """Yields the objects of a JSON list, or those of lines that are not blank."""
        start = self._head.lstrip("\ufeff \t\r\n")
        if not start.startswith("["):
            # A line of an object that is written over several ends in one of these.
            if (first := start.partition("\n")[0].rstrip()).endswith(("{", "[", ",")):
                raise DataError(
                    f"{self._where} begins with {quote(first)}, an object over several lines: "
                    "write a list of objects, or each on a line of its own"
                )
            for number, line in enumerate(self._lines(), 1):
                if line.strip():
                    yield (place := f"line {number}"), self._parse(line, place)
            return
        while self._stream.read(1) != "[":
            pass
        # A list may be larger than memory, so its elements are read one at a time.
        rows = elements(cast(BinaryIO, self), self._where, LINE_BYTES, "surrogateescape")
        for number in count(1):
            place = f"row {number}"
            try:
                yield place, self._parse(json.dumps(next(rows), ensure_ascii=False), place)
            except StopIteration as end:
                if rest := end.value.strip():
                    raise DataError(f"{self._where}: after the list comes {quote(rest)}") from None
                return

    def read(self, most: int, /) -> bytes:
        """Returns the next characters, in UTF-8."""
        return self._stream.read(most).encode(errors="surrogateescape")

    def _lines(self) -> Iterator[str]:
        for number, line in enumerate(iter(lambda: self._stream.readline(LINE_BYTES), ""), 1):
            if len(line) == LINE_BYTES:
                where = f"{self._where}, line {number}"
                raise over(where, "bytes", LINE_BYTES, "write a shorter line")
            yield line

    def _parse(self, text: str, place: str) -> object:
        if lost := self._lost(text, place):
            return lost
        try:
            return parse_json(text, "it")
        except DataError as error:
            return RowFault("no JSON", str(error).removeprefix("it: "))

    def _lost(self, text: str, place: str) -> RowFault | None:
        """Returns the fault of a row in another encoding; refuses a file that is all in another."""
        if text.isascii():
            return None
        if not (byte := LOST.search(text)):
            self._is_proven = True
            return None
        around = text[max(byte.start() - 20, 0) : byte.end() + 20].encode(errors="surrogateescape")
        guess = f"in Windows-1252 it has {quote(around.decode('cp1252', 'replace'))}"
        if self._is_proven:
            name = self._encoding.removesuffix("-sig").upper()
            return RowFault(f"not {name}", f"it is not {name}: {guess}. Save the file as UTF-8")
        raise DataError(
            f"{self._where} is not UTF-8, {place}: {guess}. Save the file as UTF-8, or name its "
            f"encoding, as in {self._key}=windows-1252"
        )
