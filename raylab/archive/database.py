"""The database under an archive: where it is, its transactions, and its failures told as errors.

A location is a file, which SQLite keeps, or the URL of a PostgreSQL database. Every transaction is
tried again while the database is locked, restarting or not reached, up to a given time, so all work
done in one must bear repetition: the connection may be lost after the commit and before its
acknowledgement.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from raylab.errors import ArchiveError

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
LOCK_SECONDS = 5.0
"""How long one attempt waits for another writer."""
STATEMENT_SECONDS = 300
"""How long PostgreSQL may take for one statement."""
IDLE_SECONDS = 30
"""How long PostgreSQL keeps the locks of a writer that hangs."""
POSTGRES_PARAMETERS = {
    "application_name": "raylab",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    # A server that vanished without a word is given up after half a minute.
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
POSTGRES_SETTINGS = (
    f"SET statement_timeout = '{STATEMENT_SECONDS}s'",
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'",
)
SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
OTHER_FILE = "give archive= a file in a directory that you may write"
LOCKED = "is locked by another process: free it, and go on with resume=true"
OTHER_REASON = (
    "refuses this: check the rights of its user, and that nothing but raylab changes its tables"
)
SQLITE_DAMAGED = 11
SQLITE_REASONS = {
    # Primary result codes of SQLite.
    5: LOCKED,
    6: LOCKED,
    8: f"cannot be written: {OTHER_FILE}",
    10: "cannot be read or written: check the disk",
    SQLITE_DAMAGED: "is damaged: restore a copy, or rescue the rest by .recover of sqlite3",
    13: "is on a full disk: make room, and go on with resume=true",
    14: f"cannot be opened: {OTHER_FILE}",
    26: "is no SQLite database: choose another file",
}
LOCK_TIMEOUT = "55P03"
SQLITE_TRANSIENT = {5, 6, 15}
POSTGRES_TRANSIENT = {
    # Classes 08, connection, and 40, rollback, and codes of a server that is busy or restarting.
    "08",
    "40",
    "25P03",
    "53300",
    LOCK_TIMEOUT,
    "57P01",
    "57P02",
    "57P03",
}
POSTGRES_CONTENT = {"22", "XX"}
"""Classes of what is wrong with values, and with the files of the database."""

LOGGER = logging.getLogger(__name__)

T = TypeVar("T")


class ContentError(ArchiveError):
    """Something in the database cannot be read, while the database itself answers."""


class Database:
    """Transactions on a database; any thread may use them.

    Attributes:
        place: The file or URL, fit to be shown.
        file: The file of an SQLite database; None on PostgreSQL.
    """

    def __init__(self, location: str | Path, patience: float) -> None:
        """Reads the location; nothing is opened.

        Args:
            location: Path of a file, or URL; `~` is the home directory.
            patience: Seconds for which a transaction is tried again at most.

        Raises:
            ArchiveError: The location is none, or carries a password.
        """
        self._url = _url(str(location))
        on_disk = self._url.get_backend_name() == "sqlite"
        self.file = Path(self._url.database or "") if on_disk else None
        self.place = str(self.file or self._url.set(drivername="postgresql"))
        self.patience = patience
        lock_seconds = min(LOCK_SECONDS, patience)
        self._engine = (_sqlite_engine if on_disk else _postgres_engine)(self._url, lock_seconds)
        self._was_reached = False
        self._closed = False

    def __repr__(self) -> str:
        """The place."""
        return f"Database({self.place!r})"

    def close(self) -> None:
        """Closes all connections; again does nothing."""
        self._closed = True
        self._engine.dispose()

    def read(self, work: Callable[[Connection], T], patience: float | None = None) -> T:
        """The result of work that only reads, on one state of the database.

        Args:
            work: What to do; it may be done more than once.
            patience: Seconds to try for, instead of the database's own.

        Raises:
            ArchiveError: The database fails, does not answer in time, or has something in it that
                makes the work raise a `ValueError`.
        """
        return self._persist(work, {"begin": "BEGIN"} | self._reading, patience)

    def write(self, work: Callable[[Connection], T], patience: float | None = None) -> T:
        """The result of work done whole or not at all, and durable when this returns.

        Args:
            work: What to do; it may be done more than once, even after it has taken effect.
            patience: Seconds to try for, instead of the database's own.

        Raises:
            ArchiveError: The database fails, or does not answer in time.
        """
        return self._persist(work, {"begin": "BEGIN IMMEDIATE"}, patience)

    def insert_new(self, table: Table) -> Any:
        """An insertion that leaves rows alone whose key is there already."""
        return self._insert(table).on_conflict_do_nothing()

    def upsert(
        self, table: Table, changed: Mapping[str, Any], where: ColumnElement[bool] | None = None
    ) -> Any:
        """An insertion that changes a row whose key is there already, where a condition holds."""
        return self._insert(table).on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=dict(changed), where=where
        )

    def write_ahead(self) -> bool:
        """Whether SQLite now keeps a write-ahead log, with which readers and writer do not wait.

        Raises:
            ArchiveError: The file cannot be written.
        """

        def work(connection: Connection) -> bool:
            return connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar() == "wal"

        return self._persist(work, {"begin": ""}, None)

    def _insert(self, table: Table) -> Any:
        return (sqlite.insert if self.file else postgresql.insert)(table)

    @property
    def _reading(self) -> dict[str, str]:
        return {} if self.file else {"isolation_level": "REPEATABLE READ"}

    def _persist(
        self, work: Callable[[Connection], T], options: dict[str, Any], patience: float | None
    ) -> T:
        limit = self.patience if patience is None else patience
        deadline = time.monotonic() + limit
        pause = FIRST_PAUSE_SECONDS
        while True:
            if self._closed:
                raise ArchiveError(f"archive {self.place} is closed")
            try:
                return self._once(work, options)
            except OverflowError as error:
                raise ArchiveError(
                    f"archive {self.place} holds whole numbers of 64 bits at most ({error}): give "
                    "smaller ones, such as seeds"
                ) from error
            except ValueError as error:
                raise self._unreadable(str(error)) from error
            except DBAPIError as error:
                left = deadline - time.monotonic()
                if not self._transient(error):
                    raise self._failure(error) from error
                if left <= 0:
                    raise self._failure(error, f" for {limit:g} s") from error
                if pause == FIRST_PAUSE_SECONDS:
                    reason = _first_line(error)
                    LOGGER.warning("archive %s: %s; trying again", self.place, reason)
            time.sleep(min(pause * random.uniform(0.5, 1.0), left))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _once(self, work: Callable[[Connection], T], options: dict[str, Any]) -> T:
        with self._engine.connect() as connection:
            self._was_reached = True
            with connection.execution_options(**options).begin():
                return work(connection)

    def _transient(self, error: DBAPIError) -> bool:
        if self.file:
            return _sqlite_code(error) in SQLITE_TRANSIENT
        state = getattr(error.orig, "sqlstate", None)
        if state:
            return _is_transient(state)
        if not isinstance(error, OperationalError):
            return error.connection_invalidated
        # Failing to connect has no code; a server that once let us in will do so again.
        return error.connection_invalidated or self._was_reached or not _refused(error)

    def _failure(self, error: DBAPIError, duration: str = "") -> ArchiveError:
        reason = _first_line(error)
        return (
            self._sqlite_failure(_sqlite_code(error), reason, duration)
            if self.file
            else self._postgres_failure(getattr(error.orig, "sqlstate", None), reason, duration)
        )

    def _sqlite_failure(self, code: int, reason: str, duration: str) -> ArchiveError:
        if not code and "decode" in reason:
            return self._unreadable(reason)
        what, _, way_out = SQLITE_REASONS.get(code, OTHER_REASON).partition(": ")
        kind = ContentError if code == SQLITE_DAMAGED else ArchiveError
        return kind(f"archive {self.place} {what}{duration} ({reason}): {way_out}")

    def _postgres_failure(self, state: str | None, reason: str, duration: str) -> ArchiveError:
        if state is None or (state != LOCK_TIMEOUT and _is_transient(state)):
            return ArchiveError(
                f"archive {self.place} cannot be reached{duration} ({reason}): check that the "
                "server runs and lets you in, with the password in PGPASSWORD or ~/.pgpass; or "
                "give archive= a file"
            )
        if state[:2] in POSTGRES_CONTENT:
            return self._unreadable(reason)
        told = LOCKED if state == LOCK_TIMEOUT else OTHER_REASON
        what, _, way_out = told.partition(": ")
        return ArchiveError(f"archive {self.place} {what}{duration} ({reason}): {way_out}")

    def _unreadable(self, reason: str) -> ContentError:
        return ContentError(
            f"archive {self.place} has a record that was altered so that it cannot be read "
            f"({reason}): have it verified, and restore a copy"
        )


def _first_line(error: DBAPIError) -> str:
    """What the database says, without the statement and its values."""
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__


def _url(location: str) -> URL:
    if "://" not in location:
        return _file_url(location)
    try:
        url = make_url(location)
    except (ArgumentError, ValueError):
        # A URL that cannot be read may hold a password anywhere, also in the error's own text.
        scheme = location.partition("://")[0]
        raise ArchiveError(
            f"the archive's URL {scheme}://... cannot be read: it has the form "
            "postgresql://user@host:5432/database"
        ) from None
    if url.drivername == "sqlite":
        return _file_url(url.database or "")
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise ArchiveError(
            f"the archive's URL {url.drivername}://... is of no database that holds archives: give "
            "a file, or a URL postgresql://user@host:5432/database"
        )
    if url.password or any(name.lower() in SECRETS for name in url.query):
        raise ArchiveError(
            f"the archive's URL {url.drivername}://... carries a password, which would be "
            "recorded: leave it out and set PGPASSWORD, or write it into ~/.pgpass"
        )
    # An empty password would keep PGPASSWORD from being looked at.
    return URL.create(
        "postgresql+psycopg", url.username, None, url.host, url.port, url.database, url.query
    )


def _file_url(location: str) -> URL:
    if not location or location == ":memory:" or "\0" in location:
        raise ArchiveError(f"an archive needs a file, not {location!r}: {OTHER_FILE}")
    return URL.create("sqlite", database=str(Path(location).expanduser().absolute()))


def _sqlite_engine(url: URL, lock_seconds: float) -> Engine:
    engine = create_engine(
        url,
        hide_parameters=True,
        max_overflow=-1,
        connect_args={"timeout": lock_seconds, "isolation_level": None},
    )

    def connected(connection: Any, record: object) -> None:
        for pragma in ("foreign_keys = ON", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}")

    def begun(connection: Connection) -> None:
        if begin := connection.get_execution_options()["begin"]:
            connection.exec_driver_sql(begin)

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    return engine


def _postgres_engine(url: URL, lock_seconds: float) -> Engine:
    given = {name: text for name, text in POSTGRES_PARAMETERS.items() if name not in url.query}
    engine = create_engine(
        url,
        hide_parameters=True,
        max_overflow=-1,
        pool_pre_ping=True,
        connect_args=given,
    )

    def connected(connection: Any, record: object) -> None:
        with connection.cursor() as cursor:
            for setting in (
                *POSTGRES_SETTINGS,
                f"SET lock_timeout = '{lock_seconds * 1000:.0f}ms'",
            ):
                cursor.execute(setting)
        connection.commit()

    event.listen(engine, "connect", connected)
    return engine


def _sqlite_code(error: DBAPIError) -> int:
    """The primary result code, 0 if there is none."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF


def _is_transient(state: str) -> bool:
    return state in POSTGRES_TRANSIENT or state[:2] in POSTGRES_TRANSIENT


def _refused(error: DBAPIError) -> bool:
    """Whether a server answered, and not that it is starting, stopping or full."""
    text = str(error.orig)
    answered = "FATAL" in text or "no password supplied" in text
    return answered and not re.search("the database system is|too many", text)
