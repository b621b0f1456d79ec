"""Cases to annotate: texts, streamed from files or from the sets that come with a codebook.

A case file is JSONL, also with gzip, or Parquet, with rows `{id, description, gold?,
candidate?: {code, rationale}, meta?}`:

    {"id": "pid", "description": "I would buy it again.", "gold": "positive"}

No row is skipped: a row that cannot be used raises an error that names it. Memory holds one batch
of rows, and all ids, to detect duplicates.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
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

from raylab.core.bounded import lines, parse_json
from raylab.core.config.base import AS_PUBLISHED, Strict
from raylab.core.errors import ConfigError, DataError, LabelError, RaylabError
from raylab.core.files import REQUEST_BYTES, Place
from raylab.label.codebooks.codebook import Codebook, Label, quote
from raylab.label.config.jobs import AnnotateConfig

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")
MAX_ID_BYTES = 255
"""Most bytes of an id with its generation."""
BATCH_ROWS = 16
"""Few rows of Parquet at a time: a text that a file holds once may stand in each of them."""


# Rows


class _Context(NamedTuple):
    """The codebook and the generation that rows are read with."""

    codebook: Codebook
    generation: str | None


def _context(info: ValidationInfo) -> _Context:
    return cast(_Context, info.context)


def _check_text(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("should be text that is not empty and has no NUL")
    return text


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
            value = parse_json(value, "its text")
        except DataError as error:
            raise ValueError(f"should be an object, or JSON text of one: {error}") from None
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if each is not None} or None
    return value


def _as_text(value: object) -> object:
    """Returns the JSON text of a code that is given as a list or an object."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _read_gold(value: object, info: ValidationInfo) -> tuple[str | None, Label | None]:
    codebook, text = _context(info).codebook, _as_text(value)
    if text is None:
        return None, None
    problem = f"should be {codebook.label_name} as text, or left out"
    if not isinstance(text, str):
        raise ValueError(problem)
    try:
        label = codebook.parse_gold(text)
    except LabelError as error:
        raise ValueError(f"{problem}; {str(error).splitlines()[0]}") from None
    if not label.parts:
        raise ValueError(f"{problem}; it has no field that is compared")
    return text, label


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


class _Row(Strict):
    id: Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(_check_id)]
    description: Written
    gold: Annotated[tuple[str | None, Label | None], PlainValidator(_read_gold)] = (None, None)
    candidate: Annotated[CandidateCode | None, BeforeValidator(_read_object)] = None
    meta: Annotated[_Meta | None, BeforeValidator(_read_object)] = None


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


def _problem(error: ValidationError) -> str:
    """Returns the first problem of a row, with its key and value."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{key} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "is no key that is read: move it into meta"
    return f"{key} is {quote(first['input'])}, {message}"


# Files


def read_cases(
    location: str,
    codebook: Codebook,
    generation: str | None = None,
    taken: set[str] | None = None,
) -> Iterator[Case]:
    """Streams the cases of a file.

    Args:
        location: Path, or URI that pyarrow's filesystems open, of a `.jsonl`, `.jsonl.gz` or
            `.parquet` file. Blank lines of JSONL are ignored; numbers as ids are read as text.
        generation: Generation that the cases are; ids are prefixed with it and a slash.
        taken: Ids of earlier cases, to which those of the file are added.

    Yields:
        The cases in order. An error is raised when its row is reached.

    Raises:
        DataError: The file cannot be read, holds no row, or a row cannot be used.
    """
    taken = set() if taken is None else taken
    before = len(taken)
    for place, row in _rows(location):
        if not isinstance(row, dict):
            raise DataError(f"{place}: {quote(row)} is no JSON object")
        try:
            read = _Row.model_validate(row, context=_Context(codebook, generation))
        except ValidationError as error:
            raise DataError(f"{place}: {_problem(error)}") from None
        meta = {} if read.meta is None else read.meta.model_dump(exclude_unset=True)
        case = Case(read.id, read.description, *read.gold, meta, read.candidate)
        if case.id in taken:
            raise DataError(f"{place}: id is {quote(case.id)}, as in an earlier row: rename one")
        taken.add(case.id)
        yield case
    if len(taken) == before:
        raise DataError(f"cases {location}: the file holds no case")


def _rows(location: str) -> Iterator[tuple[str, object]]:
    """Yields each row with its place, as errors name it."""
    file = Place.at(location)
    # To open a pipe waits for its writer.
    if file.info().type == FileType.Unknown:
        raise DataError(f"cases {location} is no regular file: write its content into one")
    if file.name.endswith(".parquet"):
        rows = _parquet_rows(file)
    elif file.name.endswith(JSONL_SUFFIXES):
        rows = _jsonl_rows(file)
    else:
        raise DataError(f"cases {location}: the name should end in .jsonl, .jsonl.gz or .parquet")
    try:
        yield from rows
    except RaylabError:
        raise
    except Exception as error:
        # pyarrow raises errors of many kinds for broken files and values beyond Python's types.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"cases {location} cannot be read: {reason}") from error


def _jsonl_rows(file: Place) -> Iterator[tuple[str, object]]:
    stream: Any = file.filesystem.open_input_stream(file.path, compression="detect")
    with closing(io.BufferedReader(stream, REQUEST_BYTES)) as rows:
        for number, line in lines(rows, f"cases {file}"):
            place = f"cases {file}, line {number}"
            yield place, parse_json(line, place)


def _parquet_rows(file: Place) -> Iterator[tuple[str, object]]:
    with file.filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as table:
        rows = (row for batch in table.iter_batches(BATCH_ROWS) for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"cases {file}, row {number}", row


# The cases of a run


def select_cases(config: AnnotateConfig, codebook: Codebook) -> Iterator[tuple[str, Case]]:
    """Yields every case of a run with its generation.

    The ids of further generations are prefixed with the generation's name.

    Raises:
        ConfigError: Two generations would have the same name, or the codebook has no such cases.
        DataError: A source cannot be used, or the run judges candidates and a case has none.
    """
    taken: set[str] = set()
    generations, own, sets = generation_files(config.generations), config.cases, codebook.case_sets
    chosen = own.packaged or next(iter(sets), "")
    if own.path is None and chosen not in sets:
        way_out = f"cases.packaged= takes {', '.join(sets)}" if sets else "give cases.path=FILE"
        missing = f"case set {chosen}" if chosen else "cases of its own"
        raise ConfigError(f"the codebook {codebook.name} has no {missing}: {way_out}")
    files = sets[chosen] if own.path is None else [own.path]
    published = (case for file in files for case in read_cases(file, codebook, taken=taken))
    sources: dict[str, Iterator[Case]] = {AS_PUBLISHED: islice(published, own.take)}
    for name, location in generations.items():
        sources[name] = read_cases(location, codebook, name, taken)
    for name, cases in sources.items():
        for case in cases:
            if config.protocol.stages == "evaluate" and case.candidate is None:
                raise DataError(
                    f"case {case.id} has no candidate, which protocol.stages=evaluate judges: add "
                    "candidate: {code, rationale} to its row, or let protocol.stages=all "
                    "classify it"
                )
            yield name, case


def generation_files(locations: Sequence[str]) -> dict[str, str]:
    """Returns the case files of further generations, by file name without extensions."""
    files = {Place.at(location).name.partition(".")[0]: location for location in locations}
    if len(files) < len(locations) or AS_PUBLISHED in files:
        raise ConfigError("generations: two are called the same, or one published: rename it")
    return files
