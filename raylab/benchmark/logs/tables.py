"""Tables of any tool: CSV, JSON lines, lists of JSON objects or Parquet.

A long table has a row for each response, with the columns of `COLUMNS`, or of the names that
`columns.model=` and the like give them. `response.parquet` of measurement-db has names of its own.
A wide table has a column for each model, or for each item. Everything is read by column.
"""

from collections.abc import Mapping
from io import BytesIO
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from raylab.benchmark.logs.log import (
    CODES,
    MAX_EPOCH,
    MAX_ROWS,
    TYPES,
    UNNAMED,
    UNSCORED,
    WRONG_NUMBER,
    Choice,
    Description,
    Files,
    Log,
    as_name,
    read_value,
    shorten,
    text_hash,
)
from raylab.benchmark.logs.sample_lines import ENTRIES, OBJECT, RESULTS_BYTES
from raylab.benchmark.logs.trees import Source
from raylab.core.bounded import decode, lines, over, read_all
from raylab.core.errors import DataError
from raylab.core.printable import join_names

FORM = "table"
NAMES = ("model", "item", "task", "group", "cluster", "generation", "answer", "text", "target")
NUMBERS = ("score", "weight", "epoch", "run")
COLUMNS = (*NAMES, *NUMBERS)
MEASUREMENTS = {
    "subject_id": "model",
    "item_id": "item",
    "benchmark_id": "task",
    "trial": "epoch",
    "response": "score",
}
"""Columns of measurement-db."""
CONDITION = "test_condition"
"""Its column of conditions, under which a subject is another model."""
RESPONSES = "responses"
"""The object of responses by item in the JSON lines of py-irt."""
TABLE_BYTES, COLUMN_BYTES = 1 << 30, 1 << 28
"""Most bytes of a table of text, and of the columns of a Parquet file without compression."""
SHOWN = 12
"""Most columns that an error names."""

Column = Any
"""A column of a table, whose types pandas declares too widely."""


def read_table(file: BinaryIO, source: Source, choice: Choice, files: Files) -> None:
    """Adds the scores of a table to `files`.

    Raises:
        DataError: It is broken, or its columns are not known.
        OSError: It cannot be read.
    """
    table = _rename(_read(file, source.place.name, choice), source, choice, files)
    columns = {name: _names(table[name]) for name in NAMES if name in table}
    model, item = columns["model"], columns["item"]
    score, wrong = _scores(table["score"])
    weight, epoch = (_numbers(table, name) for name in ("weight", "epoch"))
    trial = epoch + (1 if len(epoch) and epoch.min() == 0 else 0)
    whole = (trial > 0) & (trial < MAX_EPOCH) & (trial == np.floor(trial))
    wrong = np.where((weight > 0) & np.isfinite(weight) & whole, wrong, CODES[WRONG_NUMBER])
    wrong = np.where((model.codes < 0) | (item.codes < 0), CODES[UNNAMED], wrong)
    keys = [name for name in ("model", "task", "generation") if name in columns]
    run = np.where(np.isfinite(run := _numbers(table, "run")), run, 1.0)
    coded = [columns[name].codes.astype(np.int64) for name in keys]
    coded.append(pd.factorize(run)[0])
    sizes = [len(columns[name].categories) + 1 for name in keys]
    log = coded[0] + 1
    for codes, size in zip(coded[1:], [*sizes[1:], int(coded[-1].max(initial=0)) + 2], strict=True):
        log = log * size + codes + 1
    first, log = _first_of(log)
    logs = [
        Log(
            source,
            FORM,
            _text(model, place),
            _text(columns.get("task"), place),
            _text(columns.get("generation"), place),
            scorer=choice.columns.get("score", ""),
            time=float(run[place]),
        )
        for place in first
    ]
    empty = pd.Categorical.from_codes(np.zeros(len(table), np.int8), [""])
    declared = choice.cluster if choice.cluster in table else "cluster"
    values = {
        "log": log.astype(np.int32),
        "item": item,
        "text": _describe(table, columns, logs, log, files),
        "epoch": np.where(whole, trial, 1).astype(np.int64),
        "score": score,
        "wrong": wrong.astype(np.int8),
        "group": columns.get("group", empty),
        "cluster": _names(table[declared]) if declared in table else empty,
        "weight": np.where(np.isfinite(weight), weight, 1.0),
        "answer": columns.get("answer", empty),
    }
    files.add_table(logs, pd.DataFrame({name: values[name] for name in TYPES}), logs[0])


def _first_of(codes: Column) -> tuple[Column, Column]:
    """Returns the places where codes occur first, and the number of the code of each row."""
    number, different = pd.factorize(codes)
    first = np.full(len(different), len(codes))
    first[number[::-1]] = np.arange(len(codes))[::-1]
    return first, number


def _read(file: BinaryIO, name: str, choice: Choice) -> pd.DataFrame:
    if name.endswith(".parquet"):
        return _read_parquet(file, choice)
    if name.endswith(".csv"):
        return _read_csv(file)
    return _read_objects(file, name)


def _read_parquet(file: BinaryIO, choice: Choice) -> pd.DataFrame:
    """Reads the columns that may matter; texts stay coded, so that none is repeated."""
    with pq.ParquetFile(cast(Any, file)) as table:
        schema, counts = table.schema_arrow, table.metadata
        if counts.num_rows > MAX_ROWS:
            raise over("the table", "rows", MAX_ROWS)
        wanted = _wanted(schema.names, choice)
        places = [schema.names.index(name) for name in wanted]
        size = sum(
            counts.row_group(group).column(place).total_uncompressed_size
            for group in range(counts.num_row_groups)
            for place in places
            if place < counts.num_columns
        )
        if size > COLUMN_BYTES:
            raise over("the table", "bytes without compression", COLUMN_BYTES)
        texts = [name for name in wanted if pa.types.is_string(schema.field(name).type)]
    file.seek(0)
    with pq.ParquetFile(cast(Any, file), read_dictionary=texts) as table:
        return table.read(columns=wanted).to_pandas()


def _read_csv(file: BinaryIO) -> pd.DataFrame:
    content = read_all(file, "the table", TABLE_BYTES)
    if not content.strip():
        raise DataError("an empty table")
    # Ids such as 007 are texts; only the score and other numbers are converted, later.
    options = pc.ConvertOptions(auto_dict_encode=True, auto_dict_max_cardinality=1 << 20)
    names = pc.open_csv(BytesIO(content), pc.ReadOptions(block_size=1 << 24)).schema.names
    texts = pa.dictionary(pa.int32(), pa.string())
    numbers = {"score", "weight", "epoch", "run", "response", "trial"}
    options.column_types = {name: texts for name in names if name.casefold() not in numbers}
    options.strings_can_be_null = True
    options.null_values = [""]
    table = pc.read_csv(BytesIO(content), pc.ReadOptions(block_size=1 << 24), None, options)
    if table.num_rows > MAX_ROWS:
        raise over("the table", "rows", MAX_ROWS)
    return table.to_pandas()


def _read_objects(file: BinaryIO, name: str) -> pd.DataFrame:
    """Reads objects, a row each; objects of responses by item are rows of a wide table."""
    if name.endswith(".json"):
        rows = decode(ENTRIES, read_all(file, "the table", RESULTS_BYTES), "a list of rows")
    else:
        rows = list[dict[str, Any]]()
        for number, line in lines(file, "the table"):
            rows.append(decode(OBJECT, line, "a row", f"line {number}"))
            if len(rows) > MAX_ROWS // 4:
                raise over("the table", "rows", MAX_ROWS // 4)
    if not rows:
        raise DataError("an empty table")
    if isinstance(rows[0].get(RESPONSES), dict):
        rows = [
            {"model": row.get("subject_id"), "item": item, "score": score}
            for row in rows
            for item, score in cast("dict[str, Any]", row.get(RESPONSES) or {}).items()
        ]
    # Texts of JSON may have lone surrogates, which only objects hold.
    return pd.DataFrame(rows, dtype=object)


def _wanted(names: list[str], choice: Choice) -> list[str]:
    """Returns the columns that are read; all where the table may be a wide one."""
    renamed = {choice.columns.get(name, name).casefold() for name in COLUMNS} | {CONDITION}
    renamed |= set(MEASUREMENTS) | {choice.cluster, choice.group}
    wanted = [name for name in names if name.casefold() in renamed or name in renamed]
    is_long = any(name.casefold() in ("score", "response") for name in wanted)
    return wanted if is_long or "score" in choice.columns else names


def _rename(table: pd.DataFrame, source: Source, choice: Choice, files: Files) -> Column:
    """Returns the table with our names of columns, in long form.

    Raises:
        DataError: A column is missing.
    """
    if table.empty:
        raise DataError("an empty table")
    for name, column in choice.columns.items():
        if column not in table:
            raise DataError(f"no column {column} for columns.{name}: it has {_shown(table)}")
    names = {column: name for name, column in choice.columns.items()}
    if choice.group is not None and choice.group in table:
        names.setdefault(choice.group, "group")
    taken = set(names.values())
    for column in map(str, table.columns):
        own = column.casefold()
        own = MEASUREMENTS.get(own, own) if "subject_id" in table or own in MEASUREMENTS else own
        if own in COLUMNS and own not in taken and column not in names:
            names[column] = own
            taken.add(own)
    long: Column = table.rename(columns=names)
    if CONDITION in long and "model" in long:
        long["model"] = _with_conditions(long["model"], long[CONDITION])
    if "score" not in long:
        long = _as_long(long, source, files)
    if "model" not in long and {"item", "score"} <= set(long):
        long["model"] = source.place.stem
        files.notes.append(f"{source.place.name}: the file names the model")
    if missing := [name for name in ("model", "item", "score") if name not in long]:
        raise DataError(
            f"a table without the columns {join_names(missing, 3)}, which has {_shown(table)}: say "
            f"which is which with {' '.join(f'columns.{name}=' for name in missing)}"
        )
    return long


def _as_long(table: Column, source: Source, files: Files) -> Column:
    """Returns a wide table in long form: where models or items are columns of numbers."""
    kept = [name for name in table if name in COLUMNS or name == CONDITION]
    numbers: dict[str, Column] = {
        name: pd.to_numeric(table[name].astype(object), errors="coerce")
        for name in table
        if name not in kept
    }
    scores = [name for name, column in numbers.items() if column.notna().any()]
    others = [name for name in numbers if name not in scores]
    over, across = ("item", "model") if "item" in kept else ("model", "item")
    if over not in kept or across in kept or len(scores) < 2 or others:
        return table
    files.notes.append(
        f"{source.place.name}: a wide table, read as a column for each {across}: "
        f"{join_names(list(map(str, scores)), 5)}"
    )
    whole = table.assign(**{name: numbers[name] for name in scores})
    return whole.melt(kept, scores, across, "score")


def _with_conditions(models: Column, conditions: Column) -> Column:
    """Returns the names of models with their conditions, where a model has several."""
    texts = conditions.astype(object).where(conditions.notna(), "").astype(str)
    several = texts.groupby(models.astype(str)).transform("nunique") > 1
    named = models.astype(str) + " (" + texts + ")"
    return models.astype(str).where(~several | (texts == ""), named)


def _shown(table: pd.DataFrame) -> str:
    return join_names([as_name(name) for name in table.columns], SHOWN)


def _names(column: Column) -> pd.Categorical:
    """Returns names as categories; an empty one is missing."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, values = column.cat.codes.to_numpy(), column.cat.categories
    else:
        whole = pd.api.types.is_float_dtype(column.dtype) and bool((column % 1 == 0).all())
        column = column.astype("int64") if whole else column
        codes, values = pd.factorize(column.to_numpy(object) if column.dtype == object else column)
    numbers, different = pd.factorize(
        np.array([as_name(value) for value in values.tolist()], object)
    )
    codes = np.append(numbers, -1)[codes]
    empty = np.flatnonzero(different == "")
    codes = np.where(np.isin(codes, empty), -1, codes)
    return pd.Categorical.from_codes(codes, list(different))


def _text(column: pd.Categorical | None, place: int) -> str:
    """Returns the name in a row, empty if there is none."""
    code = -1 if column is None else column.codes[place]
    return "" if column is None or code < 0 else str(column.categories[code])


def _scores(column: Column) -> tuple[Column, Column]:
    """Returns scores, NaN where there is none, and the numbers of the reasons."""
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        score = column.to_numpy(float, na_value=np.nan)
        score = np.where(np.isinf(score), np.nan, score)
        return score, np.where(np.isnan(score), CODES[UNSCORED], -1)
    codes, different = pd.factorize(column.astype(object))
    read = [read_value(value) for value in different] + [read_value(None)]
    score = np.array([np.nan if isinstance(each, str) else each for each in read], float)
    wrong = np.array([CODES[each] if isinstance(each, str) else -1 for each in read])
    return score[codes], wrong[codes]


def _numbers(table: Column, name: str) -> Column:
    """Returns a column of numbers, 1 where there is none; NaN for other texts."""
    if name not in table:
        return np.ones(len(table))
    cells = table[name].astype(object) if table[name].dtype == "category" else table[name]
    numbers: Column = pd.to_numeric(cells, errors="coerce")
    numbers = numbers.to_numpy(float, na_value=np.nan)
    return np.where(cells.isna(), 1.0, numbers)


def _describe(
    table: Column, columns: Mapping[str, Column], logs: list[Log], log: Column, files: Files
) -> Column:
    """Keeps the texts and targets of items; returns the hashes of the texts."""
    hashes = np.zeros(len(table), np.int64)
    if "text" in table:
        codes, texts = pd.factorize(table["text"].astype(object))
        hashes = np.array([*(text_hash(str(text)) for text in texts), 0], np.int64)[codes]
    if "text" in table or "target" in table:
        items = columns["item"]
        for place in _first_of(items.codes)[0]:
            cells = [
                table[name].iloc[place] if name in table else "" for name in ("text", "target")
            ]
            text, target = ("" if pd.isna(cell) else str(cell) for cell in cells)
            description = Description(text, shorten(target))
            name = _text(items, place)
            files.describe(logs[log[place]].bare_task, name, int(hashes[place]), description)
    return hashes
