"""Long tables: CSV, JSONL or Parquet with `model`, `item` and `score`, a row for each response.

Optional columns are `group`, `generation`, `weight` and `epoch`; others are not read.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raylab.bounded import lines, over
from raylab.doctor.json_stream import decode
from raylab.doctor.rows import MOST_ROWS, Origin, Rows, Source, read_score_value
from raylab.errors import DataError

FORM = "long table"
REQUIRED = ("model", "item", "score")
TEXTS = ("model", "item", "group", "generation")
COLUMNS = (*TEXTS, "score", "weight", "epoch")
SUFFIXES = (".csv", ".parquet", ".pq", ".jsonl", ".ndjson")
BATCH_ROWS = 1 << 16
BLOCK_BYTES = 1 << 22
ROWS_PER_BYTE = 100
"""Rows for which a byte of a Parquet file may stand; one that claims more is no honest table."""
UNNAMED = "rows without a model or an item"
WEIGHTLESS = "rows whose weight is no number above 0"
EPOCHLESS = "rows whose epoch is no whole number from 1"

Integers = NDArray[np.int64]


class _Row(msgspec.Struct):
    model: Any = None
    item: Any = None
    score: Any = None
    group: Any = None
    generation: Any = None
    weight: Any = None
    epoch: Any = None


_ROW = msgspec.json.Decoder(_Row)


def read_long_table(file: BinaryIO, source: Source, rows: Rows) -> None:
    """Adds the scores of a table to `rows`.

    Raises:
        DataError: It is broken, or lacks a column.
        OSError: It cannot be read.
    """
    name, count = source.place.name, 0
    read = _read_csv if name.endswith(".csv") else _read_lines
    origins = dict[tuple[int, int], int]()
    for batch in (_read_parquet if name.endswith((".parquet", ".pq")) else read)(file):
        if missing := [name for name in REQUIRED if name not in batch.schema.names]:
            raise DataError(f"a table without the columns {', '.join(missing)}")
        count += batch.num_rows
        if count > MOST_ROWS:
            raise over(str(source.place), "rows", MOST_ROWS)
        _add(batch, origins, source, rows)


def _read_parquet(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    size = file.seek(0, 2)
    names = [name for name in COLUMNS if name in pq.read_schema(cast(Any, file)).names]
    # A text that the file holds once and repeats in each row is held once.
    texts = [name for name in TEXTS if name in names]
    with pq.ParquetFile(cast(Any, file), read_dictionary=texts) as table:
        if table.metadata.num_rows > BATCH_ROWS + ROWS_PER_BYTE * size:
            raise over("the table", "rows for its size", ROWS_PER_BYTE * size)
        yield from table.iter_batches(BATCH_ROWS, columns=names)


def _read_csv(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    # Numbers are read as text: an item 007 is not 7, and a score may be no number.
    convert = pv.ConvertOptions(column_types=dict.fromkeys(COLUMNS, pa.string()))
    yield from pv.open_csv(
        cast(Any, file),
        read_options=pv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        convert_options=convert,
    )


def _read_lines(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    cells: list[list[Any]] = [[] for _ in COLUMNS]
    for number, line in lines(file, "the table"):
        row = decode(_ROW, line, f"line {number}")
        for name, column in zip(COLUMNS, cells, strict=True):
            value = getattr(row, name)
            column.append(value if value is None else str(value))
        if number % BATCH_ROWS == 0:
            yield _text_batch(cells)
            cells = [[] for _ in COLUMNS]
    yield _text_batch(cells)


def _text_batch(cells: list[list[Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in cells], list(COLUMNS))


def _add(
    batch: pa.RecordBatch, origins: dict[tuple[int, int], int], source: Source, rows: Rows
) -> None:
    where, names = str(source.place), batch.schema.names
    model, item, group, generation = (
        _numbers_of_names(batch.column(name), rows)
        if name in names
        else np.full(batch.num_rows, -1, np.int64)
        for name in TEXTS
    )
    weight = _numbers(batch, "weight", 1.0)
    epoch = _numbers(batch, "epoch", 1.0)
    score, reasons = _scores(batch.column("score"))
    usable = np.ones(batch.num_rows, bool)
    for reason, wrong in (
        (UNNAMED, (model < 0) | (item < 0)),
        *((reason, reasons == reason) for reason in np.unique(reasons[reasons != ""])),
        (WEIGHTLESS, ~((weight > 0) & np.isfinite(weight))),
        (EPOCHLESS, ~((epoch >= 1) & (epoch == np.floor(epoch)) & (epoch < 2**31))),
    ):
        if count := int((usable & wrong).sum()):
            rows.leave_out(str(reason), where, count)
        usable &= ~wrong
    origin = _origins(model[usable], generation[usable], origins, source, rows)
    text = np.zeros(len(origin), np.int64)
    added = (item[usable], group[usable], origin, text, epoch[usable].astype(np.int64))
    for column, values in zip(rows.columns, (*added, score[usable], weight[usable]), strict=True):
        column.frombytes(values.tobytes())


def _numbers_of_names(column: Any, rows: Rows) -> Integers:
    """Returns (rows,) numbers of names; -1 for a missing or empty one."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(pc.cast(column, pa.string()))
    names = [str(name) if name is not None else "" for name in column.dictionary.to_pylist()]
    numbers = np.array([rows.number(name) if name else -1 for name in names] + [-1], np.int64)
    return numbers[pc.fill_null(column.indices, len(names)).to_numpy(zero_copy_only=False)]


def _numbers(batch: pa.RecordBatch, name: str, default: float) -> NDArray[np.float64]:
    """Returns a (rows,) column of numbers, of which a missing one is the default."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, default)
    column = batch.column(name)
    if pa.types.is_string(column.type):
        column = pc.if_else(pc.equal(column, ""), None, column)
    return pc.fill_null(pc.cast(column, pa.float64()), default).to_numpy(zero_copy_only=False)


def _scores(column: Any) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Returns (rows,) scores, and the reasons why some are none, else empty."""
    encoded = pc.dictionary_encode(column)
    values = [read_score_value(value) for value in [*encoded.dictionary.to_pylist(), None]]
    scores = np.array([np.nan if isinstance(value, str) else value for value in values])
    reasons = np.array([value if isinstance(value, str) else "" for value in values])
    places = pc.fill_null(encoded.indices, len(values) - 1).to_numpy(zero_copy_only=False)
    return scores[places], reasons[places]


def _origins(
    model: Integers,
    generation: Integers,
    origins: dict[tuple[int, int], int],
    source: Source,
    rows: Rows,
) -> Integers:
    """Returns (rows,) numbers of the origins: one for each model and generation."""
    pairs, places = np.unique(np.stack([model, generation], 1), axis=0, return_inverse=True)
    names = list(rows.names) if len(pairs) else []
    for first, second in map(tuple, pairs.tolist()):
        if (first, second) not in origins:
            named = names[second] if second >= 0 else ""
            origin = Origin(source, FORM, names[first], generation=named)
            origins[first, second] = rows.add_origin(origin)
    numbers = np.array([origins[pair] for pair in map(tuple, pairs.tolist())], np.int64)
    return numbers[places.reshape(-1)] if len(pairs) else np.zeros(0, np.int64)
