"""Cases to annotate: system descriptions, streamed from files, from the package or from Python.

A case file is JSONL, also compressed, or Parquet, with rows `{id, description, gold?, meta?}`:

    {"id": "pid", "description": "A valve command is formed ...", "gold": "Ctl"}

No row is skipped: a row that cannot be used raises an error that names it. Memory holds one batch
of rows and slightly more than eight bytes for each id, to detect duplicate ids.
"""

import hashlib
import importlib
import inspect
import io
import json
import platform
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raylab.codebook import Codebook, Label
from raylab.errors import ConfigError, DataError, LabelError
from raylab.files import REQUEST_BYTES, Place

KEYS = ("id", "description", "gold", "meta")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet", ".pq")
COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")
LONGEST_ROW = 1 << 24
"""Longest line in bytes."""
BATCH_ROWS = 256
RECENT_IDS = 1 << 16
"""Ids held in a set before they are sorted into the array."""
MERGE_SHARE = 16
"""The array grows by at least 1 / MERGE_SHARE at once, so that merging stays cheap."""
SHOWN = 60
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that UTF-8 cannot encode or a database cannot store."""


@dataclass(frozen=True)
class Case:
    """A system to classify.

    Attributes:
        id: Unique within a run.
        description: Source code, algorithm or summary of a project.
        gold: Label by a person, as written; None if there is none.
        gold_label: The label that was read from gold; None if there is none.
        meta: Further JSON values. Three keys have a meaning: `trap` (true if the description
            suggests a wrong category), `bait` (list of the categories it suggests) and `reviewed`
            (false if gold is one person's proposal).
    """

    id: str
    description: str
    gold: str | None = None
    gold_label: Label | None = None
    meta: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def description_hash(self) -> str:
        """The SHA-256 of the description, in hexadecimal."""
        return hashlib.sha256(self.description.encode()).hexdigest()

    @property
    def trap(self) -> bool:
        """True if the description suggests a wrong category."""
        return bool(self.meta.get("trap"))

    @property
    def bait(self) -> frozenset[str]:
        """The wrong categories that the description suggests, if known."""
        return frozenset(self.meta.get("bait") or ())

    @property
    def reviewed(self) -> bool:
        """True unless gold is one person's proposal."""
        return self.meta.get("reviewed") is not False


def read_cases(location: str, codebook: Codebook) -> Iterator[Case]:
    """Streams the cases of a file.

    Args:
        location: Path, or URI that pyarrow's filesystems open, of a `.jsonl` file (also `.jsonl.gz`
            and other compressions) or a `.parquet` file, whose meta may be a struct, a map or JSON
            text. Blank lines of JSONL are ignored; numbers as ids are read as text.
        codebook: Codebook that reads gold.

    Yields:
        The cases in order. An error is raised when its row is reached.

    Raises:
        DataError: The file cannot be read, holds no row, or a row cannot be used: no JSON object,
            an id or description missing or empty, a duplicate id, gold that cannot be read, a
            value of a wrong type or an unknown key.
    """
    seen = _Ids()
    count = 0
    for place, row in _rows(location):
        case = _case(place, row, codebook)
        if not seen.add(case.id):
            _refuse(place, "id", case.id, "unique, but an earlier row has it: rename one")
        count += 1
        yield case
    if not count:
        raise DataError(f"cases {location}: the file holds no case")


def packaged_cases(name: str, codebook: Codebook) -> Iterator[Case]:
    """Streams the cases that come with a codebook.

    Args:
        name: One of `codebook.case_sets`.
        codebook: Codebook that has the cases and reads gold.

    Raises:
        ConfigError: The codebook has no such cases.
    """
    location = codebook.case_sets.get(name)
    if location is None:
        raise ConfigError(
            f"cases.packaged {name} is none of the packaged cases: {', '.join(codebook.case_sets)}"
        )
    return read_cases(location, codebook)


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
        yield Case(name, _source(name), meta=_origin(name))


def is_source(meta: dict[str, Any]) -> bool:
    """Returns True if the meta of a case is that of source code, as from `python_cases`."""
    return meta.keys() >= {"package", "version"}


def in_generation(case_id: str, seed: int, fraction: float = 0.5) -> bool:
    """Returns True if a case belongs to the subset of a case set that a seed draws.

    The first eight bytes of SHA-256 of `<seed>:<id>` decide, so membership depends on the seed and
    the id alone, and a larger fraction draws a superset.

    Args:
        case_id: Id of the case.
        seed: Seed of the generation.
        fraction: Expected share of the cases, in (0, 1].

    Raises:
        ValueError: The fraction is outside (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction {fraction} should be above 0 and at most 1")
    digest = hashlib.sha256(f"{seed}:{case_id}".encode()).digest()
    return int.from_bytes(digest[:8]) < fraction * 2**64


# Rows


class _Ids:
    """A set of texts by hashes of eight bytes.

    Of a million ids, two share a hash with a probability of 3e-8.
    """

    def __init__(self) -> None:
        self._sorted: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._recent: set[int] = set()

    def add(self, text: str) -> bool:
        """Adds a text; returns False if it is there already."""
        key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        place = int(np.searchsorted(self._sorted, np.uint64(key)))
        if key in self._recent or (place < len(self._sorted) and self._sorted[place] == key):
            return False
        self._recent.add(key)
        if len(self._recent) >= max(RECENT_IDS, len(self._sorted) // MERGE_SHARE):
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._sorted = np.sort(np.concatenate([self._sorted, recent]))
            self._recent.clear()
        return True


def _rows(location: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each row with its place, as errors name it."""
    file = Place.at(location)
    bare = file.name.removesuffix(next(filter(file.name.endswith, COMPRESSIONS), ""))
    if file.name.endswith(PARQUET_SUFFIXES):
        read = _parquet_rows
    elif bare.endswith(JSONL_SUFFIXES):
        read = _jsonl_rows
    else:
        raise DataError(
            f"cases {location}: the name should end in .jsonl, .jsonl.gz or .parquet; turn a JSON "
            "list into lines with one object each"
        )
    try:
        yield from read(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"cases {location} cannot be read: {reason}") from error


def _jsonl_rows(file: Place) -> Iterator[tuple[str, dict[str, Any]]]:
    stream = cast(Any, file.filesystem.open_input_stream(file.path))
    with closing(io.BufferedReader(stream, REQUEST_BYTES)) as lines:
        for number, line in enumerate(iter(lambda: lines.readline(LONGEST_ROW), b""), 1):
            place = f"cases {file}, line {number}"
            torn = not line.endswith(b"\n")
            if torn and len(line) == LONGEST_ROW:
                raise DataError(f"{place}: a row should have less than {LONGEST_ROW:,} bytes")
            if line.strip():
                yield place, _json_row(place, line, torn)


def _json_row(place: str, line: bytes, torn: bool) -> dict[str, Any]:
    try:
        row: object = json.loads(
            line.decode("utf-8-sig"), object_pairs_hook=_distinct, parse_constant=_no_number
        )
    except (ValueError, RecursionError) as error:
        shown = ascii(line[:SHOWN].decode(errors="replace").strip())
        cause = "the last line is torn: write the file again, or remove the line" if torn else error
        raise DataError(f"{place}: {shown} is no JSON object: {cause}") from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: {_shown(row)} is no JSON object {{id, description, gold, meta}}")
    return cast(dict[str, Any], row)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)} stands twice")
    return row


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _parquet_rows(file: Place) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    with file.filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as table:
        for batch in table.iter_batches(BATCH_ROWS):
            for row in _table_rows(file, batch):
                number += 1
                yield f"cases {file}, row {number}", row


def _table_rows(file: Place, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    try:
        rows = cast(list[dict[str, Any]], batch.to_pylist(maps_as_pydicts="strict"))
    except (KeyError, ValueError) as error:
        raise DataError(f"cases {file}: meta has a key twice: {error}") from error
    for row in rows:
        if isinstance(meta := row.get("meta"), dict):
            # A column of structs has every key in every row.
            given = {
                key: value for key, value in cast(dict[str, Any], meta).items() if value is not None
            }
            row["meta"] = json.loads(json.dumps(given, default=str))
        yield row


def _case(place: str, row: dict[str, Any], codebook: Codebook) -> Case:
    for key in row.keys() - set(KEYS):
        _refuse(place, key, row[key], f"none of {', '.join(KEYS)}: move it into meta", "is")
    gold = row.get("gold")
    return Case(
        _identifier(place, row.get("id")),
        _text(place, "description", row.get("description")),
        gold,
        _gold_label(place, gold, codebook),
        _meta(place, row.get("meta"), codebook),
    )


def _identifier(place: str, value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return _text(place, "id", str(value) if number else value)


def _text(place: str, key: str, value: object) -> str:
    if not isinstance(value, str):
        _refuse(place, key, value, "text")
    if not value.strip():
        _refuse(place, key, value, "text that is not empty")
    if UNSTORABLE.search(value):
        _refuse(place, key, value, "text without NUL and lone surrogates: remove them")
    return value


def _gold_label(place: str, value: object, codebook: Codebook) -> Label | None:
    if value is None:
        return None
    if not isinstance(value, str):
        _refuse(place, "gold", value, f"{codebook.label_name} as text, or left out")
    try:
        return codebook.parse(value)
    except LabelError as error:
        problem = str(error).partition("\n")[0]
        _refuse(place, "gold", value, f"{codebook.label_name}, or left out; {problem}")


def _meta(place: str, value: object, codebook: Codebook) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=_distinct, parse_constant=_no_number)
        except (ValueError, RecursionError):
            _refuse(place, "meta", value, "an object, or JSON text of one")
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse(place, "meta", value, "an object")
    meta = cast(dict[str, Any], value)
    for key in ("trap", "reviewed"):
        if not isinstance(meta.get(key, False), bool):
            _refuse(place, f"meta.{key}", meta[key], "true or false")
    bait: object = meta.get("bait", [])
    known = codebook.categories
    if not isinstance(bait, list) or not set(map(str, cast(list[object], bait))) <= known.keys():
        _refuse(place, "meta.bait", bait, f"a list of {', '.join(known)}")
    return meta


def _refuse(
    place: str, key: str, value: object, expected: str, verb: str = "should be"
) -> NoReturn:
    raise DataError(f"{place}: {key} is {_shown(value)}, {verb} {expected}")


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


# Python objects


def _source(name: str) -> str:
    found = _import(name)
    try:
        return textwrap.dedent(inspect.getsource(found))
    except (OSError, TypeError) as error:
        raise DataError(
            f"Python object {name} has no Python source ({error}): name a module, class or "
            "function that is written in Python"
        ) from error


def _import(name: str) -> Any:
    module, rest = _module_of(name)
    found: Any = module
    for attribute in rest:
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise DataError(f"Python object {name} does not exist: {error}") from error
    return found


def _module_of(name: str) -> tuple[ModuleType, list[str]]:
    """Returns the longest module at the start of a dotted name, and the names after it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise DataError(f"Python object {name!a}: should be a dotted name, package.object")
    module: ModuleType | None = None
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if module is not None and error.name == path:
                return module, parts[length - 1 :]
            raise DataError(f"Python object {name}: {error}: install its package") from error
        except Exception as error:
            # Importing runs the package's code, which may raise anything.
            raise DataError(f"Python object {name}: importing {path} fails: {error}") from error
    assert module is not None
    return module, []


def _origin(name: str) -> dict[str, Any]:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return {"package": "python", "version": platform.python_version()}
    for package in _distributions().get(top, ()):
        return {"package": package, "version": metadata.version(package)}
    return {"package": top, "version": None}


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())
