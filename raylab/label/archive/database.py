"""The databases that can hold an archive: transactions, retries, locks, and failures as errors.

A transaction is retried while the database is locked, restarting or not reachable. All work in a
transaction must therefore be repeatable: the connection may be lost after the commit and before its
acknowledgement. `Sqlite` and `Postgres` hold all differences between the databases; to add one, add
its class here.
"""

import contextlib
import fcntl
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, Engine, Executable, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from raylab.core.errors import ArchiveError
from raylab.core.printable import secret_in
from raylab.label.archive.tables import AnyRow, ForeignContentError

PATIENCE_SECONDS = 60.0
"""Longest time for which a transaction is retried."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 2.0
LOCK_SECONDS = 5.0
"""Longest wait of one attempt for another writer."""
LOOKS, LOOK_SECONDS = 5, 0.02
"""Attempts to lock a file, and the time between them."""

LOGGER = logging.getLogger(__name__)

T = TypeVar("T")
Release = Callable[[], object]
"""Frees a lock."""


class Sqlite:
    """An SQLite file with a write-ahead log, beside which the locks of runs are files.

    Attributes:
        place: The file or URL, without secrets.
        options: Arguments of a connection.
        settings: Statements that make a new connection durable; they may name `lock_ms`.
        reading: Statement that begins a transaction that reads one snapshot.
        writing: Statement that begins a transaction that writes.
        schema_lock: Statement that locks the schema until the transaction ends, if it is needed.
        insert: Returns an insert statement that supports conflict clauses.
        way_out: Advice to users when it fails.
    """

    settings: Sequence[str] = ("PRAGMA foreign_keys = ON", "PRAGMA synchronous = FULL")
    reading, writing = "BEGIN", "BEGIN IMMEDIATE"
    schema_lock = ""
    insert = staticmethod(sqlite.insert)
    way_out = (
        "free it if it is locked, make room on a full disk, restore a damaged file from a copy, "
        "and go on with resume=true; or give archive= another file in a directory that you may "
        "write"
    )
    TRANSIENT = frozenset({5, 6, 15})
    """Primary result codes: busy, locked, protocol."""

    def __init__(self, url: URL) -> None:
        """Takes the path of a file; `~` is the home directory."""
        if url.database in (None, "", ":memory:"):
            raise ArchiveError(f"an archive needs a file, not {url.database!r}: give its path")
        self.file = Path(url.database or "").expanduser().absolute()
        self.place = str(self.file)
        self.url = URL.create("sqlite", database=self.place)
        # Without a level the driver begins no transaction by itself, which would lock too late.
        self.options = {"timeout": LOCK_SECONDS, "isolation_level": None}

    def is_transient(self, error: DBAPIError) -> bool:
        """Returns True if a failed transaction may succeed later."""
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in self.TRANSIENT

    def try_lock(self, engine: Engine, number: int) -> Release | None:
        """Takes a lock that the system releases when this process ends; None if it is taken."""
        try:
            for _ in range(LOOKS):
                if (release := _lock_file(self._lock(number))) is not None:
                    return release
                # `is_locked` of another process holds it for a moment.
                time.sleep(LOOK_SECONDS)
        except OSError as error:
            raise ArchiveError(
                f"{self._lock(number)} cannot be locked ({error.strerror}): give archive= a file "
                "on a local disk, or a PostgreSQL URL"
            ) from error
        return None

    def is_locked(self, connection: Connection, number: int) -> bool:
        """Returns True if a live process holds a lock."""
        if not os.path.exists(self._lock(number)):
            return False
        release = _lock_file(self._lock(number))
        if release is not None:
            release()
        return release is None

    def _lock(self, number: int) -> str:
        return f"{self.place}-{number:015x}.lock"


class Postgres:
    """A database on a PostgreSQL server, which may hold other tables; see `Sqlite`."""

    settings = (
        "SET statement_timeout = '300s'",
        "SET lock_timeout = {lock_ms:.0f}",
        # A hanging writer loses its locks after this time.
        "SET idle_in_transaction_session_timeout = '30s'",
    )
    reading, writing = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", ""
    schema_lock = "SELECT pg_advisory_xact_lock(125779767484770)"
    insert = staticmethod(postgresql.insert)
    way_out = (
        "check that the server runs and lets you in, with the password in PGPASSWORD or ~/.pgpass, "
        "and go on with resume=true; or give archive= a file"
    )
    PARAMETERS: ClassVar = {
        "application_name": "raylab",
        "client_encoding": "utf8",
        "connect_timeout": "10",
        # An attempt to reach a server that stops responding ends after half a minute.
        "keepalives_idle": "15",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "30000",
    }
    # The server lists a key of 64 bits in two halves, with the number 1 beside them.
    HAS_LOCK = text(
        "SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE datname = current_database() AND locktype = 'advisory' AND granted "
        "AND objsubid = 1 AND classid::bigint = :high AND objid::bigint = :low"
    )
    TRANSIENT = re.compile("08|40|25P03|53300|55P03|57P0[123]")
    """Codes of lost connections, rollbacks, and a server that is busy or restarting."""

    def __init__(self, url: URL) -> None:
        """Takes a URL that holds no secret; the driver reads PGPASSWORD or ~/.pgpass."""
        # With an empty password the driver would ignore PGPASSWORD.
        self.url = URL.create(
            "postgresql+psycopg", url.username, None, url.host, url.port, url.database, url.query
        )
        self.place = str(self.url.set(drivername="postgresql"))
        self.options = {**self.PARAMETERS, **self.url.query}

    def is_transient(self, error: DBAPIError) -> bool:
        """See `Sqlite`."""
        if state := getattr(error.orig, "sqlstate", None):
            return self.TRANSIENT.match(state) is not None
        if error.connection_invalidated or not isinstance(error, OperationalError):
            return error.connection_invalidated
        # A failed connection has no code. The server may be starting, stopping or full.
        answer = str(error.orig)
        is_refused = re.search("FATAL|no password supplied", answer) is not None
        return not is_refused or re.search("database system is|too many", answer) is not None

    def try_lock(self, engine: Engine, number: int) -> Release | None:
        """Takes an advisory lock on a connection of its own; see `Sqlite`."""
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        taken = connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": number})
        if not taken:
            connection.close()
            return None

        def release() -> None:
            # A connection that is lost has lost the lock.
            with contextlib.suppress(DBAPIError):
                connection.execute(text("SELECT pg_advisory_unlock_all()"))
            connection.close()

        return release

    def is_locked(self, connection: Connection, number: int) -> bool:
        """See `Sqlite`."""
        halves = {"high": number >> 32, "low": number & 0xFFFFFFFF}
        return connection.scalar(self.HAS_LOCK, halves) is not None


class Database:
    """Transactions on a database; any thread may use them, and one thread writes at a time.

    Attributes:
        place: The file or URL, without secrets.
        now: Returns the time in UTC; a simulation replaces it.
    """

    def __init__(self, location: str | Path) -> None:
        """Reads the location, a path or URL; nothing is opened. See `Archive.open`."""
        self.dialect = _dialect_at(str(location))
        self.place = self.dialect.place
        self.now: Callable[[], datetime] = partial(datetime.now, UTC)
        self._engine = _create_engine(self.dialect)
        # SQLite lets writers poll for their turn, which wastes most of the time of many threads.
        self._turn = threading.Lock()

    def close(self) -> None:
        """Closes all connections; a second call does nothing."""
        self._engine.dispose()

    def read(self, work: Callable[[Connection], T], patience: float | None = None) -> T:
        """Returns the result of work that only reads, on one snapshot; it may run more than once.

        Raises:
            ArchiveError: The database fails, does not answer within `patience` seconds (by default
                `PATIENCE_SECONDS`), or has content that raylab did not write.
        """
        return self._persist(work, self.dialect.reading, patience)

    def rows(self, statement: Executable, **values: Any) -> list[AnyRow]:
        """Returns the rows of a query, as `read` does."""
        return self.read(lambda connection: list(connection.execute(statement, values)))

    def write(self, work: Callable[[Connection], T]) -> T:
        """Returns the result of work, which is atomic and durable.

        It may run more than once, even after it has taken effect. Raises as `read`.
        """
        with self._turn:
            return self._persist(work, self.dialect.writing, None)

    def log_ahead(self) -> None:
        """Lets an SQLite file write ahead, so that readers and a writer do not block each other."""
        mode = "PRAGMA journal_mode = WAL"
        # It can only be set outside of a transaction.
        self._persist(lambda connection: connection.exec_driver_sql(mode), "", None)

    def try_lock(self, number: int) -> Release | None:
        """Takes a lock that the system releases when this process ends; None if it is taken."""
        try:
            return self.dialect.try_lock(self._engine, number)
        except DBAPIError as error:
            raise self._failure(error, "") from error

    def _persist(self, work: Callable[[Connection], T], begin: str, patience: float | None) -> T:
        limit = PATIENCE_SECONDS if patience is None else patience
        deadline, pause = time.monotonic() + limit, FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._once(work, begin)
            except ForeignContentError as error:
                raise ArchiveError(
                    f"archive {self.place} holds a record that raylab did not write so ({error}): "
                    "restore the archive from a copy"
                ) from error
            except DBAPIError as error:
                left = deadline - time.monotonic()
                if not self.dialect.is_transient(error):
                    raise self._failure(error, "") from error
                if left <= 0:
                    raise self._failure(error, f" for {limit:g} s") from error
                if pause == FIRST_PAUSE_SECONDS:
                    LOGGER.warning("archive %s: %s; trying again", self.place, _reason(error))
            # At random, so that those who wait for one lock do not come back together.
            time.sleep(min(pause * random.uniform(0.5, 1), left))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _once(self, work: Callable[[Connection], T], begin: str) -> T:
        with self._engine.connect() as connection, connection.begin():
            if begin:
                connection.exec_driver_sql(begin)
            return work(connection)

    def _failure(self, error: DBAPIError, duration: str) -> ArchiveError:
        return ArchiveError(
            f"archive {self.place} cannot be used{duration} ({_reason(error)}): "
            f"{self.dialect.way_out}"
        )


def _create_engine(dialect: Sqlite | Postgres) -> Engine:
    """Returns SQLAlchemy's engine, whose connections are durable and wait for other writers."""
    engine = create_engine(
        dialect.url,
        # The text of an error would show descriptions and replies.
        hide_parameters=True,
        max_overflow=-1,
        pool_pre_ping=True,
        connect_args=dialect.options,
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        for statement in dialect.settings:
            cursor.execute(statement.format(lock_ms=LOCK_SECONDS * 1000))
        cursor.close()
        connection.commit()

    return engine


def _dialect_at(location: str) -> Sqlite | Postgres:
    """Returns the database at the path of a file, or at a URL, which must hold no secret."""
    if "://" not in location:
        return Sqlite(URL.create("sqlite", database=location))
    # An invalid URL may hold a password anywhere, and the text of its error repeats it.
    scheme = location.partition("://")[0]
    if secret := secret_in(location):
        raise ArchiveError(
            f"the archive's URL {scheme}://... carries {secret}, which would be recorded: leave "
            "it out, and set PGPASSWORD or write it into ~/.pgpass"
        )
    with contextlib.suppress(ArgumentError, ValueError):
        url = make_url(location)
        if url.drivername == "sqlite":
            return Sqlite(url)
        if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
            return Postgres(url)
    raise ArchiveError(
        f"the archive's URL {scheme}://... names no database that can hold an archive: give a "
        "file, or a URL postgresql://user@host:5432/database"
    )


def _reason(error: DBAPIError) -> str:
    """Returns the message of the database, without the statement and its values."""
    return (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]


def _lock_file(path: str) -> Release | None:
    """Locks a file by flock; None if another process has locked it, or is freeing it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def release() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)

    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever freed the lock has removed the file: a lock on that one keeps nobody away.
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return release
    os.close(descriptor)
    return None
