"""A run's cases as one file: a row a case, its numbers as columns, the rest whole beside them."""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any, BinaryIO, Literal

import pyarrow as pa
from pyarrow import parquet

from raylab.annotation.outcome import Status
from raylab.archive.chain import canonical
from raylab.archive.records import CurrentCase, StoredDecision
from raylab.archive.run import RunArchive
from raylab.archive.tables import utc_text
from raylab.files import Place

Json = dict[str, Any]
Format = Literal["parquet", "jsonl"]

TEXT, WHOLE, REAL, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
ROW_GROUP_BYTES = 16 << 20
JSON_COLUMNS = ("meta", "decisions", "body")
COLUMNS: dict[str, pa.DataType] = {
    "run": TEXT,
    "case": TEXT,
    "sequence": WHOLE,
    "status": TEXT,
    "run_status": TEXT,
    "code": TEXT,
    "run_code": TEXT,
    "gold": TEXT,
    "generation": TEXT,
    "trap": TRUTH,
    "reason": TEXT,
    "reviewer": TEXT,
    "code_a": TEXT,
    "code_b": TEXT,
    "format_a": TEXT,
    "format_b": TEXT,
    "model_a": TEXT,
    "model_b": TEXT,
    "verdict_a": TEXT,
    "verdict_b": TEXT,
    "score_a": WHOLE,
    "score_b": WHOLE,
    "acceptable_a": TRUTH,
    "acceptable_b": TRUTH,
    "exact": TRUTH,
    "jaccard": REAL,
    "levenshtein": WHOLE,
    "levenshtein_normalised": REAL,
    "weighted": REAL,
    "composition": REAL,
    "choice": TEXT,
    "adjudicated_code": TEXT,
    "confirmation_verdict": TEXT,
    "confirmation_score": WHOLE,
    "prompt_tokens": WHOLE,
    "completion_tokens": WHOLE,
    "cost": REAL,
    "started": TIME,
    "finished": TIME,
    "created": TIME,
    "description_hash": TEXT,
    "description": TEXT,
    "previous_hash": TEXT,
    "hash": TEXT,
    "meta": TEXT,
    "decisions": TEXT,
    "body": TEXT,
}
"""The columns of an export in their order; `status` and `code` are those that hold now."""
SAME_PATHS: dict[str, tuple[str | int, ...]] = {
    "gold": ("gold",),
    "generation": ("generation",),
    "trap": ("trap",),
    "reason": ("reason",),
    "exact": ("agreement", "exact"),
    "jaccard": ("agreement", "jaccard"),
    "levenshtein": ("agreement", "levenshtein"),
    "levenshtein_normalised": ("agreement", "levenshtein_normalised"),
    "weighted": ("agreement", "weighted"),
    "composition": ("agreement", "composition"),
    "choice": ("adjudication", "choice"),
    "confirmation_verdict": ("adjudication", "confirmation", "verdict"),
    "confirmation_score": ("adjudication", "confirmation", "score"),
    "prompt_tokens": ("prompt_tokens",),
    "completion_tokens": ("completion_tokens",),
    "cost": ("cost",),
}
PATHS: dict[str, tuple[str | int, ...]] = {
    **SAME_PATHS,
    "run_code": ("label",),
    "code_a": ("answers", "A", "classification", "label"),
    "code_b": ("answers", "B", "classification", "label"),
    "format_a": ("answers", "A", "classification", "format"),
    "format_b": ("answers", "B", "classification", "format"),
    "model_a": ("answers", "A", "classification", "calls", -1, "reply", "response_model"),
    "model_b": ("answers", "B", "classification", "calls", -1, "reply", "response_model"),
    "verdict_a": ("answers", "A", "evaluation", "verdict"),
    "verdict_b": ("answers", "B", "evaluation", "verdict"),
    "score_a": ("answers", "A", "evaluation", "score"),
    "score_b": ("answers", "B", "evaluation", "score"),
    "acceptable_a": ("answers", "A", "evaluation", "acceptable"),
    "acceptable_b": ("answers", "B", "evaluation", "acceptable"),
    "adjudicated_code": ("adjudication", "classification", "label"),
}
"""Where in the body a column's value stands."""
PATHS_OF_VERSION_1: dict[str, tuple[str | int, ...]] = {
    **SAME_PATHS,
    "run_code": ("code",),
    "code_a": ("a", "code"),
    "code_b": ("b", "code"),
    "format_a": ("a", "format"),
    "format_b": ("b", "format"),
    "model_a": ("a", "calls", -1, "response_model"),
    "model_b": ("b", "calls", -1, "response_model"),
    "verdict_a": ("evaluation_a", "verdict"),
    "verdict_b": ("evaluation_b", "verdict"),
    "score_a": ("evaluation_a", "score"),
    "score_b": ("evaluation_b", "score"),
    "acceptable_a": ("evaluation_a", "acceptable"),
    "acceptable_b": ("evaluation_b", "acceptable"),
    "adjudicated_code": ("adjudication", "classification", "code"),
}
"""The same in a body without a version."""
KINDS: dict[pa.DataType, tuple[type, ...]] = {
    TEXT: (str,),
    WHOLE: (int,),
    REAL: (float, int),
    TRUTH: (bool,),
}


def export_run(run: RunArchive, path: str | os.PathLike[str], format: Format = "parquet") -> int:
    """Writes the cases of a run with the decisions on them into one file, whole or not at all.

    A row has the case, its numbers as columns, and body, meta and decisions whole: as JSON values
    in JSONL, as JSON text in Parquet. It shows the run as it is when this is called.

    Args:
        run: The run.
        path: The file, or a URI that pyarrow's filesystems open; one that exists is replaced.
        format: parquet or jsonl.

    Returns:
        Cases written.

    Raises:
        RunError: The file cannot be written.
        ConfigError: No filesystem opens the URI.
        ArchiveError: There is no such run, or it cannot be read.
    """
    rows = (_row(case) for case in run.current_cases(until=run.row().records))
    with Place.at(path).replaced() as file:
        return _write_parquet(rows, file) if format == "parquet" else _write_lines(rows, file)


def _row(current: CurrentCase) -> Json:
    case, last = current.case, current.decisions[-1] if current.decisions else None
    paths = PATHS if "version" in case.body else PATHS_OF_VERSION_1
    found = {name: _fit(_at(case.body, keys), COLUMNS[name]) for name, keys in paths.items()}
    return {
        **found,
        "run": case.run,
        "case": case.case,
        "sequence": case.sequence,
        "status": current.status,
        "run_status": case.status,
        "code": current_code(current),
        "reviewer": None if last is None else last.reviewer,
        "started": _time(case.body.get("started")),
        "finished": _time(case.body.get("finished")),
        "created": case.created,
        "description_hash": case.description_hash,
        "description": case.description,
        "previous_hash": case.previous_hash,
        "hash": case.hash,
        "meta": case.body.get("meta"),
        "decisions": [_decision(decision) for decision in current.decisions],
        "body": case.body,
    }


def current_code(current: CurrentCase) -> str | None:
    """Returns the code that holds now; None while a person must decide."""
    if current.status == Status.HUMAN:
        return None
    if current.decisions and current.decisions[-1].action == "decide":
        classification = current.decisions[-1].body.get("classification") or {}
        return classification.get("label", classification.get("code"))
    return current.case.body.get("label", current.case.body.get("code"))


def _decision(decision: StoredDecision) -> Json:
    return {**vars(decision), "created": utc_text(decision.created)}


def _at(body: Any, keys: tuple[str | int, ...]) -> Any:
    value = body
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _fit(value: Any, kind: pa.DataType) -> Any:
    """The value, or None if it is not of the column's kind, as in a body of another version."""
    if isinstance(value, bool) != (kind == TRUTH):
        return None
    return value if isinstance(value, KINDS[kind]) else None


def _time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo else None


def _write_lines(rows: Iterator[Json], file: BinaryIO) -> int:
    count = 0
    for row in rows:
        ordered = {name: _text_of_time(row[name]) for name in COLUMNS}
        file.write(json.dumps(ordered, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        count += 1
    return count


def _text_of_time(value: Any) -> Any:
    return utc_text(value) if isinstance(value, datetime) else value


def _write_parquet(rows: Iterator[Json], file: BinaryIO) -> int:
    schema = pa.schema(list(COLUMNS.items()))
    count = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(_arrow_row(row) for row in rows):
            writer.write_table(pa.Table.from_pylist(group, schema))
            count += len(group)
    return count


def _groups(rows: Iterator[Json]) -> Iterator[list[Json]]:
    """Rows in groups of about `ROW_GROUP_BYTES` of text, so that memory is bounded."""
    group: list[Json] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row["body"]) + len(row["description"]) + len(row["decisions"])
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _arrow_row(row: Json) -> Json:
    """A row as Parquet holds it, whose text has no lone surrogates: they become U+FFFD."""
    texts = {name: canonical(row[name]) for name in JSON_COLUMNS}
    return {name: _sound(value) for name, value in (row | texts).items()}


def _sound(value: Any) -> Any:
    if not isinstance(value, str) or value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
