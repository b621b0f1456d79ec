"""Long tables: CSV, JSONL or Parquet with `model`, `item` and `score`, a row for each response.

Optional columns are `group`, `generation`, `weight` and `epoch`; others are not read.
"""

import csv
from collections.abc import Iterator
from math import inf
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow.parquet as pq

from raylab.bounded import lines, over
from raylab.doctor.readers.json_stream import decode
from raylab.doctor.readers.rows import UNNAMED, Origin, Scored, Source
from raylab.errors import DataError

FORM = "long table"
REQUIRED = frozenset({"model", "item", "score"})
TEXTS = ("model", "item", "group", "generation")
PARQUET = (".parquet", ".pq")
LINES = (".jsonl", ".ndjson")
SUFFIXES = (*PARQUET, *LINES, ".csv")
BATCH_ROWS = 1 << 14
ROWS_PER_BYTE = 50
"""Rows for which a byte of a Parquet file may stand; one that claims more is no honest table."""
WRONG = "rows whose weight is no number above 0, or whose epoch is no whole number from 1"


class _Row(msgspec.Struct):
    model: Any = None
    item: Any = None
    score: Any = None
    group: Any = None
    generation: Any = None
    weight: Any = None
    epoch: Any = None


_ROW = msgspec.json.Decoder(_Row)
COLUMNS = _Row.__struct_fields__


def read_long_table(file: BinaryIO, source: Source) -> Iterator[tuple[Origin, Scored]]:
    """Yields the scores of a table.

    Raises:
        DataError: It is broken, or lacks a column.
        OSError: It cannot be read.
    """
    name = source.place.name
    if name.endswith(PARQUET):
        rows = _read_parquet(file)
    else:
        rows = _read_csv(file) if name.endswith(".csv") else _read_lines(file)
    for row in rows:
        model = "" if row.model is None else str(row.model)
        origin = Origin(FORM, model, generation=str(row.generation or ""))
        if not model or row.item in (None, ""):
            yield origin, Scored(row.item, None, wrong=UNNAMED)
            continue
        weight, epoch = (1.0 if v in (None, "") else float(v) for v in (row.weight, row.epoch))
        right = 0 < weight < inf and 0 < epoch < 2**31 and epoch.is_integer()
        values = int(epoch) if right else 1, None, None if right else WRONG, row.group or None
        yield origin, Scored(str(row.item), row.score, *values, weight)


def _read_parquet(file: BinaryIO) -> Iterator[_Row]:
    size = file.seek(0, 2)
    names = [name for name in pq.read_schema(cast(Any, file)).names if name in COLUMNS]
    _require(names)
    # A text that the file holds once and repeats in each row is held once.
    texts = [name for name in TEXTS if name in names]
    with pq.ParquetFile(cast(Any, file), read_dictionary=texts) as table:
        if table.metadata.num_rows > BATCH_ROWS + ROWS_PER_BYTE * size:
            raise over("the table", "rows for its size", ROWS_PER_BYTE * size)
        for batch in table.iter_batches(BATCH_ROWS, columns=names):
            frame = batch.to_pandas(integer_object_nulls=True).astype(object)
            for cells in frame.where(frame.notna(), None).itertuples(index=False):
                yield _Row(**dict(zip(names, cells, strict=True)))


def _read_csv(file: BinaryIO) -> Iterator[_Row]:
    table = csv.DictReader(line.decode("utf-8-sig") for _, line in lines(file, "the table"))
    names = [name for name in table.fieldnames or () if name in COLUMNS]
    _require(names)
    for row in table:
        yield _Row(**{name: row[name] for name in names})


def _read_lines(file: BinaryIO) -> Iterator[_Row]:
    for number, line in lines(file, "the table"):
        if number == 1:
            _require(list(decode(msgspec.json.Decoder(dict[str, msgspec.Raw]), line, "line 1")))
        yield decode(_ROW, line, f"line {number}")


def _require(names: list[str]) -> None:
    if missing := REQUIRED.difference(names):
        raise DataError(f"a table without the columns {', '.join(sorted(missing))}")
