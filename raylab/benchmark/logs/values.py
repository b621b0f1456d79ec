"""Values as files have them: names, numbers and texts, one at a time or by column."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.core.bounded import decode, lines, over
from raylab.core.printable import printable
from raylab.core.stats import Array

MAX_NAME, MAX_ANSWER = 200, 200
"""Longest names and answers, in characters."""
MAX_SAMPLES = 1_000_000
"""Most samples of a log, against files that expand."""

UNSCORED = "samples without a score"
NO_NUMBER = "scores that are not numbers: choose another scorer, metric or column"
ERRORED = "samples that ended in an error"
CANCELLED = "samples that were cancelled"
INVALIDATED = "samples that were invalidated: run them again"
UNNAMED = "responses without a model or an item"
WRONG_NUMBER = "rows with a weight that is not above 0, or an epoch that is not a whole number"
REASONS = (UNSCORED, NO_NUMBER, ERRORED, CANCELLED, INVALIDATED, UNNAMED, WRONG_NUMBER)
CODES: dict[str | None, int] = {None: -1} | {reason: n for n, reason in enumerate(REASONS)}
VALUES: dict[str, float | None] = {
    **dict.fromkeys(("C", "yes", "true", "correct", "pass", "passed"), 1.0),
    **dict.fromkeys(("I", "N", "no", "false", "incorrect", "wrong", "fail", "failed"), 0.0),
    **dict.fromkeys(("", "nan", "na", "n/a", "null", "none")),
    "P": 0.5,
}
"""Scores of the letters that Inspect writes, and of words; None is a missing score."""
EVERY_RUN = {
    *("seed", "max_connections", "max_retries", "timeout", "attempt_timeout", "batch", "cache"),
    *("adaptive_connections", "api_key", "base_url", "num_choices", "extra_headers"),
}
"""Settings that do not make another model or task."""

Object = dict[str, Any]
OBJECT, OBJECTS = msgspec.json.Decoder(Object), msgspec.json.Decoder(list[Object])
Codes = NDArray[np.int64]
Column = Any
"""A column of a frame, or a frame, whose types pandas declares too widely."""


def records(file: BinaryIO, what: str, most: int = MAX_SAMPLES) -> Iterator[Object]:
    """Yields the objects in JSON lines."""
    for count, (number, line) in enumerate(lines(file, what)):
        if count == most:
            raise over(what, "lines", most)
        yield decode(OBJECT, line, "an object", f"line {number}")


def dig(value: object, *path: str | int | None) -> Any:
    """Returns what is at a path of keys and places in a value of JSON, None if nothing is."""
    for step in path:
        try:
            value = cast(Any, value)[step] if isinstance(value, dict | list) else None
        except (LookupError, TypeError):
            return None
    return value


def entries(value: object, *path: str | int) -> list[Any]:
    """Returns the elements of a list, or values of an object, at a path; none if none is there."""
    value = dig(value, *path)
    if isinstance(value, dict):
        return [*value.values()]
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_settings(*values: object) -> dict[str, str]:
    """Returns the settings in objects by name, without empty ones and those of every run."""
    objects = [cast("dict[str, Any]", value) for value in values if isinstance(value, dict)]
    return {
        key: as_name(setting)
        for each in objects
        for key, setting in each.items()
        if key not in EVERY_RUN and setting not in (None, "", [], {})
    }


def as_name(value: object) -> str:
    """Returns a value as a printable name; a long one is cut and ends with its hash."""
    text = str(value)
    if not text.isprintable():
        text = printable(text, breaks=False)
    if len(text) > MAX_NAME:
        text = f"{text[: MAX_NAME - 20]}...{text_hash(text) % 2**64:016x}"
    return text


def text_hash(text: object) -> int:
    """Returns a hash of a text as a signed integer of 8 bytes, 0 for an empty one."""
    content = str(text).encode(errors="surrogatepass")
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, signed=True) if content else 0


def shorten(text: object, longest: int = MAX_ANSWER) -> str:
    """Returns a printable text; of a long one, the beginning and the end."""
    if isinstance(text, list):
        text = "; ".join(map(str, cast("list[Any]", text)))
    whole = "" if text is None or text != text else str(text)
    if len(whole) > longest:
        whole = f"{whole[: longest * 2 // 3]} [...] {whole[-longest // 3 :]}"
    return whole if whole.isprintable() else printable(whole)


def read_time(text: object) -> float:
    """Returns the seconds since 1970 of a time in ISO 8601 or in seconds; 0 for other texts."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return float(text) if isinstance(text, str) and text.isdecimal() else 0.0


def read_number(value: object) -> float | str:
    """Returns the number of a score as written, or the reason why it has none."""
    if isinstance(value, str):
        word = value.strip()
        value = VALUES.get(word, VALUES.get(word.lower(), word))
        with suppress(ValueError):
            if isinstance(value, str):
                value = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    if value is None or value != value:
        return UNSCORED
    if isinstance(value, int | float | Decimal):
        with suppress(OverflowError):
            if math.isfinite(number := float(value)):
                return number
    return NO_NUMBER


def total(values: Iterable[object]) -> float:
    """Returns the sum of the numbers among values, NaN if there is none."""
    numbers = [each for value in values if isinstance(each := read_number(value), float)]
    return sum(numbers) if numbers else math.nan


def as_names(column: Column, form: Callable[[object], str] = as_name) -> pd.Categorical:
    """Returns the names in a column as categories; a missing one is empty."""
    codes, values = _coded(column)
    numbers, names = pd.factorize(np.array([*map(form, values)], object))
    # Texts of the type object are not copied.
    return pd.Categorical.from_codes(numbers[codes], pd.Index(names, dtype=object))


def as_numbers(column: Column, missing: float = math.nan) -> tuple[Array, Codes]:
    """Returns the numbers in a column, `missing` where there is none, and the codes of reasons."""
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        numbers = column.to_numpy(float, na_value=np.nan)
        reasons = np.where(np.isfinite(numbers), -1, CODES[UNSCORED])
        return np.where(np.isnan(numbers), missing, numbers), reasons
    codes, values = _coded(column)
    ends = {UNSCORED: missing, NO_NUMBER: math.nan}
    read: list[Any] = [*map(read_number, values)]
    numbers = np.array([ends.get(each, each) for each in read], float)
    return numbers[codes], np.array([CODES.get(each, -1) for each in read])[codes]


def hash_column(column: Column) -> Codes:
    """Returns the hashes of the texts in a column, 0 where there is none."""
    codes, values = _coded(column)
    return np.array([*map(text_hash, values)], np.int64)[codes]


def _coded(column: Column) -> tuple[Codes, list[Any]]:
    """Returns places among values, and these values, of which the last is a missing one."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy(), [*np.asarray(column.cat.categories, object), ""]
    if column.dtype == object:
        # Values of JSON, such as lists, may have no hash.
        values = ["" if value is None or value != value else value for value in column]
        return np.arange(len(values)), [*values, ""]
    codes, values = pd.factorize(column)
    if pd.api.types.is_float_dtype(values.dtype) and (values % 1 == 0).all():
        values = values.astype("int64")
    return codes, [*values.tolist(), ""]


def combine(*columns: Column) -> Codes:
    """Returns a number for each different row of columns of whole numbers, from 0 on."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes, values = pd.factorize(column)
        numbers = pd.factorize(numbers * len(values) + codes)[0]
    return numbers


def firsts(codes: Column) -> Codes:
    """Returns the places where each number occurs first."""
    return np.flatnonzero(~pd.Series(codes).duplicated())
