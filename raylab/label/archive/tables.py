"""The tables of an archive, whose columns follow from the records, and the checksums of rows."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, fields, replace
from datetime import UTC, datetime
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    bindparam,
    insert,
    select,
    text,
    update,
)

from raylab.core.errors import ArchiveError
from raylab.label.archive.records import (
    CallRow,
    CaseHead,
    CaseRow,
    RunCost,
    RunRow,
)
from raylab.label.judgement import Decision
from raylab.llm.chat import FREE, Cost, Reply
from raylab.llm.config import Lane

AnyRow = Row[*tuple[Any, ...]]
R = TypeVar("R")

VERSION = 1
"""Version of the tables; an archive of another one is refused."""
SENT, ANSWERED = "sent", "answered"
"""The states of a call: in flight, so that no equal one may be sent, and archived."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_IN_ORDER = json.JSONEncoder(separators=(",", ":"))
UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
ESCAPED = re.compile("\x1a([0-9a-f]{4})")
LARGE = frozenset({"body", "config", "description", "parameters", "text", "versions"})
"""Columns that come last, because SQLite then reads the others faster."""


class ForeignContentError(ValueError):
    """Content of a row that raylab did not write there."""


class AnyText(TypeDecorator[str]):
    """Any Python string, including NUL and lone surrogates, which the databases refuse.

    These and SUBSTITUTE itself are stored as that control character and the four hexadecimal digits
    of the character; every other text is stored unchanged.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns the text in its stored form."""
        return value and UNSTORABLE.sub(lambda match: f"\x1a{ord(match[0]):04x}", value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns the original text."""
        return value and ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)


class Json(TypeDecorator[Any]):
    """JSON values as text, objects in their order, which may carry meaning."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Returns the values as text."""
        return None if value is None else as_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Returns the values; raises ForeignContentError if the text is no JSON."""
        try:
            return None if value is None else json.loads(value)
        except (TypeError, ValueError) as error:
            raise ForeignContentError(f"{error}, in what should be JSON") from error


class UtcTime(TypeDecorator[datetime]):
    """A time with its zone, as ISO 8601 text in UTC, which sorts like the times."""

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        """Returns the time as text."""
        return None if value is None else utc_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        """Returns the time; raises ForeignContentError if the text is no time."""
        try:
            return None if value is None else datetime.fromisoformat(value)
        except (TypeError, ValueError) as error:
            raise ForeignContentError(str(error)) from error


def utc_text(time: datetime) -> str:
    """Returns a time with a zone as ISO 8601 in UTC with microseconds, a text of fixed length."""
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone")
    return time.astimezone(UTC).isoformat(timespec="microseconds")


# The checksums of rows.


def as_json(value: Any) -> str:
    """Returns JSON with the keys in their order, no spaces and only ASCII."""
    return _IN_ORDER.encode(value)


def digest(text: str) -> str:
    """Returns the SHA-256 of a text in UTF-8, in hexadecimal; lone surrogates are allowed."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def seal(record: object) -> dict[str, Any]:
    """Returns the columns of a record with their checksum."""
    columns = dict(vars(record))
    if isinstance(record, CallRow):
        del columns["reply"]
        columns |= {name: getattr(record.reply, name) for name in REPLY}
        columns["lane"] = record.reply.lane.value
    return {**columns, "sha256": _checksum(columns)}


def unseal(kind: type[R], row: AnyRow) -> R:
    """Returns the record of a row that `seal` made; refuses content without its checksum."""
    columns = {field.name: getattr(row, field.name) for field in _fields(kind)}
    if _checksum(columns) != row.sha256:
        name = columns.get("case") or columns.get("key")
        raise ForeignContentError(f"{kind.__name__} {name!r} does not have its SHA-256")
    if kind is CallRow:
        reply: dict[str, Any] = {name: columns.pop(name) for name in REPLY}
        reply |= {"lane": Lane(reply["lane"]), "cached": True}
        columns["reply"] = Reply(**reply)
    return kind(**columns)


def run_row(row: AnyRow) -> RunRow:
    """Returns the record of a run."""
    return RunRow(**{field.name: getattr(row, field.name) for field in _fields(RunRow)})


def cost_of(run: AnyRow) -> RunCost:
    """Returns the cost in the row of a run."""
    return RunCost(**{name: Cost(**cost) for name, cost in run.cost.items()})


def lock_number(run: AnyRow) -> int:
    """Returns the number of the lock that the owner of a run holds: 60 bits, not negative."""
    return int(digest(f"{run.name}\n{run.uid}\n{utc_text(run.started)}")[:15], 16)


REPLY = tuple(field.name for field in fields(Reply) if field.name != "cached")
"""The columns of an archived reply, which counts as cached when it is read."""


@cache
def _fields(kind: type[Any]) -> tuple[Field[Any], ...]:
    """Returns the fields that have columns; a call has those of its reply."""
    if kind is not CallRow:
        return fields(kind)
    every = (*fields(Reply), *fields(CallRow))
    return tuple(field for field in every if field.name not in ("cached", "reply"))


def _checksum(columns: Mapping[str, Any]) -> str:
    content = {name: _hashable(name, columns[name]) for name in columns if name != "sha256"}
    return digest(_CANONICAL.encode(content))


def _hashable(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return utc_text(value)
    if name in ("cost", "seconds"):
        # A database returns integers as real numbers.
        return None if value is None else float(value)
    return value


# The tables.

_TYPES: dict[Any, Any] = {
    str: AnyText,
    Lane: AnyText,
    int: BigInteger,
    float: Double,
    datetime: UtcTime,
    dict: Json,
    Mapping: Json,
}
METADATA = MetaData()


def _columns(kind: type[Any], *keys: str, nullable: bool = False) -> Iterator[Column[Any]]:
    """Yields a column for each field of a dataclass; `keys` are columns of the primary key."""
    for field in sorted(_fields(kind), key=lambda field: field.name in LARGE):
        optional = NoneType in get_args(field.type)
        kind_of_value: Any = get_args(field.type)[0] if optional else field.type
        column = _TYPES[get_origin(kind_of_value) or kind_of_value]
        is_key = field.name in keys
        null = not is_key and (nullable or optional)
        yield Column(field.name, column, primary_key=is_key, nullable=null, autoincrement=False)


def _run_id(primary_key: bool = False) -> Column[int]:
    return Column("run_id", ForeignKey("runs.id"), primary_key=primary_key, nullable=False)


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
    *_columns(RunRow),
    Column("owner", String(32)),
    Column("holder", AnyText, nullable=False, default=""),
    Column("cost", Json, nullable=False, default=asdict(RunCost(FREE, FREE))),
    UniqueConstraint("name"),
)
CALLS = Table(
    "calls",
    METADATA,
    Column("state", String(8), nullable=False),
    _run_id(),
    Column("owner", String(32), nullable=False),
    Column("claim", String(64), nullable=False),
    Column("claimant", AnyText, nullable=False),
    Column("held", Json),
    Column("batch", String(32)),
    Column("sha256", String(64)),
    # These are null until the call is answered.
    *_columns(CallRow, "key", nullable=True),
    Index("calls_by_subject", "description_hash"),
    Index(
        "calls_in_flight",
        "run_id",
        sqlite_where=text("state = 'sent'"),
        postgresql_where=text("state = 'sent'"),
    ),
)
BATCHES = Table(
    "batches",
    METADATA,
    Column("id", String(32), primary_key=True),
    _run_id(),
    Column("claimant", AnyText),
    Column("base_url", AnyText, nullable=False),
    Column("created", UtcTime, nullable=False),
    Column("calls", Json, nullable=False),
    Column("price", Json),
    Column("file", AnyText),
    Column("server_id", AnyText),
)
CASES = Table(
    "cases",
    METADATA,
    _run_id(primary_key=True),
    *_columns(CaseRow, "sequence"),
    UniqueConstraint("run_id", "case", name="cases_by_case"),
    Index("cases_by_status", "run_id", "status", "sequence"),
)
DECISIONS = Table(
    "decisions",
    METADATA,
    _run_id(primary_key=True),
    *_columns(Decision, "sequence"),
    Index("decisions_by_case", "run_id", "case", "sequence"),
)
PROMPTS = Table(
    "prompts",
    METADATA,
    Column("hash", String(64), primary_key=True),
    *(Column(name, AnyText, nullable=False) for name in ("name", "version", "text")),
)
LEASES = Table(
    "leases",
    METADATA,
    _run_id(primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("reviewer", AnyText, nullable=False),
    Column("expires", UtcTime, nullable=False),
)


# Queries that several modules share.

LISTED_RUNS = 10

# Statements are built once, because that takes longer than to execute them.
_RUN = select(RUNS).where(RUNS.c.name == bindparam("name"))
_LOCKED_RUN = _RUN.with_for_update()
_COUNT_RECORDS = update(RUNS).where(RUNS.c.id == bindparam("run"))
_HEADS = select(*(CASES.c[name] for name in CaseHead._fields)).where(
    CASES.c.run_id == bindparam("run"), CASES.c.case.in_(bindparam("cases", expanding=True))
)


def find_run(connection: Connection, place: str, name: str, lock: bool = False) -> AnyRow:
    """Returns the row of a run of the archive at `place`, which names it in the error.

    `lock` locks the row until the transaction ends, so that no other record takes the next place.
    """
    row = connection.execute(_LOCKED_RUN if lock else _RUN, {"name": name}).first()
    if row is None:
        latest = select(RUNS.c.name).order_by(RUNS.c.started.desc()).limit(LISTED_RUNS)
        names = ", ".join(connection.scalars(latest)) or "none"
        raise ArchiveError(f"archive {place} has no run {name}; its latest runs: {names}")
    return row


def find_heads(connection: Connection, run: AnyRow, cases: Iterable[str]) -> dict[str, CaseHead]:
    """Returns those cases that a run has, in short, by their ids."""
    rows = connection.execute(_HEADS, {"run": run.id, "cases": list(cases)})
    return {row.case: CaseHead(*row) for row in rows}


def latest_status(kind: str, *where: ColumnElement[bool]) -> Any:
    """Returns the status in the latest decision of a kind on a case; null without one."""
    on_it = (DECISIONS.c.run_id == CASES.c.run_id) & (DECISIONS.c.case == CASES.c.case)
    statuses = select(DECISIONS.c.status).where(on_it, DECISIONS.c.kind == kind, *where)
    return statuses.order_by(DECISIONS.c.sequence.desc()).limit(1).scalar_subquery()


def append(
    connection: Connection, run: AnyRow, records: Sequence[CaseRow | Decision], now: datetime
) -> None:
    """Appends records of a kind to those of a locked run, in order."""
    if not records:
        return
    rows = [
        {**seal(replace(record, sequence=sequence, created=now)), "run_id": run.id}
        for sequence, record in enumerate(records, run.records + 1)
    ]
    table = CASES if isinstance(records[0], CaseRow) else DECISIONS
    connection.execute(insert(table), rows)
    connection.execute(_COUNT_RECORDS, {"run": run.id, "records": run.records + len(records)})
