"""The databases that can hold an archive: one class each, with all differences between them.

To add a database, add a class here and list it in `DIALECTS`; no other module depends on the kind
of database. Its columns of type `DateTime(timezone=True)` must keep the time zone.
"""

import contextlib
import fcntl
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from sqlalchemy import Column, Connection, Engine, Table, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from raylab.errors import ArchiveError
from raylab.files import make_directory
from raylab.urls import secret_in

OTHER_FILE = "give archive= a file in a directory that you may write"
LOCKED = "is locked by another process: free it, and go on with resume=true"
OTHER_REASON = "refuses this: check the rights of its user, and that only raylab changes its tables"

LOOKS, LOOK_SECONDS = 5, 0.02
"""Attempts to take a file's lock, and the time between them."""

Options = Mapping[str, Any]


class ContentError(ArchiveError):
    """Unreadable content in a database that itself answers."""


class Lock(Protocol):
    """A lock of this process."""

    def release(self) -> None:
        """Lets others take it."""
        ...


class DatabaseDialect(ABC):
    """A kind of database and its location; nothing is opened yet.

    Attributes:
        schemes: Names of the database in URLs.
        form: Form of its location, for messages.
        on_server: True if a server keeps it, which may start slowly and hold other tables.
        reading: Execution options of a transaction that reads one snapshot.
        writing: Execution options of a transaction that writes.
        preparing: Execution options of `prepare`.
        insert: Returns an insert statement that supports conflict clauses.
        place: The file or URL, without secrets.
    """

    schemes: ClassVar[frozenset[str]]
    form: ClassVar[str]
    on_server: ClassVar[bool]
    reading: ClassVar[Options]
    writing: ClassVar[Options]
    preparing: ClassVar[Options]
    insert: ClassVar[Callable[..., Any]]
    place: str

    @abstractmethod
    def __init__(self, url: URL) -> None:
        """Reads the location; nothing is opened.

        Raises:
            ArchiveError: The location is invalid for this database.
        """

    @abstractmethod
    def create_engine(self, lock_seconds: float) -> Engine:
        """Returns SQLAlchemy's engine, whose connections are durable and wait for other writers.

        Args:
            lock_seconds: Longest wait for another writer.
        """

    @abstractmethod
    def is_transient(self, error: DBAPIError, was_reached: bool) -> bool:
        """Returns True if a failed transaction may succeed when it is retried.

        Args:
            error: The failure.
            was_reached: True if a connection was ever made.
        """

    @abstractmethod
    def failure(self, error: DBAPIError, duration: str) -> ArchiveError:
        """Returns the error that reports a failure.

        Args:
            error: The failure.
            duration: Duration of the retries, such as ` for 60 s`; empty after one attempt.
        """

    def insert_new(self, table: Table, *returned: Column[Any]) -> Any:
        """Returns an insert statement that leaves existing rows unchanged.

        Args:
            table: Table that it inserts into.
            returned: Columns that it returns of the new rows.
        """
        return _insert_new(self.insert, table, *returned)

    def upsert(self, table: Table) -> Any:
        """Returns an insert statement that replaces a row with the same key."""
        statement, keys = self.insert(table), list(table.primary_key.columns)
        others = {
            name: new
            for name, new in statement.excluded.items()
            if name not in table.primary_key.columns
        }
        return statement.on_conflict_do_update(index_elements=keys, set_=others)

    @abstractmethod
    def prepare_place(self, create: bool) -> None:
        """Prepares the location for a new database.

        Raises:
            ArchiveError: No database exists there and `create` is false, or none can be made.
        """

    @abstractmethod
    def prepare(self, connection: Connection) -> None:
        """Checks that the database can hold an archive, and applies its permanent settings.

        Raises:
            ArchiveError: The database cannot hold an archive.
        """

    @abstractmethod
    def lock_schema(self, connection: Connection) -> None:
        """Locks the schema against other processes until the transaction ends."""

    @abstractmethod
    def try_lock(self, engine: Engine, number: int) -> Lock | None:
        """Takes a lock that the system releases when this process ends; None if it is taken.

        Args:
            engine: Engine of the database.
            number: Number of the lock, of at most 60 bits.

        Raises:
            ArchiveError: The lock cannot be made.
        """

    @abstractmethod
    def is_locked(self, connection: Connection, number: int) -> bool:
        """Returns whether a process that lives has a lock."""

    def unreadable(self, reason: str) -> ContentError:
        """Returns the error that reports an unreadable record."""
        return ContentError(
            f"archive {self.place} holds a record that raylab did not write so ({reason}): restore "
            "the archive from a copy"
        )

    def told(self, what: str, reason: str, duration: str) -> str:
        """Returns the text of a failure; `what` is the problem and, after a colon, the way out."""
        wrong, _, way_out = what.partition(": ")
        return f"archive {self.place} {wrong}{duration} ({reason}): {way_out}"


class FileLock:
    """A lock by flock on a file, which is removed with it."""

    def __init__(self, path: str, descriptor: int) -> None:
        """Keeps an open file that is locked."""
        self._path, self._descriptor = path, descriptor

    @classmethod
    def take(cls, path: str) -> Self | None:
        """Makes and locks a file; returns None if another process has locked it.

        Raises:
            OSError: The file cannot be made or locked.
        """
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return cls(path, descriptor)
            # The former owner has removed the file meanwhile.
            os.close(descriptor)

    @staticmethod
    def is_taken(path: str) -> bool:
        """Returns whether a process has locked a file."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Removes the file and lets others lock it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._descriptor)


class ConnectionLock:
    """An advisory lock, held by a connection to the server."""

    def __init__(self, connection: Connection) -> None:
        """Keeps the connection."""
        self._connection = connection

    def release(self) -> None:
        """Lets others take it; a connection that is lost has lost it."""
        with contextlib.suppress(DBAPIError):
            self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
        self._connection.close()


class SqliteDialect(DatabaseDialect):
    """An SQLite file with a write-ahead log."""

    schemes = frozenset({"sqlite"})
    form = "a file"
    on_server = False
    reading: ClassVar[Options] = {"begin": "BEGIN"}
    writing: ClassVar[Options] = {"begin": "BEGIN IMMEDIATE"}
    # The journal mode can only be set outside of a transaction.
    preparing: ClassVar[Options] = {"begin": ""}
    insert = staticmethod(sqlite.insert)

    DAMAGED = 11
    REASONS: ClassVar[Mapping[int, str]] = {
        # Primary result codes of SQLite.
        5: LOCKED,
        6: LOCKED,
        8: f"cannot be written: {OTHER_FILE}",
        10: "cannot be read or written: check the disk",
        DAMAGED: "is damaged: restore a copy, or rescue the rest by .recover of sqlite3",
        13: "is on a full disk: make room, and go on with resume=true",
        14: f"cannot be opened: {OTHER_FILE}",
        26: "is no SQLite database: choose another file",
    }
    TRANSIENT = frozenset({5, 6, 15})

    def __init__(self, url: URL) -> None:
        """Takes the path of a file; `~` is the home directory."""
        location = url.database or ""
        if not location or location == ":memory:" or "\0" in location:
            raise ArchiveError(f"an archive needs a file, not {location!r}: {OTHER_FILE}")
        self._file = Path(location).expanduser().absolute()
        self.place = str(self._file)

    def create_engine(self, lock_seconds: float) -> Engine:
        """See `DatabaseDialect`."""
        engine = create_engine(
            URL.create("sqlite", database=self.place),
            hide_parameters=True,
            max_overflow=-1,
            connect_args={"timeout": lock_seconds, "isolation_level": None},
        )

        def set_up(connection: Any, record: object) -> None:
            for pragma in ("foreign_keys = ON", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")

        def begin(connection: Connection) -> None:
            if statement := connection.get_execution_options()["begin"]:
                connection.exec_driver_sql(statement)

        event.listen(engine, "connect", set_up)
        event.listen(engine, "begin", begin)
        return engine

    def is_transient(self, error: DBAPIError, was_reached: bool) -> bool:
        """See `DatabaseDialect`."""
        return self._code(error) in self.TRANSIENT

    def failure(self, error: DBAPIError, duration: str) -> ArchiveError:
        """See `DatabaseDialect`."""
        code, reason = self._code(error), first_line(error)
        if not code and "decode" in reason:
            return self.unreadable(reason)
        kind = ContentError if code == self.DAMAGED else ArchiveError
        return kind(self.told(self.REASONS.get(code, OTHER_REASON), reason, duration))

    def prepare_place(self, create: bool) -> None:
        """Makes the directory of a new file; checks that an existing one is a file."""
        file = self._file
        try:
            if file.is_dir():
                raise ArchiveError(f"archive {file} is a directory: name a file in it")
            if not file.exists():
                if not create:
                    raise ArchiveError(
                        f"there is no archive {file}: check the path, or make one first"
                    )
                make_directory(file.parent)
            elif not file.is_file():
                raise ArchiveError(f"archive {file} is no regular file: {OTHER_FILE}")
        except OSError as error:
            raise ArchiveError(f"archive {file} cannot be opened: {error}; {OTHER_FILE}") from error

    def prepare(self, connection: Connection) -> None:
        """Sets the write-ahead log, so that readers and a writer do not block each other."""
        if connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar() != "wal":
            raise ArchiveError(
                f"archive {self.place} lies on a filesystem without a shared write-ahead log: give "
                "archive= a file on a local disk, or a PostgreSQL URL"
            )

    def lock_schema(self, connection: Connection) -> None:
        """Does nothing: only one transaction can write at a time."""

    def try_lock(self, engine: Engine, number: int) -> Lock | None:
        """Takes a file beside the database by flock; see `DatabaseDialect`."""
        try:
            for _ in range(LOOKS):
                if (lock := FileLock.take(self._lock_file(number))) is not None:
                    return lock
                # Another process may only be looking whether it is taken.
                time.sleep(LOOK_SECONDS)
        except OSError as error:
            raise ArchiveError(
                f"{self._lock_file(number)} cannot be locked ({error.strerror}): give archive= a "
                "file on a local disk, or a PostgreSQL URL"
            ) from error
        return None

    def is_locked(self, connection: Connection, number: int) -> bool:
        """See `DatabaseDialect`."""
        return FileLock.is_taken(self._lock_file(number))

    def _lock_file(self, number: int) -> str:
        return f"{self.place}-{number:015x}.lock"

    @staticmethod
    def _code(error: DBAPIError) -> int:
        """Returns the primary result code; 0 if there is none."""
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF


class PostgresDialect(DatabaseDialect):
    """A database on a PostgreSQL server."""

    schemes = frozenset({"postgresql", "postgres", "postgresql+psycopg"})
    form = "a URL postgresql://user@host:5432/database"
    on_server = True
    reading: ClassVar[Options] = {"isolation_level": "REPEATABLE READ"}
    writing: ClassVar[Options] = {}
    preparing = reading
    insert = staticmethod(postgresql.insert)

    PARAMETERS: ClassVar[Mapping[str, str]] = {
        "application_name": "raylab",
        "client_encoding": "utf8",
        "connect_timeout": "10",
        # A server that stops responding is given up after half a minute.
        "keepalives_idle": "15",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "30000",
    }
    SETTINGS = (
        "SET statement_timeout = '300s'",
        # A hanging writer loses its locks after this time.
        "SET idle_in_transaction_session_timeout = '30s'",
        # A database may let a commit return before it is on disk; stronger settings stay.
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'",
    )
    HAS_LOCK = (
        "SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE datname = current_database() AND locktype = 'advisory' AND granted "
        "AND objsubid = 1 AND classid::bigint = :high AND objid::bigint = :low"
    )
    LOCK_TIMEOUT = "55P03"
    TRANSIENT = frozenset({"25P03", "53300", LOCK_TIMEOUT, "57P01", "57P02", "57P03"})
    """Codes of a server that is busy or restarting."""
    TRANSIENT_CLASSES = frozenset({"08", "40"})
    """Connection and rollback."""
    CONTENT_CLASSES = frozenset({"22", "XX"})
    """Wrong values and damaged database files."""
    SCHEMA_LOCK = 0x7261796C6162
    """Number of the advisory lock under which tables are made."""

    def __init__(self, url: URL) -> None:
        """Takes a URL that holds no secret; the driver reads PGPASSWORD or ~/.pgpass."""
        # With an empty password the driver would ignore PGPASSWORD.
        self._url = URL.create(
            "postgresql+psycopg", url.username, None, url.host, url.port, url.database, url.query
        )
        self.place = str(self._url.set(drivername="postgresql"))

    def create_engine(self, lock_seconds: float) -> Engine:
        """See `DatabaseDialect`."""
        given = {key: of for key, of in self.PARAMETERS.items() if key not in self._url.query}
        engine = create_engine(
            self._url,
            hide_parameters=True,
            max_overflow=-1,
            pool_pre_ping=True,
            connect_args=given,
        )
        settings = (*self.SETTINGS, f"SET lock_timeout = '{lock_seconds * 1000:.0f}ms'")

        def set_up(connection: Any, record: object) -> None:
            with connection.cursor() as cursor:
                for setting in settings:
                    cursor.execute(setting)
            connection.commit()

        event.listen(engine, "connect", set_up)
        return engine

    def is_transient(self, error: DBAPIError, was_reached: bool) -> bool:
        """See `DatabaseDialect`."""
        if state := self._state(error):
            return self._passes(state)
        if not isinstance(error, OperationalError):
            return error.connection_invalidated
        # A failed connection has no code; a server that accepted us before will do so again.
        return error.connection_invalidated or was_reached or not self._refused(error)

    def failure(self, error: DBAPIError, duration: str) -> ArchiveError:
        """See `DatabaseDialect`."""
        state, reason = self._state(error), first_line(error)
        if state is None or (state != self.LOCK_TIMEOUT and self._passes(state)):
            return ArchiveError(
                f"archive {self.place} cannot be reached{duration} ({reason}): check that the "
                "server runs and lets you in, with the password in PGPASSWORD or ~/.pgpass; or "
                "give archive= a file"
            )
        if state[:2] in self.CONTENT_CLASSES:
            return self.unreadable(reason)
        what = LOCKED if state == self.LOCK_TIMEOUT else OTHER_REASON
        return ArchiveError(self.told(what, reason, duration))

    def prepare_place(self, create: bool) -> None:
        """Does nothing: databases are created on the server."""

    def prepare(self, connection: Connection) -> None:
        """Checks that the encoding of the database can store every text."""
        encoding = connection.scalar(text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise ArchiveError(
                f"archive {self.place} has encoding {encoding}, which does not hold every text: "
                "make its database with ENCODING 'UTF8'"
            )

    def lock_schema(self, connection: Connection) -> None:
        """See `DatabaseDialect`."""
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": self.SCHEMA_LOCK})

    def try_lock(self, engine: Engine, number: int) -> Lock | None:
        """Takes an advisory lock on a connection of its own; see `DatabaseDialect`."""
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        taken = connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": number})
        if taken:
            return ConnectionLock(connection)
        connection.close()
        return None

    def is_locked(self, connection: Connection, number: int) -> bool:
        """See `DatabaseDialect`."""
        halves = {"high": number >> 32, "low": number & 0xFFFFFFFF}
        return connection.scalar(text(self.HAS_LOCK), halves) is not None

    @staticmethod
    def _state(error: DBAPIError) -> str | None:
        return getattr(error.orig, "sqlstate", None)

    def _passes(self, state: str) -> bool:
        return state in self.TRANSIENT or state[:2] in self.TRANSIENT_CLASSES

    @staticmethod
    def _refused(error: DBAPIError) -> bool:
        """Returns True if a server refused us, and is not just starting, stopping or full."""
        answer = str(error.orig)
        answered = "FATAL" in answer or "no password supplied" in answer
        return answered and not re.search("the database system is|too many", answer)


DIALECTS: tuple[type[DatabaseDialect], ...] = (SqliteDialect, PostgresDialect)


def dialect_of(location: str) -> DatabaseDialect:
    """Returns the database at a location: the path of a file, or a URL.

    Raises:
        ArchiveError: The location is invalid or carries a password.
    """
    if "://" in location and (secret := secret_in(location)):
        scheme = location.partition("://")[0]
        raise ArchiveError(
            f"the archive's URL {scheme}://... carries {secret}, which would be recorded: leave "
            "it out and set PGPASSWORD, or write it into ~/.pgpass"
        )
    url = _parse(location)
    for kind in DIALECTS:
        if url.drivername in kind.schemes:
            return kind(url)
    raise ArchiveError(
        f"the archive's URL {url.drivername}://... is of no database that holds archives: "
        f"give {_forms()}"
    )


@cache
def _insert_new(insert: Callable[..., Any], table: Table, *returned: Column[Any]) -> Any:
    statement = insert(table).on_conflict_do_nothing()
    return statement.returning(*returned) if returned else statement


def first_line(error: DBAPIError) -> str:
    """Returns the message of the database, without the statement and its values."""
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__


def _parse(location: str) -> URL:
    if "://" not in location:
        return URL.create("sqlite", database=location)
    try:
        return make_url(location)
    except (ArgumentError, ValueError):
        # An invalid URL may hold a password anywhere, and the error's text repeats it.
        scheme = location.partition("://")[0]
        raise ArchiveError(
            f"the archive's URL {scheme}://... cannot be read: give {_forms()}"
        ) from None


def _forms() -> str:
    return ", or ".join(kind.form for kind in DIALECTS)
