"""The cases of an archived run as a file or a DataFrame, with their texts and decisions."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO, Literal

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from raylab.annotation.statistics.frame import (
    FIGURES,
    TEXT,
    TIME,
    WHOLE,
    Row,
    case_figures,
    encodable,
    read_case,
)
from raylab.archive.records import CurrentCase
from raylab.archive.run import RunArchive
from raylab.archive.tables import canonical, utc_text
from raylab.codebook import Codebook
from raylab.files import Place

Format = Literal["parquet", "jsonl", "csv"]
JSON_COLUMNS = ("meta", "decisions", "body")
COLUMNS: dict[str, pa.DataType] = {
    "run": TEXT,
    "sequence": WHOLE,
    "status": TEXT,
    "reviewer": TEXT,
    **FIGURES,
    "created": TIME,
    **dict.fromkeys(("description", "sha256", *JSON_COLUMNS), TEXT),
}
"""The columns of an export in order; `status` and `code` include people's decisions."""
SCHEMA = pa.schema(list(COLUMNS.items()))
GROUP = 1_000
"""Rows in a group of a Parquet file."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet computes."""


def export_run(
    run: RunArchive,
    path: str | os.PathLike[str],
    codebook: Codebook,
    format: Format = "parquet",
    *,
    open_book: bool = False,
) -> None:
    """Writes the cases of a run with the decisions on them into one file, atomically.

    A row has the columns `COLUMNS`; body, meta and decisions are JSON values in JSONL and JSON text
    elsewhere. In CSV a text that a spreadsheet would compute begins with an apostrophe. The export
    shows the run at the time of the call.

    Args:
        run: The run.
        path: The file, or a URI that pyarrow's filesystems open; one that exists is replaced.
        codebook: Of the run.
        format: parquet, jsonl or csv.
        open_book: See `tabulate`.

    Raises:
        RunError: The file cannot be written.
        ConfigError: No filesystem opens the URI.
        ArchiveError: There is no such run, or it cannot be read.
    """
    rows = _rows(run, codebook, open_book)
    write = {"parquet": _write_parquet, "jsonl": _write_lines, "csv": _write_csv}[format]
    with Place.at(path).replaced() as file:
        write(rows, file)


def export_frame(run: RunArchive, codebook: Codebook, *, open_book: bool = False) -> pd.DataFrame:
    """Returns the rows of `export_run` as a DataFrame, with the same arguments and errors."""
    tables = [SCHEMA.empty_table(), *_groups(_rows(run, codebook, open_book))]
    return pa.concat_tables(tables).to_pandas()


def _rows(run: RunArchive, codebook: Codebook, open_book: bool) -> Iterator[Row]:
    for current in run.cases(until=run.row().records):
        yield {"run": run.name, **_row(current, codebook, open_book)}


def _row(current: CurrentCase, codebook: Codebook, open_book: bool) -> Row:
    case, decisions = current.case, current.decisions
    outcome, label = read_case(current, codebook)
    return {
        **case_figures(outcome, label, codebook, open_book),
        **{name: getattr(case, name) for name in ("sequence", "created", "body")},
        **{name: getattr(case, name) for name in ("description_hash", "description", "sha256")},
        "status": current.status,
        "reviewer": decisions[-1].reviewer if decisions else None,
        "meta": outcome.meta,
        "decisions": [{**vars(one), "created": utc_text(one.created)} for one in decisions],
    }


def _write_lines(rows: Iterable[Row], file: BinaryIO) -> None:
    for row in rows:
        ordered = {name: row[name] for name in COLUMNS}
        text = json.dumps(ordered, separators=(",", ":"), allow_nan=False, default=utc_text)
        file.write(text.encode() + b"\n")


def _write_csv(rows: Iterable[Row], file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows([_cell(row[name]) for name in COLUMNS] for row in map(_flat, rows))
    text.detach()


def _write_parquet(rows: Iterable[Row], file: BinaryIO) -> None:
    with parquet.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for table in _groups(rows):
            writer.write_table(table)


def _groups(rows: Iterable[Row]) -> Iterator[pa.Table]:
    flat = map(_flat, rows)
    while group := list(islice(flat, GROUP)):
        yield pa.Table.from_pylist(group, SCHEMA)


def _flat(row: Row) -> Row:
    """Returns a row with JSON texts for JSON values, encodable as UTF-8."""
    return encodable(row | {name: canonical(row[name]) for name in JSON_COLUMNS})


def _cell(value: Any) -> Any:
    """Returns a cell that no spreadsheet takes for a formula; numbers stay as they are."""
    if isinstance(value, datetime):
        return utc_text(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
