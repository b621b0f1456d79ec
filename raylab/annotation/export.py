"""The export of a run: one row per case, with its figures as columns and its body as JSON."""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any, BinaryIO, Literal

import pyarrow as pa
from pyarrow import parquet

from raylab.annotation.outcome import Outcome, current_label, read_outcome
from raylab.annotation.roles import SIDES, Side
from raylab.archive.records import CurrentCase, StoredDecision
from raylab.archive.rows import canonical
from raylab.archive.run import RunArchive
from raylab.archive.tables import utc_text
from raylab.codebook import Codebook
from raylab.files import Place

Row = dict[str, Any]
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
    "sha256": TEXT,
    "meta": TEXT,
    "decisions": TEXT,
    "body": TEXT,
}
"""The columns of an export in order; `status` and `code` include people's decisions."""
MEASURES = ("exact", "jaccard", "levenshtein", "levenshtein_normalised", "weighted", "composition")
"""The fields of an agreement that are columns."""
SAME_NAME = (
    "gold",
    "generation",
    "trap",
    "reason",
    "meta",
    "prompt_tokens",
    "completion_tokens",
    "cost",
    "started",
    "finished",
)
"""The fields of an outcome that are columns as they are."""


def export_run(
    run: RunArchive, path: str | os.PathLike[str], codebook: Codebook, format: Format = "parquet"
) -> int:
    """Writes the cases of a run with the decisions on them into one file, atomically.

    A row has the figures of the case as columns, and body, meta and decisions as JSON values in
    JSONL or as JSON text in Parquet. The export shows the run at the time of the call.

    Args:
        run: The run.
        path: The file, or a URI that pyarrow's filesystems open; one that exists is replaced.
        codebook: Of the run.
        format: parquet or jsonl.

    Returns:
        Cases written.

    Raises:
        RunError: The file cannot be written.
        ConfigError: No filesystem opens the URI.
        ArchiveError: There is no such run, or it cannot be read.
    """
    rows = (_row(case, codebook) for case in run.current_cases(until=run.row().records))
    with Place.at(path).replaced() as file:
        return _write_parquet(rows, file) if format == "parquet" else _write_lines(rows, file)


def _row(current: CurrentCase, codebook: Codebook) -> Row:
    case, last = current.case, current.decisions[-1] if current.decisions else None
    outcome = read_outcome(case.body, codebook)
    label = current_label(current, codebook)
    return {
        **_outcome_columns(outcome),
        "run": case.run,
        "case": case.case,
        "sequence": case.sequence,
        "status": current.status,
        "run_status": case.status,
        "code": label and str(label),
        "reviewer": None if last is None else last.reviewer,
        "created": case.created,
        "description_hash": case.description_hash,
        "description": case.description,
        "sha256": case.sha256,
        "decisions": [_decision(decision) for decision in current.decisions],
        "body": case.body,
    }


def _outcome_columns(outcome: Outcome) -> Row:
    adjudication, agreement = outcome.adjudication, outcome.agreement
    proposal = adjudication and adjudication.classification.label
    confirmation = adjudication and adjudication.confirmation
    columns: Row = {
        "run_code": outcome.label and str(outcome.label),
        "choice": adjudication and adjudication.choice,
        "adjudicated_code": proposal and str(proposal),
        "confirmation_verdict": confirmation and confirmation.verdict,
        "confirmation_score": confirmation and confirmation.score,
        **{name: agreement and getattr(agreement, name) for name in MEASURES},
        **{name: getattr(outcome, name) for name in SAME_NAME},
    }
    for side in SIDES:
        columns |= _side_columns(outcome, side)
    return columns


def _side_columns(outcome: Outcome, side: Side) -> Row:
    label, evaluation = outcome.label_of(side), outcome.evaluation(side)
    classification = outcome.classification(side)
    calls = classification.calls if classification else ()
    columns: Row = {
        "code": label and str(label),
        "format": classification and classification.format,
        "model": calls[-1].reply.response_model if calls else None,
        "verdict": evaluation and evaluation.verdict,
        "score": evaluation and evaluation.score,
        "acceptable": evaluation and evaluation.acceptable,
    }
    return {f"{name}_{side.lower()}": value for name, value in columns.items()}


def _decision(decision: StoredDecision) -> Row:
    return {**vars(decision), "created": utc_text(decision.created)}


def _write_lines(rows: Iterator[Row], file: BinaryIO) -> int:
    count = 0
    for row in rows:
        ordered = {name: _text_of_time(row[name]) for name in COLUMNS}
        file.write(json.dumps(ordered, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        count += 1
    return count


def _text_of_time(value: Any) -> Any:
    return utc_text(value) if isinstance(value, datetime) else value


def _write_parquet(rows: Iterator[Row], file: BinaryIO) -> int:
    schema = pa.schema(list(COLUMNS.items()))
    count = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(_arrow_row(row) for row in rows):
            writer.write_table(pa.Table.from_pylist(group, schema))
            count += len(group)
    return count


def _groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yields rows in groups of about `ROW_GROUP_BYTES` of text, to bound memory."""
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row["body"]) + len(row["description"]) + len(row["decisions"])
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _arrow_row(row: Row) -> Row:
    """Returns a row for Parquet, which stores no lone surrogates: they become U+FFFD."""
    texts = {name: canonical(row[name]) for name in JSON_COLUMNS}
    return {name: _sound(value) for name, value in (row | texts).items()}


def _sound(value: Any) -> Any:
    if not isinstance(value, str) or value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
