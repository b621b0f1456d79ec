"""The conversion of records to rows of the tables, and back, with a checksum of their content."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import Row

from raylab.archive.tables import ForeignContentError, utc_text

AnyRow = Row[*tuple[Any, ...]]

JSON_COLUMNS = frozenset({"body", "config", "parameters", "versions"})
"""Columns that hold JSON as canonical text."""
REAL_COLUMNS = frozenset({"cost", "seconds"})
"""Columns that hold real numbers, also where the record has an integer."""
CHECKSUM = "sha256"

R = TypeVar("R")


def canonical(value: Any) -> str:
    """Returns JSON with sorted keys, no spaces and only ASCII; NaN and infinity become null.

    Raises:
        TypeError: The value holds something that JSON cannot represent.
    """
    try:
        return _dumps(value)
    except ValueError:
        return _dumps(_finite(value))


def digest(text: str) -> str:
    """Returns the SHA-256 of a text in UTF-8, in hexadecimal; lone surrogates are allowed."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def lock_number(run: AnyRow) -> int:
    """Returns the number of the lock that the owner of a run holds: 60 bits, not negative."""
    return int(digest(f"{run.name}\n{run.uid}\n{utc_text(run.started)}")[:15], 16)


def seal(record: object, **more: Any) -> dict[str, Any]:
    """Returns the columns of a record with their checksum.

    Args:
        record: A dataclass whose fields are columns.
        more: Further columns that the checksum covers.
    """
    columns = {name: _stored(name, value) for name, value in {**vars(record), **more}.items()}
    return {**columns, CHECKSUM: _checksum(columns)}


def unseal(kind: type[R], row: AnyRow, **more: Any) -> R:
    """Returns the record of a row that `seal` made.

    Args:
        kind: Dataclass whose fields are columns of the row.
        row: The row.
        more: Fields that are no columns.

    Raises:
        ForeignContentError: The content of the row does not have its checksum.
    """
    names = [name for name in _names(kind) if name not in more and name != CHECKSUM]
    content = {name: getattr(row, name) for name in names}
    if _checksum(content) != row.sha256:
        name = content.get("case") or content.get("key")
        raise ForeignContentError(
            f"the content of {kind.__name__} {name!r} does not have its SHA-256"
        )
    return from_row(kind, row, **more)


def from_row(kind: type[R], row: AnyRow, **more: Any) -> R:
    """Returns the record of a row without a check of its content; see `unseal`."""
    names = [name for name in _names(kind) if name not in more]
    return kind(**{name: _read(name, getattr(row, name)) for name in names}, **more)


def _checksum(columns: Mapping[str, Any]) -> str:
    return digest(canonical({name: _hashable(value) for name, value in columns.items()}))


def _hashable(value: Any) -> Any:
    return utc_text(value) if isinstance(value, datetime) else value


def _stored(name: str, value: Any) -> Any:
    if name in JSON_COLUMNS:
        return canonical(dict(value))
    return float(value) if name in REAL_COLUMNS and value is not None else value


def _read(name: str, value: Any) -> Any:
    if name not in JSON_COLUMNS:
        return value
    try:
        return json.loads(value)
    except (TypeError, ValueError) as error:
        raise ForeignContentError(f"column {name} holds no JSON: {error}") from error


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(list[Any], value)]
    return value
