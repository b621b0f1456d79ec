"""The tables of an archive, and their column types."""

import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import DateTime, TypeEngine

ESCAPE = "\x1a"
"""The control character SUBSTITUTE, followed by the four hexadecimal digits of a character."""
UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
ESCAPED = re.compile("\x1a([0-9a-f]{4})")


VERSION = 1
"""Version of the tables; an archive of another one is refused."""


class ForeignContentError(ValueError):
    """Content of a row that raylab did not write there."""


class AnyText(TypeDecorator[str]):
    """Any Python string, including NUL and lone surrogates, which the databases refuse.

    These and the escape character itself are stored as `ESCAPE` and four hexadecimal digits; every
    other text is stored unchanged.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns the text in its stored form."""
        return value if value is None else escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns the original text.

        Raises:
            ForeignContentError: The stored value is no text.
        """
        if value is None:
            return None
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ForeignContentError(f"{value!r} is no text")
        if ESCAPE not in value:
            return value
        return ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)


class UtcTime(TypeDecorator[datetime]):
    """A time with its zone; ISO 8601 text in UTC on SQLite, which has no such type."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Returns text on SQLite, else the database's own type."""
        kind = String(32) if dialect.name == "sqlite" else DateTime(timezone=True)
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Returns the time in its stored form.

        Raises:
            ValueError: It has no zone.
        """
        if value is None:
            return None
        return utc_text(value) if dialect.name == "sqlite" else in_utc(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Returns the time in UTC.

        Raises:
            ForeignContentError: The stored value is no time with a zone.
        """
        if value is None:
            return None
        try:
            return in_utc(
                value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
            )
        except ValueError as error:
            raise ForeignContentError(str(error)) from error


def escape(text: str) -> str:
    """Returns a text that every database can store; ordinary texts stay unchanged."""
    if ESCAPE not in text and "\0" not in text and (text.isascii() or _encodable(text)):
        return text
    return UNSTORABLE.sub(lambda match: f"{ESCAPE}{ord(match[0]):04x}", text)


def utc_text(time: datetime) -> str:
    """Returns a time in UTC as ISO 8601 with microseconds; the fixed length makes it sort as text.

    Raises:
        ValueError: It has no zone.
    """
    return in_utc(time).isoformat(timespec="microseconds")


def in_utc(time: datetime) -> datetime:
    """Returns a time in UTC.

    Raises:
        ValueError: It has no zone.
    """
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone")
    return time.astimezone(UTC)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


METADATA = MetaData()
DIGEST = String(64)


def _record() -> list[Column[Any]]:
    """Returns the columns of every record of a run; SQLite reads faster with small ones first."""
    return [
        Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
        Column("sequence", BigInteger, primary_key=True, autoincrement=False),
        Column("status", AnyText, nullable=False),
        Column("created", UtcTime, nullable=False),
        Column("sha256", DIGEST, nullable=False),
        Column("case", AnyText, nullable=False),
    ]


SUMMED = ("attempts", "prompt_tokens", "completion_tokens", "money", "unpriced")
"""The fields of a `raylab.archive.records.Cost`."""


def _sum(part: str, name: str) -> Column[Any]:
    kind = Double if name == "money" else BigInteger
    return Column(f"{part}_{name}", kind, nullable=False, default=0)


ARCHIVE = Table(
    "archive",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("id", String(32), nullable=False),
)
RUNS = Table(
    "runs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", AnyText, nullable=False, unique=True),
    Column("started", UtcTime, nullable=False),
    Column("finished", UtcTime),
    Column("records", BigInteger, nullable=False),
    Column("config", AnyText, nullable=False),
    Column("versions", AnyText, nullable=False),
    Column("uid", AnyText),
    Column("owner", String(32)),
    Column("holder", AnyText, nullable=False, default=""),
    *(_sum(part, name) for part in ("billed", "uncertain", "held") for name in SUMMED),
)
CALLS = Table(
    "calls",
    METADATA,
    Column("key", DIGEST, primary_key=True),
    Column("state", String(8), nullable=False),
    Column("run_id", Integer, ForeignKey("runs.id"), nullable=False),
    Column("owner", String(32), nullable=False),
    Column("claim", String(64), nullable=False),
    Column("claimant", AnyText, nullable=False),
    Column("held_prompt_tokens", BigInteger, nullable=False),
    Column("held_completion_tokens", BigInteger, nullable=False),
    Column("held_cost", Double),
    # The others are null until the call is answered.
    Column("description_hash", DIGEST),
    Column("role", AnyText),
    Column("endpoint", AnyText),
    Column("model", AnyText),
    Column("response_model", AnyText),
    Column("seed", BigInteger),
    Column("finish_reason", AnyText),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cached_prompt_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("lane", AnyText),
    Column("cost", Double),
    Column("seconds", Double),
    Column("attempts", Integer),
    Column("created", UtcTime),
    Column("sha256", DIGEST),
    Column("parameters", AnyText),
    Column("text", AnyText),
    Index("calls_by_subject", "description_hash"),
    Index(
        "calls_in_flight",
        "run_id",
        sqlite_where=text("state = 'sent'"),
        postgresql_where=text("state = 'sent'"),
    ),
)
CASES = Table(
    "cases",
    METADATA,
    *_record(),
    Column("description_hash", DIGEST, nullable=False),
    Column("description", AnyText, nullable=False),
    Column("body", AnyText, nullable=False),
    UniqueConstraint("run_id", "case", name="cases_by_case"),
    Index("cases_by_status", "run_id", "status", "sequence"),
)
DECISIONS = Table(
    "decisions",
    METADATA,
    *_record(),
    Column("kind", String(8), nullable=False),
    Column("action", AnyText, nullable=False),
    Column("reviewer", AnyText, nullable=False),
    Column("body", AnyText, nullable=False),
    Index("decisions_by_case", "run_id", "case", "sequence"),
)
PROMPTS = Table(
    "prompts",
    METADATA,
    Column("hash", DIGEST, primary_key=True),
    Column("name", AnyText, nullable=False),
    Column("version", AnyText, nullable=False),
    Column("text", AnyText, nullable=False),
)
LEASES = Table(
    "leases",
    METADATA,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("reviewer", AnyText, nullable=False),
    Column("expires", UtcTime, nullable=False),
)
