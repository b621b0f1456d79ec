"""Cases to annotate: system descriptions, streamed from files or from the package.

A case file is JSONL, also compressed, or Parquet, with rows `{id, description, gold?,
candidate?: {code, rationale}, meta?}`:

    {"id": "pid", "description": "A valve command is formed ...", "gold": "Ctl"}

No row is skipped: a row that cannot be used raises an error that names it. Memory holds one batch
of rows and slightly more than eight bytes for each id, to detect duplicate ids.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raylab.bounded import lines, over, parse_json
from raylab.codebook import Codebook, Label
from raylab.config.base import Strict
from raylab.errors import ConfigError, DataError, LabelError, LimitError
from raylab.files import REQUEST_BYTES, Place

KEYS = ("id", "description", "gold", "candidate", "meta")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet", ".pq")
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
LONGEST_ID = 255
"""Longest id in bytes, with its generation: file systems have no longer name."""
BATCH_ROWS = 256
ROW_BYTES = 1 << 28
"""Most bytes of a Parquet row group as it is declared, and of the rows that are built at once."""
RECENT_IDS = 1 << 16
"""Ids held in a set before they are sorted into the array."""
MERGE_SHARE = 16
"""The array grows by at least 1 / MERGE_SHARE at once, so that merging stays cheap."""
SHOWN = 60
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that UTF-8 cannot encode or a database cannot store."""
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    pa.ArrowException,
)
"""What pyarrow raises for files that are broken or hold values that Python has no type for."""


class CandidateCode(Strict):
    """A classification that came with a case, to be judged."""

    code: str
    """As written; it need not be readable."""
    rationale: str = ""


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
    def content(self) -> bytes:
        """All that a run is made from, as JSON, for comparing inputs."""
        candidate = self.candidate and self.candidate.model_dump()
        values = (self.id, self.description_hash, self.gold, candidate, self.meta)
        return msgspec.json.encode(values, order="deterministic")

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


def read_cases(
    location: str,
    codebook: Codebook,
    generation: str | None = None,
    taken: "CaseIds | None" = None,
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
        DataError: The file cannot be read, holds no row, or a row cannot be used: no JSON object,
            an id or description missing or empty, an id that is taken, too long or holds
            characters that cannot be seen, gold that cannot be read, a
            value of a wrong type or an unknown key.
    """
    taken = CaseIds() if taken is None else taken
    count = 0
    for place, row in _rows(location):
        case = _case(place, row, codebook, generation)
        if not taken.add(case.id):
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


class CaseIds:
    """A set of ids by hashes of eight bytes.

    Of a million ids, two share a hash with a probability of 3e-8.
    """

    def __init__(self) -> None:
        self._sorted: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._recent: set[int] = set()

    def __contains__(self, text: str) -> bool:
        """Returns True if an id is there."""
        key = _id_key(text)
        place = int(np.searchsorted(self._sorted, np.uint64(key)))
        return key in self._recent or (place < len(self._sorted) and self._sorted[place] == key)

    def add(self, text: str) -> bool:
        """Adds an id; returns False if it is there already."""
        if text in self:
            return False
        self._recent.add(_id_key(text))
        if len(self._recent) >= max(RECENT_IDS, len(self._sorted) // MERGE_SHARE):
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._sorted = np.sort(np.concatenate([self._sorted, recent]))
            self._recent.clear()
        return True


def _id_key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _rows(location: str) -> Iterator[tuple[str, dict[str, Any]]]:
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
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"cases {location} cannot be read: {reason}") from error


def _jsonl_rows(file: Place, compression: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    where = f"cases {file}"
    stream: Any = file.filesystem.open_input_stream(file.path, compression=compression)
    with closing(io.BufferedReader(stream, REQUEST_BYTES)) as rows:
        for number, line in lines(rows, where):
            place = f"{where}, line {number}"
            yield place, _json_row(place, line)


def _json_row(place: str, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line, place)
    except LimitError:
        raise
    except DataError as error:
        shown = ascii(line[:SHOWN].decode(errors="replace").strip())
        cause = str(error).removeprefix(f"{place}: ")
        if not line.endswith(b"\n"):
            cause = "the last line is torn: write the file again, or remove the line"
        raise DataError(f"{place}: {shown} is no JSON object: {cause}") from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: {_shown(row)} is no JSON object {{{', '.join(KEYS)}}}")
    return cast(dict[str, Any], row)


def _parquet_rows(file: Place) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    with file.filesystem.open_input_file(file.path) as source:
        with pq.ParquetFile(source) as table:
            _check_sizes(file, table.metadata)
            texts = [path for field in table.schema_arrow for path in _leaves(field, field.name)]
        # A text that a column repeats a thousand times stays one text until its row is built.
        with pq.ParquetFile(source, read_dictionary=texts) as table:
            for batch in table.iter_batches(BATCH_ROWS):
                for row in _table_rows(file, batch):
                    number += 1
                    place = f"cases {file}, row {number}"
                    yield place, _with_plain_meta(place, row)


def _leaves(field: pa.Field, path: str) -> Iterator[str]:
    """Yields the paths of a column's leaves, as Parquet names them."""
    kind = field.type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(child, f"{path}.{child.name}")
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_field, f"{path}.key_value.key")
        yield from _leaves(kind.item_field, f"{path}.key_value.value")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(kind.value_field, f"{path}.list.element")
    else:
        yield path


def _check_sizes(file: Place, metadata: pq.FileMetaData) -> None:
    """Checks the sizes that a Parquet file declares before any of it is decompressed."""
    # Columns of altered metadata would end the process: pyarrow aborts on asking for one.
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    sizes = [group.total_byte_size for group in groups]
    if max(sizes, default=0) > ROW_BYTES:
        raise over(f"cases {file}", "bytes in a row group", ROW_BYTES, "write smaller row groups")


def _table_rows(file: Place, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    # No row is larger than all texts of the batch.
    at_once = max(1, ROW_BYTES // max(batch.nbytes, 1))
    for start in range(0, len(batch), at_once):
        try:
            rows = batch.slice(start, at_once).to_pylist(maps_as_pydicts="strict")
        except (KeyError, ValueError) as error:
            raise DataError(f"cases {file}: meta has a key twice: {error}") from error
        yield from cast(list[dict[str, Any]], rows)


def _with_plain_meta(place: str, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a Parquet row with JSON values in its meta."""
    if isinstance(meta := row.get("meta"), dict):
        # A column of structs has every key in every row.
        given = {
            key: value for key, value in cast(dict[str, Any], meta).items() if value is not None
        }
        try:
            text = json.dumps(given, default=str, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"{place}: meta cannot be written as JSON: {error}") from error
        row["meta"] = parse_json(text, f"{place}: meta")
    return row


def _case(place: str, row: dict[str, Any], codebook: Codebook, generation: str | None) -> Case:
    for key in row.keys() - set(KEYS):
        _refuse(place, key, row[key], f"none of {', '.join(KEYS)}: move it into meta", "is")
    gold = row.get("gold")
    return Case(
        _identifier(place, row.get("id"), generation),
        _text(place, "description", row.get("description")),
        gold,
        _gold_label(place, gold, codebook),
        _meta(place, row.get("meta"), codebook),
        _candidate(place, row.get("candidate")),
    )


def _identifier(place: str, value: object, generation: str | None) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    text = _text(place, "id", str(value) if number else value)
    if not text.isprintable() or text != text.strip():
        _refuse(place, "id", value, "text without line breaks, control characters and outer blanks")
    whole = text if generation is None else f"{generation}/{text}"
    if len(whole.encode()) > LONGEST_ID:
        _refuse(place, "id", whole, f"text of at most {LONGEST_ID} bytes with its generation")
    return whole


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


def _candidate(place: str, value: object) -> CandidateCode | None:
    given = _object(place, "candidate", value)
    for key in given.keys() - CandidateCode.model_fields.keys():
        _refuse(place, f"candidate.{key}", given[key], "code or rationale: move it into meta", "is")
    if all(part is None for part in given.values()):
        # A Parquet column of structs has every key in every row.
        return None
    rationale = given.get("rationale") or ""
    return CandidateCode(
        code=_text(place, "candidate.code", given.get("code")),
        rationale=_text(place, "candidate.rationale", rationale) if rationale else "",
    )


def _object(place: str, key: str, value: object) -> dict[str, Any]:
    """Returns an object that is given as one or as JSON text; empty where it is missing."""
    if isinstance(value, str):
        try:
            value = parse_json(value, place)
        except DataError:
            _refuse(place, key, value, "an object, or JSON text of one")
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse(place, key, value, "an object")
    return cast(dict[str, Any], value)


def _meta(place: str, value: object, codebook: Codebook) -> dict[str, Any]:
    meta = _object(place, "meta", value)
    for key in ("trap", "reviewed", "open_book"):
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
    try:
        text = ascii(value)
    except RecursionError:
        return "nested too deep to show"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
