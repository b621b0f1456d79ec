"""Cases to annotate: texts, streamed from files or from the sets that come with a codebook.

A file is CSV, Parquet, or JSON with an object a line or a list of them, and has rows
`{id, description, gold?, candidate?: {code, rationale}, meta?}`:

    {"id": "pid", "description": "I would buy it again.", "gold": "positive"}

`cases.id`, `cases.text` and `cases.gold` name other columns; those that are left go into meta. Rows
that cannot be used are told together when all are read, and end the run or, with
`cases.skip_unusable`, are left out. Memory holds one batch of rows, and all ids.
"""

import csv
import hashlib
import io
import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Annotated, Any, NamedTuple, cast

import pyarrow.parquet as pq
from pyarrow.fs import FileType
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PlainValidator,
    StrictBool,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from raylab.core.bounded import LINE_BYTES, elements, over, parse_json
from raylab.core.config.base import AS_PUBLISHED, Strict
from raylab.core.config.yaml import plain_value
from raylab.core.errors import ConfigError, DataError, LabelError, RaylabError
from raylab.core.files import REQUEST_BYTES, Place
from raylab.core.printable import join_names
from raylab.label.codebooks.codebook import Codebook, Label, quote
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.config.sections import CasesConfig

TABLES, OBJECTS = (".csv", ".tsv"), (".jsonl", ".ndjson", ".json")
SHEETS = (b"PK\3\4", b"\xd0\xcf\x11\xe0")
"""The first bytes of spreadsheets, whatever their name."""
AS_CSV = "save a spreadsheet as CSV UTF-8"
KINDS = ("no text", "NUL")
HEAD_BYTES = 1 << 16
"""Bytes by which the encoding and the separator are found."""
MAX_ID_BYTES = 255
"""Most bytes of an id with its generation."""
MAX_SHOWN = 20
"""Most rows, faults and columns that a message names."""
MAX_COLUMNS = 1000
"""Most keys of objects that are remembered."""
LOST = re.compile("[\udc80-\udcff]")
"""A byte that is no UTF-8."""
BATCH_ROWS = 16
"""Few rows of Parquet at a time: a text that a file holds once may stand in each of them."""


# Rows


class _Context(NamedTuple):
    """What rows are read with."""

    codebook: Codebook
    generation: str | None = None
    longest: int | None = None
    """Most characters of a description."""


def _context(info: ValidationInfo) -> _Context:
    return cast(_Context, info.context)


def _check_text(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("no text", "should not be empty: write a text, or remove the row")
    if "\0" in text:
        raise PydanticCustomError("NUL", "should have no NUL: remove that character")
    return text


def _read_id(value: object) -> object:
    """Reads 12 where a spreadsheet has written 12.0 or ="12"."""
    if isinstance(value, str):
        return re.sub(r'^="(.*)"$|^(\d+)\.0$', r"\1\2", value.strip(" \t\r\n"))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_id(text: str, info: ValidationInfo) -> str:
    if not text or not text.isprintable() or text != text.strip():
        raise ValueError("should be text of visible characters, without outer blanks")
    generation = _context(info).generation
    whole = text if generation is None else f"{generation}/{text}"
    if len(whole.encode()) > MAX_ID_BYTES:
        raise ValueError(f"should have at most {MAX_ID_BYTES} bytes with its generation")
    return whole


def _read_object(value: object) -> object:
    """Reads an object, or JSON text of one; a Parquet struct has every key in every row."""
    if isinstance(value, str):
        try:
            value = parse_json(value, "its text") if value.strip() else None
        except DataError as error:
            raise ValueError(f"should be an object, or JSON text of one: {error}") from None
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if each is not None} or None
    return value


def _as_json(value: dict[str, object]) -> object:
    """Returns values of Parquet, such as dates, as JSON has them."""
    return json.loads(json.dumps(value, default=str))


def _as_text(value: object) -> object:
    """Returns the JSON text of a code that is given as a list or an object."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _read_gold(value: object, info: ValidationInfo) -> tuple[str | None, Label | None]:
    codebook = _context(info).codebook
    problem = f"should be left out, or be text such as {quote(codebook.examples[0])}"
    try:
        if isinstance(value, dict) and codebook.fields:
            cells = cast("dict[str, object]", value).items()
            value = {name: _cell(codebook, name, own) for name, own in cells if _is_there(own)}
        if not _is_there(text := _as_text(value)) or value == {}:
            return None, None
        if not isinstance(text, str):
            raise ValueError(problem)
        label = codebook.parse_gold(text)
    except LabelError as error:
        raise ValueError(f"{problem}; {str(error).splitlines()[0]}") from None
    if not label.parts:
        raise ValueError(f"{problem}; it has no field that is compared")
    return text, label


def _cell(codebook: Codebook, name: str, value: object) -> object:
    """Returns the value of a field as the codebook reads it: as it is, a list, or a number."""
    ways, errors = [value], list[LabelError]()
    if isinstance(value, str):
        ways.append([each.strip() for each in re.split(r"[,;|\n]", value) if each.strip()])
        ways.append(plain_value(value.strip()[:MAX_ID_BYTES].replace(",", ".")))
    ways += [int(way) for way in ways if isinstance(way, float) and way.is_integer()]
    for way in ways:
        try:
            codebook.parse_gold(json.dumps({name: way}))
            return way
        except LabelError as error:
            errors.append(error)
    # That a text is no list is no help to people.
    raise next((error for error in errors if "valid list" not in str(error)), errors[0])


def _is_there(value: object) -> bool:
    """Returns False for what is empty: null, blanks, or NaN, which pandas writes for null."""
    return bool(value.strip()) if isinstance(value, str) else value is not None and value == value


def _check_bait(bait: list[str], info: ValidationInfo) -> list[str]:
    categories = _context(info).codebook.categories
    if not set(bait) <= categories.keys():
        raise ValueError(f"should be a list of {', '.join(categories)}")
    return bait


Written = Annotated[str, AfterValidator(_check_text)]


class CandidateCode(Strict):
    """A classification that came with a case, to be judged."""

    code: Annotated[Written, BeforeValidator(_as_text)]
    """As written; it need not be readable."""
    rationale: str = ""


class _Meta(Strict, extra="allow"):
    __pydantic_extra__: dict[str, JsonValue]  # pyright: ignore[reportIncompatibleVariableOverride]
    trap: StrictBool = False
    reviewed: StrictBool = True
    open_book: StrictBool = False
    bait: Annotated[list[str], AfterValidator(_check_bait)] = Field(default_factory=list[str])


Id = Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(_check_id)]


class _Row(Strict):
    id: Annotated[Id, BeforeValidator(_read_id)]
    description: Written
    gold: Annotated[tuple[str | None, Label | None], PlainValidator(_read_gold)] = (None, None)
    candidate: Annotated[CandidateCode | None, BeforeValidator(_read_object)] = None
    meta: Annotated[_Meta | None, BeforeValidator(_read_object)] = None
    others: Annotated[_Meta | None, BeforeValidator(_as_json)] = None
    """The columns that are left."""


@dataclass(frozen=True)
class Case:
    """A text to classify.

    Attributes:
        id: Unique within a run.
        gold: Label by a person, as written; None if there is none.
        gold_label: The label that was read from gold; None if there is none.
        meta: Further JSON values. Four keys have a meaning: `trap` (true if the description
            suggests a wrong category), `bait` (list of the categories it suggests), `reviewed`
            (false if gold is one person's proposal) and `open_book` (true if prompts name it).
        candidate: A classification for the evaluator to judge; None if there is none.
    """

    id: str
    description: str
    gold: str | None = None
    gold_label: Label | None = None
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    candidate: CandidateCode | None = None

    @property
    def description_hash(self) -> str:
        """The SHA-256 of the description, in hexadecimal."""
        return hashlib.sha256(self.description.encode()).hexdigest()

    @property
    def trap(self) -> bool:
        """True if the description suggests a wrong category."""
        return bool(self.meta.get("trap"))


# The cases of a run


def select_cases(
    config: AnnotateConfig, codebook: Codebook, notices: list[str] | None = None
) -> Iterator[tuple[str, Case]]:
    """Yields every case of a run with its generation.

    The ids of further generations are prefixed with the generation's name.

    Args:
        notices: Gets sentences on how the input was read, and which rows were left out.

    Raises:
        ConfigError: Two generations would have the same name, or the codebook has no such cases or
            fields.
        DataError: A source cannot be used, or rows cannot; these are told when all are read.
    """
    generations, own, sets = generation_files(config.generations), config.cases, codebook.case_sets
    chosen = own.packaged or next(iter(sets), "")
    if own.path is None and chosen not in sets:
        way_out = f"cases.packaged= takes {', '.join(sets)}" if sets else "give cases.path=FILE"
        missing = f"case set {chosen}" if chosen else "cases of its own"
        raise ConfigError(f"the codebook {codebook.name} has no {missing}: {way_out}")
    if isinstance(own.gold, dict) and (wrong := [*own.gold.keys() - codebook.fields.keys()]):
        fields = ", ".join(codebook.fields) or "no fields: give cases.gold=COLUMN"
        raise ConfigError(f"cases.gold names {wrong[0]}, but {codebook.name} has {fields}")
    longest = codebook.prompts[config.llm.prompt].classify.longest
    files = sets[chosen] if own.path is None else [own.path]
    sources = [_Source(file, own, _Context(codebook, None, longest)) for file in files]
    ids, groups = set[str](), {AS_PUBLISHED: [*sources]}
    for name, location in generations.items():
        groups[name] = [_Source(location, own, _Context(codebook, name, longest))]
        sources += groups[name]
    for name, group in groups.items():
        cases = (case for source in group for case in source.read(ids))
        for case in islice(cases, own.take if name == AS_PUBLISHED else None):
            if config.protocol.stages == "evaluate" and case.candidate is None:
                raise DataError(
                    f"case {case.id} has no candidate, which protocol.stages=evaluate judges: add "
                    "candidate: {code, rationale} to its row, or let protocol.stages=all "
                    "classify it"
                )
            yield name, case
    found = _judge(sources, own.skip_unusable)
    if notices is not None:
        notices += found


def generation_files(locations: Sequence[str]) -> dict[str, str]:
    """Returns the case files of further generations, by file name without extensions."""
    files = {Place.at(location).name.partition(".")[0]: location for location in locations}
    if len(files) < len(locations) or AS_PUBLISHED in files:
        raise ConfigError("generations: two are called the same, or one published: rename it")
    return files


def read_cases(
    location: str, codebook: Codebook, cases: CasesConfig | None = None
) -> Iterator[Case]:
    """Streams the cases of a file, whose path may be a URI that pyarrow's filesystems open.

    Args:
        cases: The names of its columns, and whether rows that cannot be used are left out.

    Raises:
        DataError: The file cannot be read, or rows cannot be used; these are told at its end.
    """
    cases = cases or CasesConfig()
    source = _Source(location, cases, _Context(codebook))
    yield from source.read(set())
    _judge([source], cases.skip_unusable)


def _judge(sources: Sequence["_Source"], skip: bool) -> list[str]:
    """Refuses rows that cannot be used, or returns sentences on how the files were read."""
    unusable = [source for source in sources if source.unusable]
    if refused := [s for s in unusable if not skip or s.unusable == s.rows]:
        problems = [line for s in refused for line in (f"cases {s}:", *s.shown)]
        way_out = "repair the rows, or leave them out with cases.skip_unusable=true"
        raise DataError("\n".join([*problems, way_out]))
    left_out = [f"Left out by cases.skip_unusable: {source}." for source in unusable]
    return left_out + [note for source in sources for note in source.notes()]


class _Fault(NamedTuple):
    """Why a row cannot be used, and the kind of the reason."""

    kind: str
    problem: str


class _Source:
    """A file of cases: what its columns hold, and which of its rows cannot be used."""

    def __init__(self, location: str, cases: CasesConfig, context: _Context) -> None:
        gold = cases.gold if isinstance(cases.gold, dict) else {"": cases.gold}
        named = {"id": cases.id, "description": cases.text}
        named |= {f"gold {name}".strip(): column for name, column in gold.items()}
        self._location, self._context = location, context
        self._needed = [own for own, column in named.items() if column or own == "description"]
        self.wanted = {own: column or own for own, column in named.items()}
        self.wanted |= {"candidate": "candidate", "meta": "meta"}
        self._columns, self._there, self._has_ids = dict[str, bool](), set[str](), True
        self._latest, self._names = list[str](), dict[str, str]()
        self.rows, self.unusable = 0, 0
        self.shown, self._places = list[str](), dict[str, list[str]]()

    def __str__(self) -> str:
        kinds = "; ".join(
            f"{kind} in {len(places):,}: {join_names(places, MAX_SHOWN)}"
            for kind, places in self._places.items()
        )
        return f"{self._location}: {self.unusable:,} of {self.rows:,} rows are unusable ({kinds})"

    def notes(self) -> Iterator[str]:
        """Yields sentences on what a reader may not expect."""
        if not self._has_ids:
            yield f"{self._location} has no column id: row 12 has the id row-12, and so on."
        if others := [quote(name) for name, is_used in self._columns.items() if not is_used]:
            yield f"{self._location}: {join_names(others, MAX_SHOWN)} went into meta."

    def read(self, ids: set[str]) -> Iterator[Case]:
        """Yields the cases that can be used, in order, and adds their ids to those of others."""
        for place, row in _rows(self._location, self):
            self.rows += 1
            case = self._case(row, place, ids)
            if isinstance(case, Case):
                ids.add(case.id)
                yield case
                continue
            self.unusable += 1
            self._places.setdefault(case.kind, []).append(place.partition(" ")[2])
            if len(self.shown) < MAX_SHOWN:
                self.shown.append(f"  {place}: {case.problem}")
        if not self.rows:
            raise DataError(f"cases {self._location}: the file holds no case")
        if self._columns:
            self.require()

    def require(self, columns: Sequence[str] = ()) -> None:
        """Refuses a file that lacks a needed column; those of a table are known at its start."""
        self._find([*columns])
        keys = {"id": "cases.id", "description": "cases.text"}
        if missing := [own for own in self._needed if own not in self._there]:
            lacks = [f"{self.wanted[own]} ({keys.get(own, 'cases.gold')}=)" for own in missing]
            there = join_names([*map(quote, self._columns)] or ["none"], MAX_SHOWN)
            raise DataError(
                f"cases {self._location} has no column {join_names(lacks)}. Its columns are "
                f"{there}: say which is which with cases.id=, cases.text= and cases.gold="
            )

    def _find(self, columns: list[str]) -> dict[str, str]:
        """Returns the columns of a row by what they hold, and remembers them."""
        if columns != self._latest:
            self._latest, self._names = columns, _match(self.wanted, columns)
            if not self._columns:
                self._has_ids = "id" in self._names or "id" in self._needed
            if len(self._columns) < MAX_COLUMNS:
                self._columns = dict.fromkeys(columns, False) | self._columns
            self._columns |= dict.fromkeys(self._names.values(), True)
            self._there |= self._names.keys()
        return self._names

    def _case(self, row: object, place: str, ids: set[str]) -> Case | _Fault:
        if isinstance(row, _Fault):
            return row
        if not isinstance(row, dict):
            return _Fault("no object", f"{quote(row)} is no JSON object")
        cells = cast("dict[str, Any]", row)
        names = self._find([*cells])
        values = {own: cells[column] for own, column in names.items()}
        if parts := {own: values.pop(own) for own in names if own.startswith("gold ")}:
            values["gold"] = {own.partition(" ")[2]: cell for own, cell in parts.items()}
        if not self._has_ids:
            values.setdefault("id", f"row-{place.partition(' ')[2]}")
        rest = (column for column in cells if column not in names.values())
        if others := {column: cells[column] for column in rest if _is_there(cells[column])}:
            values["others"] = others
        try:
            read = _Row.model_validate(values, context=self._context)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            kind, own = errors[0]["type"], str(errors[0]["loc"][0])
            wrong = "meta" if own == "others" else self.wanted.get(own, own)
            problems = "; ".join(_problem(each, self.wanted) for each in errors)
            return _Fault(kind if kind in KINDS else f"wrong {wrong}", problems)
        length = len(read.description)
        if length > (longest := self._context.longest or length):
            problem = f"a text of {length:,} characters, where prompts take {longest:,}: shorten it"
            return _Fault("too long", problem)
        if read.id in ids:
            problem = f"{self.wanted['id']} is {quote(read.id)}, as in an earlier row: rename one"
            return _Fault("id twice", problem)
        meta = dict[str, Any]()
        for each in (read.others, read.meta):
            meta |= each.model_dump(exclude_unset=True) if each else {}
        return Case(read.id, read.description, *read.gold, meta, read.candidate)


def _match(wanted: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    """Returns the columns by what they hold, whatever their case and blanks."""
    alike = {_fold(column): column for column in reversed(columns)}
    alike |= {column: column for column in columns}
    ways = {own: alike.get(name) or alike.get(_fold(name)) for own, name in wanted.items()}
    return {own: column for own, column in ways.items() if column}


def _fold(name: str) -> str:
    return " ".join(name.split()).casefold()


def _problem(error: Any, columns: Mapping[str, str]) -> str:
    """Returns a problem of a row, with its column and value."""
    own, *keys = error["loc"]
    column = ".".join(map(str, keys if own == "others" else [columns.get(own, own), *keys]))
    if error["type"] == "missing":
        return f"{column} is missing"
    return f"{column} is {quote(error['input'])}, {error['msg'].removeprefix('Value error, ')}"


# Files


def _rows(location: str, source: _Source) -> Iterator[tuple[str, object]]:
    """Yields each row, or its fault, with its place, as errors name it."""
    file = Place.at(location)
    # To open a pipe waits for its writer.
    if file.info().type == FileType.Unknown:
        raise DataError(f"cases {location} is no regular file: write its content into one")
    name = file.name.lower().removesuffix(".gz")
    if not name.endswith((*TABLES, *OBJECTS, ".parquet")):
        ends = f"{', '.join((*TABLES, *OBJECTS))} or .parquet"
        raise DataError(f"cases {location}: the name should end in {ends}; {AS_CSV}")
    try:
        if name.endswith(".parquet"):
            yield from _parquet_rows(file, source)
            return
        stream: Any = file.filesystem.open_input_stream(file.path, compression="detect")
        with io.BufferedReader(stream, REQUEST_BYTES) as text:
            yield from (_table if name.endswith(TABLES) else _objects)(text, file, source)
    except RaylabError:
        raise
    except Exception as error:
        # pyarrow raises errors of many kinds for broken files and values beyond Python's types.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"cases {location} cannot be read: {reason}") from error


def _parquet_rows(file: Place, source: _Source) -> Iterator[tuple[str, object]]:
    with file.filesystem.open_input_file(file.path) as content, pq.ParquetFile(content) as table:
        source.require(table.schema_arrow.names)
        rows = (row for batch in table.iter_batches(BATCH_ROWS) for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"row {number}", row


def _table(stream: io.BufferedReader, file: Place, source: _Source) -> Iterator[tuple[str, object]]:
    """Yields the rows of CSV that have a cell, by their number in a spreadsheet."""
    encoding, head = _look(stream, file)

    def rank(mark: str) -> tuple[int, int]:
        rows = csv.reader(io.StringIO(head, newline=""), delimiter=mark)
        columns = next(filter(None, rows), [])
        return len(_match(source.wanted, columns)), len(columns)

    # Excel takes the separator from a first line sep=; that it does not show.
    is_stated = head.startswith("sep=")
    mark = head[4] if is_stated else max(",;\t|", key=rank)
    # The limit of Python's module is close to the longest text.
    csv.field_size_limit(LINE_BYTES)
    table = csv.reader(_lines(stream, encoding, file), delimiter=mark, strict=True)
    if is_stated:
        next(table)
    names = list[str]()
    for number in count(1):
        place = f"row {number}"
        try:
            cells = next(table, None)
        except csv.Error as error:
            problem = f"its quotation marks do not fit ({error}): double those within a text"
            yield place, _Fault("quotation marks", problem)
            continue
        if cells is None:
            return
        if not any(map(str.strip, cells)):
            continue
        lost = _lost(mark.join(cells))
        if not names and lost:
            raise DataError(f"cases {file}, {place}: {lost.problem}")
        if not names:
            for column, cell in enumerate(cells, 1):
                name = " ".join(cell.split()) or f"column {column}"
                names.append(f"{name} (column {column})" if name in names else name)
            source.require(names)
        elif len(cells) < len(names) or any(map(str.strip, cells[len(names) :])):
            problem = f"it has {len(cells)} cells, the first row {len(names)}: put a text with "
            problem += f"{mark!r} or a line break between quotation marks"
            yield place, lost or _Fault("other cells", problem)
        else:
            yield place, lost or dict(zip(names, cells, strict=False))


def _objects(stream: io.BufferedReader, file: Place, _: _Source) -> Iterator[tuple[str, object]]:
    """Yields the objects of a JSON list, or those of lines that are not blank."""
    encoding, head = _look(stream, file)
    if not head.lstrip().startswith("["):
        for number, line in enumerate(_lines(stream, encoding, file), 1):
            if line.strip():
                yield f"line {number}", _parse(line)
        return
    if encoding == "utf-16":
        raise DataError(f"cases {file} is a list in UTF-16: save it as UTF-8")
    while stream.read(1) != b"[":
        pass
    rows = elements(stream, f"cases {file}", LINE_BYTES, "surrogateescape")
    for number in count(1):
        try:
            yield f"row {number}", _parse(json.dumps(next(rows), ensure_ascii=False))
        except StopIteration as end:
            if rest := end.value.strip():
                raise DataError(f"cases {file}: after the list comes {quote(rest)}") from None
            return


def _look(stream: io.BufferedReader, file: Place) -> tuple[str, str]:
    """Returns the encoding and the beginning of a file."""
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    if head.startswith(SHEETS):
        raise DataError(f"cases {file} is no text: {AS_CSV}")
    encoding = "utf-16" if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"
    return encoding, head.decode(encoding, "replace")


def _lines(stream: io.BufferedReader, encoding: str, file: Place) -> Iterator[str]:
    text = io.TextIOWrapper(stream, encoding, "surrogateescape", newline="")
    for number, line in enumerate(iter(lambda: text.readline(LINE_BYTES), ""), 1):
        if len(line) == LINE_BYTES:
            raise over(f"cases {file}, line {number}", "bytes", LINE_BYTES, "write a shorter line")
        yield line


def _parse(text: str) -> object:
    try:
        return _lost(text) or parse_json(text, "it")
    except DataError as error:
        return _Fault("no JSON", str(error).removeprefix("it: "))


def _lost(text: str) -> _Fault | None:
    """Returns the fault of a text in another encoding than UTF-8."""
    if not (byte := LOST.search(text)):
        return None
    around = text[max(byte.start() - 20, 0) : byte.end() + 20].encode(errors="surrogateescape")
    guess = quote(around.decode("cp1252", "replace"))
    problem = f"it is not UTF-8: in Windows-1252 it has {guess}. Save the file as UTF-8"
    return _Fault("not UTF-8", problem)
