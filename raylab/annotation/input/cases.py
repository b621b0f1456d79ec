"""Cases to annotate: system descriptions, streamed from files, the package or installed code.

A case file is JSONL, also compressed, or Parquet, with rows `{id, description, gold?,
candidate?: {code, rationale}, meta?}`:

    {"id": "pid", "description": "I would buy it again.", "gold": "positive"}

No row is skipped: a row that cannot be used raises an error that names it. Memory holds one batch
of rows, and all ids, to detect duplicates.
"""

import hashlib
import inspect
import io
import json
import pkgutil
import platform
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from itertools import chain, islice
from math import isfinite
from typing import Annotated, Any, NamedTuple, cast

import pyarrow.parquet as pq
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    StrictBool,
    ValidationError,
    ValidationInfo,
)

from raylab.bounded import lines, parse_json
from raylab.codebook import Codebook, Label
from raylab.config.annotation import CasesConfig
from raylab.config.base import AS_PUBLISHED, Strict
from raylab.errors import ConfigError, DataError, LabelError, RaylabError
from raylab.files import REQUEST_BYTES, Place

JSONL_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet", ".pq")
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
LONGEST_ID = 255
"""Longest id in bytes, with its generation: file systems have no longer name."""
BATCH_ROWS = 16
"""Few rows of Parquet at a time: a text that a file holds once may stand in each of them."""
SHOWN = 60


# Rows


class _Reading(NamedTuple):
    """What rows are read with."""

    codebook: Codebook
    generation: str | None


def _reading(info: ValidationInfo) -> _Reading:
    return cast(_Reading, info.context)


def _read_text(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("should be text that is not empty and has no NUL")
    return text


def _read_id(value: object, info: ValidationInfo) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    text = str(value) if number else value
    if not isinstance(text, str) or not text.isprintable() or text != text.strip() or not text:
        raise ValueError("should be text of visible characters, without outer blanks")
    generation = _reading(info).generation
    whole = text if generation is None else f"{generation}/{text}"
    if len(whole.encode()) > LONGEST_ID:
        raise ValueError(f"should have at most {LONGEST_ID} bytes with its generation")
    return whole


def _read_object(value: object) -> object:
    """Reads an object that is given as one or as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, "its text")
    except DataError as error:
        raise ValueError(f"should be an object, or JSON text of one: {error}") from None


def _read_candidate(value: object) -> object:
    fields = _read_object(value)
    # A Parquet column of structs has every key in every row.
    return _without_nulls(fields) or None if isinstance(fields, dict) else fields


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _as_text(value: object) -> object:
    """Returns the JSON text of a list or an object, as which codes may be given."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _read_gold(value: object, info: ValidationInfo) -> tuple[str | None, Label | None]:
    codebook, value = _reading(info).codebook, _as_text(value)
    try:
        label = codebook.parse(value) if isinstance(value, str) else None
    except LabelError as error:
        problem = str(error).partition("\n")[0]
        raise ValueError(f"should be {codebook.label_name}, or left out; {problem}") from None
    if value is not None and label is None:
        raise ValueError(f"should be {codebook.label_name} as text, or left out")
    return cast(str | None, value), label


def _check_bait(bait: list[str], info: ValidationInfo) -> list[str]:
    categories = _reading(info).codebook.categories
    if not set(bait) <= categories.keys():
        raise ValueError(f"should be a list of {', '.join(categories)}")
    return bait


Written = Annotated[str, AfterValidator(_read_text)]


class CandidateCode(Strict):
    """A classification that came with a case, to be judged."""

    code: Annotated[Written, BeforeValidator(_as_text)]
    """As written; it need not be readable."""
    rationale: str = ""


class _Meta(Strict, extra="allow"):
    trap: StrictBool = False
    reviewed: StrictBool = True
    open_book: StrictBool = False
    bait: Annotated[list[str], AfterValidator(_check_bait)] = Field(default_factory=list[str])


class _Row(Strict):
    id: Annotated[str, BeforeValidator(_read_id)]
    description: Written
    gold: Annotated[tuple[str | None, Label | None], PlainValidator(_read_gold)] = (None, None)
    candidate: Annotated[CandidateCode | None, BeforeValidator(_read_candidate)] = None
    meta: Annotated[_Meta | None, BeforeValidator(_read_object)] = None


@dataclass(frozen=True)
class Case:
    """A system to classify.

    Attributes:
        id: Unique within a run.
        description: Source code, algorithm or summary of a project.
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


def _case(place: str, row: object, codebook: Codebook, generation: str | None) -> Case:
    if not isinstance(row, dict):
        raise DataError(f"{place}: {_shown(row)} is no JSON object")
    try:
        read = _Row.model_validate(row, context=_Reading(codebook, generation))
    except ValidationError as error:
        raise DataError(f"{place}: {_problem(error)}") from None
    meta = {} if read.meta is None else read.meta.model_dump(exclude_unset=True)
    return Case(read.id, read.description, *read.gold, meta, read.candidate)


def _problem(error: ValidationError) -> str:
    """Returns the first problem of a row, with its key and value."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{key} is missing"
    message = str(first.get("ctx", {}).get("error", first["msg"]))
    if first["type"] == "extra_forbidden":
        message = "is no key that is read: move it into meta"
    return f"{key} is {_shown(first['input'])}, {message}"


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


# Files


def read_cases(
    location: str,
    codebook: Codebook,
    generation: str | None = None,
    taken: set[str] | None = None,
) -> Iterator[Case]:
    """Streams the cases of a file.

    Args:
        location: Path, or URI that pyarrow's filesystems open, of a `.jsonl` file (also `.jsonl.gz`
            and other compressions) or a `.parquet` file, whose meta may be a struct, a map or JSON
            text. Blank lines of JSONL are ignored; numbers as ids are read as text.
        codebook: Codebook that reads gold.
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
        case = _case(place, row, codebook, generation)
        if case.id in taken:
            raise DataError(f"{place}: id is {_shown(case.id)}, as in an earlier row: rename one")
        taken.add(case.id)
        yield case
    if len(taken) == before:
        raise DataError(f"cases {location}: the file holds no case")


def _rows(location: str) -> Iterator[tuple[str, object]]:
    """Yields each row with its place, as errors name it."""
    file = Place.at(location)
    suffix = next(filter(file.name.endswith, COMPRESSIONS), "")
    if file.name.endswith(PARQUET_SUFFIXES):
        rows = _parquet_rows(file)
    elif file.name.removesuffix(suffix).endswith(JSONL_SUFFIXES):
        rows = _jsonl_rows(file, COMPRESSIONS.get(suffix))
    else:
        raise DataError(
            f"cases {location}: the name should end in .jsonl, .jsonl.gz or .parquet; turn a JSON "
            "list into lines with one object each"
        )
    try:
        yield from rows
    except RaylabError:
        raise
    except Exception as error:
        # pyarrow raises errors of many kinds for broken files and values beyond Python's types.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"cases {location} cannot be read: {reason}") from error


def _jsonl_rows(file: Place, compression: str | None) -> Iterator[tuple[str, object]]:
    stream: Any = file.filesystem.open_input_stream(file.path, compression=compression)
    with closing(io.BufferedReader(stream, REQUEST_BYTES)) as rows:
        for number, line in lines(rows, f"cases {file}"):
            place = f"cases {file}, line {number}"
            try:
                yield place, parse_json(line, place)
            except DataError as error:
                if line.endswith(b"\n"):
                    raise
                raise DataError(
                    f"{error}; the last line is torn: write the file again, or remove the line"
                ) from error


def _parquet_rows(file: Place) -> Iterator[tuple[str, object]]:
    with file.filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as table:
        batches = table.iter_batches(BATCH_ROWS)
        rows = (row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict"))
        for number, row in enumerate(cast(Iterator[dict[str, Any]], rows), 1):
            if isinstance(meta := row.get("meta"), dict):
                values = _without_nulls(cast(dict[str, Any], meta))
                row["meta"] = json.dumps(values, default=str, allow_nan=False)
            yield f"cases {file}, row {number}", row


# The cases of a run


def select_cases(
    config: CasesConfig, generations: Sequence[int | str], codebook: Codebook
) -> Iterator[tuple[str, Case]]:
    """Yields every case of a run with its generation.

    Args:
        config: Source of the cases of generation `published`, and the selection from them.
        generations: Generations of the score tree. Files add cases, whose ids are prefixed with
            the generation's name; seeds draw from the cases of `published`.
        codebook: Codebook that has the packaged cases and reads gold.

    Raises:
        ConfigError: Two generations would have the same name.
        DataError: A source cannot be used.
    """
    taken: set[str] = set()
    chosen = islice(_source(config, codebook), 0, None, config.every)
    for case in islice(chosen, config.take):
        taken.add(case.id)
        yield AS_PUBLISHED, case
    for name, location in generation_files(generations).items():
        for case in read_cases(location, codebook, name, taken):
            yield name, case


def generation_files(generations: Sequence[int | str]) -> dict[str, str]:
    """Returns the case files among the generations, by file name without extensions.

    Raises:
        ConfigError: Two generations have the same name.
    """
    files: dict[str, str] = {}
    others = {f"seed-{generation}" for generation in generations} | {AS_PUBLISHED}
    for location in generations:
        if isinstance(location, int) or location == AS_PUBLISHED:
            continue
        name = Place.at(location).name.partition(".")[0]
        if name in files or name in others:
            raise ConfigError(f"generations: two are called {name}; rename the file {location}")
        files[name] = location
    return files


def in_generation(case_id: str, seed: int, fraction: float = 0.5) -> bool:
    """Returns True if a case belongs to the share of a case set, in (0, 1], that a seed draws.

    The first eight bytes of SHA-256 of `<seed>:<id>` decide, so membership depends on the seed and
    the id alone, and a larger fraction draws a superset.
    """
    digest = hashlib.sha256(f"{seed}:{case_id}".encode()).digest()
    return int.from_bytes(digest[:8]) < fraction * 2**64


def _source(config: CasesConfig, codebook: Codebook) -> Iterator[Case]:
    if config.path is not None:
        return read_cases(config.path, codebook)
    if config.python:
        return python_cases(config.python)
    sets = codebook.case_sets
    name = config.packaged or next(iter(sets), "")
    if name not in sets:
        way_out = f"cases.packaged= takes {', '.join(sets)}" if sets else "give cases.path=FILE"
        missing = f"case set {name}" if name else "cases of its own"
        raise ConfigError(f"the codebook {codebook.name} has no {missing}: {way_out}")
    return chain.from_iterable(read_cases(file, codebook) for file in sets[name])


# Installed source code


def python_cases(names: Iterable[str]) -> Iterator[Case]:
    """Yields the source code of installed Python objects as cases.

    Args:
        names: Dotted names of modules, classes or functions, such as scipy.optimize.linprog.

    Yields:
        One case for each name, which is its id; meta has `package` and `version`.

    Raises:
        DataError: An object does not exist, cannot be imported or has no Python source, or a name
            is given twice.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"Python object {name} is given twice: remove one")
        seen.add(name)
        source, (package, version) = _read_source(name), _origin(name.partition(".")[0])
        yield Case(name, source, meta={"package": package, "version": version})


def _read_source(name: str) -> str:
    try:
        return textwrap.dedent(inspect.getsource(pkgutil.resolve_name(name)))
    except Exception as error:
        # Importing runs the package's code, which may raise anything.
        raise DataError(
            f"Python object {name!a}: {error}: name an installed module, class or function "
            "that is written in Python"
        ) from error


def is_source(meta: dict[str, Any]) -> bool:
    """Returns True if the meta of a case is that of source code, as from `python_cases`."""
    return meta.keys() >= {"package", "version"}


@cache
def _origin(top: str) -> tuple[str, str | None]:
    """Returns the package of a top module, and its version."""
    if top in sys.stdlib_module_names:
        return "python", platform.python_version()
    for package in metadata.packages_distributions().get(top, ()):
        return package, metadata.version(package)
    return top, None
