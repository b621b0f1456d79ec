"""Long tables: CSV, JSONL or Parquet with `model`, `item` and `score`, a row for each response.

Optional columns are `group`, `generation`, `weight` and `epoch`; others are ignored.
"""

import csv
from collections.abc import Iterator, Mapping
from itertools import chain
from math import inf
from typing import Any, BinaryIO, cast

import pyarrow.parquet as pq

from raylab.benchmark.logs.rows import UNNAMED, Choice, Origin, Row
from raylab.benchmark.logs.sample_lines import OBJECT
from raylab.benchmark.logs.trees import Source
from raylab.core.bounded import decode, lines
from raylab.core.errors import DataError

FORM = "long table"
REQUIRED = frozenset({"model", "item", "score"})
COLUMNS = (*sorted(REQUIRED), "group", "generation", "weight", "epoch")
BATCH_ROWS = 1 << 14
WRONG = "rows with a weight that is not above 0, or an epoch that is not a whole number from 1"


def read_long_table(file: BinaryIO, source: Source, choice: Choice) -> Iterator[Row]:
    """Yields the scores of a table.

    Raises:
        DataError: It is broken, or lacks a column.
        OSError: It cannot be read.
    """
    name = source.place.name
    if name.endswith(".parquet"):
        rows = _read_parquet(file)
    else:
        rows = _read_csv(file) if name.endswith(".csv") else _read_lines(file)
    if (first := next(rows, None)) is None:
        raise DataError("an empty table")
    if missing := REQUIRED.difference(first):
        raise DataError(f"a table without the columns {', '.join(sorted(missing))}")
    for row in chain([first], rows):
        # An empty cell of CSV is a missing value.
        cells = [None if row.get(name) == "" else row.get(name) for name in COLUMNS]
        item, model, score, group, generation, *numbers = cells
        named = ["" if text is None else str(text) for text in (model, generation)]
        origin = Origin(FORM, named[0], generation=named[1])
        weight, epoch = (1.0 if value is None else float(value) for value in numbers)
        right = 0 < weight < inf and 0 < epoch < 2**31 and epoch.is_integer()
        wrong = UNNAMED if None in (model, item) else None if right else WRONG
        values = int(epoch) if right else 1, None, wrong, group
        yield Row(origin, str(item), score, *values, weight)


def _read_parquet(file: BinaryIO) -> Iterator[Mapping[str, Any]]:
    with pq.ParquetFile(cast(Any, file)) as table:
        names = [name for name in table.schema_arrow.names if name in COLUMNS]
        for batch in table.iter_batches(BATCH_ROWS, columns=names):
            yield from batch.to_pylist()


def _read_csv(file: BinaryIO) -> Iterator[Mapping[str, Any]]:
    return csv.DictReader(line.decode("utf-8-sig") for _, line in lines(file, "the table"))


def _read_lines(file: BinaryIO) -> Iterator[Mapping[str, Any]]:
    for number, line in lines(file, "the table"):
        yield decode(OBJECT, line, "a row", f"line {number}")
