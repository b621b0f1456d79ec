"""The tables of an archive at the latest version of its schema, and their column types."""

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
            ValueError: The stored value is no text.
        """
        if value is None:
            return None
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{value!r} is no text")
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
            ValueError: The stored value is no time with a zone.
        """
        if value is None:
            return None
        return in_utc(value if isinstance(value, datetime) else datetime.fromisoformat(str(value)))


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


def _place() -> list[Column[Any]]:
    """Returns the columns for the place of a record in the chain of its run."""
    return [
        Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
        Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    ]


def _chained(state: str = "status") -> list[Column[Any]]:
    """Returns the columns of a record in a chain; SQLite reads faster with small ones first.

    Args:
        state: Name of the column that says what the record makes of its case.
    """
    return [
        *_place(),
        Column("case_key", DIGEST, nullable=False),
        Column(state, AnyText, nullable=False),
        Column("created", UtcTime, nullable=False),
        Column("previous_hash", DIGEST, nullable=False),
        Column("hash", DIGEST, nullable=False),
    ]


RUNS = Table(
    "runs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", AnyText, nullable=False, unique=True),
    Column("started", UtcTime, nullable=False),
    Column("finished", UtcTime),
    Column("head_sequence", BigInteger, nullable=False),
    Column("head_hash", DIGEST, nullable=False),
    Column("config", AnyText, nullable=False),
    Column("versions", AnyText, nullable=False),
    Column("protocol", AnyText, nullable=False, server_default=""),
    Column("taxonomy", AnyText, nullable=False, server_default=""),
    Column("uid", AnyText),
)
CALLS = Table(
    "calls",
    METADATA,
    Column("key", DIGEST, primary_key=True),
    Column("description_hash", DIGEST, nullable=False),
    Column("run", AnyText, nullable=False),
    Column("role", AnyText, nullable=False),
    Column("endpoint", AnyText, nullable=False),
    Column("model", AnyText, nullable=False),
    Column("response_model", AnyText, nullable=False),
    Column("seed", BigInteger),
    Column("finish_reason", AnyText, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost", Double),
    Column("seconds", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created", UtcTime, nullable=False),
    Column("parameters", AnyText, nullable=False),
    Column("text", AnyText, nullable=False),
    Index("calls_by_subject", "description_hash"),
)
CASES = Table(
    "cases",
    METADATA,
    *_chained(),
    Column("description_hash", DIGEST, nullable=False),
    Column("case", AnyText, nullable=False),
    Column("description", AnyText, nullable=False),
    Column("body", AnyText, nullable=False),
    UniqueConstraint("run_id", "case_key", name="cases_by_case"),
    Index("cases_by_status", "run_id", "status", "sequence"),
)
DECISIONS = Table(
    "decisions",
    METADATA,
    *_chained(),
    Column("key", DIGEST, nullable=False),
    Column("action", AnyText, nullable=False),
    Column("reviewer", AnyText, nullable=False),
    Column("case", AnyText, nullable=False),
    Column("body", AnyText, nullable=False),
    UniqueConstraint("run_id", "key", name="decisions_by_key"),
    Index("decisions_by_case", "run_id", "case_key", "sequence"),
)
AUDITS = Table(
    "audits",
    METADATA,
    *_chained("action"),
    Column("reviewer", AnyText, nullable=False),
    Column("case", AnyText, nullable=False),
    Column("body", AnyText, nullable=False),
    Index("audits_by_case", "run_id", "case_key", "sequence"),
)
PROMPTS = Table(
    "prompts",
    METADATA,
    Column("hash", DIGEST, primary_key=True),
    Column("name", AnyText, nullable=False),
    Column("version", AnyText, nullable=False),
    Column("text", AnyText, nullable=False),
)
JOURNALS = Table(
    "journals",
    METADATA,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("entries", BigInteger, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("hash", DIGEST, nullable=False),
)
ENTRIES = Table(
    "journal_entries",
    METADATA,
    *_place(),
    Column("kind", String(8), nullable=False),
    Column("key", DIGEST, nullable=False),
    Column("hash", DIGEST, nullable=False),
    Index(
        "journal_prompts",
        "run_id",
        "key",
        unique=True,
        sqlite_where=text("kind = 'prompt'"),
        postgresql_where=text("kind = 'prompt'"),
    ),
)
OWNERS = Table(
    "run_owners",
    METADATA,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("token", String(32), nullable=False),
    Column("host", AnyText, nullable=False),
    Column("machine", AnyText, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("started", Double, nullable=False),
    Column("command", AnyText, nullable=False),
    Column("since", UtcTime, nullable=False),
    Column("expires", UtcTime, nullable=False),
)
ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("key", DIGEST, nullable=False),
    Column("run_id", Integer, ForeignKey("runs.id"), nullable=False),
    Column("owner", String(32), nullable=False),
    Column("claimant", AnyText, nullable=False),
    Column("endpoint", AnyText, nullable=False),
    Column("model", AnyText, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost", Double),
    Column("started", UtcTime, nullable=False),
    Column("expires", UtcTime, nullable=False),
    Column("state", String(16), nullable=False),
    Index(
        "attempts_in_flight",
        "key",
        unique=True,
        sqlite_where=text("state = 'sent'"),
        postgresql_where=text("state = 'sent'"),
    ),
)
LEASES = Table(
    "review_leases",
    METADATA,
    *_place(),
    Column("reviewer", AnyText, nullable=False),
    Column("expires", UtcTime, nullable=False),
)
DRAFTS = Table(
    "review_drafts",
    METADATA,
    *_place(),
    Column("reviewer", AnyText, primary_key=True),
    Column("choice", AnyText, nullable=False),
    Column("code", AnyText, nullable=False),
    Column("justification", AnyText, nullable=False),
    Column("saved", UtcTime, nullable=False),
    Column("page", AnyText, nullable=False),
    Column("edit", BigInteger, nullable=False),
)
PENDING = Table(
    "pending_decisions",
    METADATA,
    *_place(),
    Column("token", DIGEST, nullable=False, unique=True),
    Column("reviewer", AnyText, nullable=False),
    Column("submitted", UtcTime, nullable=False),
    Column("body", AnyText, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("problem", AnyText, nullable=False),
    Column("due", UtcTime, nullable=False),
)
SESSIONS = Table(
    "review_sessions",
    METADATA,
    Column("key", DIGEST, primary_key=True),
    Column("run_id", Integer, ForeignKey("runs.id"), nullable=False),
    Column("reviewer", AnyText, nullable=False),
    Column("expires", UtcTime, nullable=False),
)
