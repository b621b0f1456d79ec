"""The archive: its runs, the journal of calls, the prompts.

Every operation is one transaction, durable when it returns, and idempotent, so a caller that lost
the answer may repeat it. If two writers disagree, the first one wins.
"""

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, bindparam, insert, inspect, select

from raylab.archive.database import Clock, Database
from raylab.archive.dialects import DatabaseDialect
from raylab.archive.queries import chunks, find_run
from raylab.archive.records import CallRow, CallState, RunRow
from raylab.archive.rows import canonical, from_row, unseal
from raylab.archive.run import Prompts, RunArchive
from raylab.archive.tables import ARCHIVE, CALLS, METADATA, PROMPTS, RUNS, VERSION, utc_text
from raylab.config.schema import differences
from raylab.errors import ArchiveError

PATIENCE_SECONDS = 60.0
OPENING_SECONDS = 5.0

# Built once, because that takes longer than to execute it.
_HASHES = bindparam("hashes", expanding=True)
_CALLS_ABOUT = select(CALLS).where(CALLS.c.description_hash.in_(_HASHES))

LOGGER = logging.getLogger(__name__)


class Archive:
    """An open archive; a context manager that closes it. Any thread may use it."""

    def __init__(self, database: Database) -> None:
        """Uses a database that holds an archive; see `open`."""
        self._database = database

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        create: bool = True,
        patience: float = PATIENCE_SECONDS,
        wait: float = OPENING_SECONDS,
        clock: Clock | None = None,
    ) -> Self:
        """Opens an archive, and creates it if necessary.

        Args:
            location: Path of an SQLite file, whose directories are created, or a URL such as
                postgresql://user@host:5432/database. The password is taken from PGPASSWORD or
                ~/.pgpass, never from the URL.
            create: Create an archive if there is none.
            patience: Longest time in seconds for which an operation is retried while the database
                is locked, restarting or not reachable.
            wait: Longest wait in seconds for the first connection to a server.
            clock: Clocks; None takes the system's.

        Raises:
            ArchiveError: The place holds something else, an archive of another version or a damaged
                file, cannot be reached or written, or is empty and `create` is false.
        """
        database = Database(location, patience, clock)
        try:
            _prepare(database, create, wait)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def __enter__(self) -> Self:
        """Returns the archive."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the archive."""
        self.close()

    def __repr__(self) -> str:
        """Returns the type and the place, which never holds a password."""
        return f"Archive({self.place!r})"

    @property
    def place(self) -> str:
        """The file or the URL, without secrets."""
        return self._database.place

    @property
    def id(self) -> str:
        """The id of the archive, which a copy of it shares."""
        return self._database.read(
            lambda connection: connection.execute(select(ARCHIVE.c.id)).scalar_one()
        )

    def close(self) -> None:
        """Closes all connections; a second call does nothing."""
        self._database.close()

    def run(self, name: str) -> RunArchive:
        """Returns a run; its methods raise if it does not exist."""
        return RunArchive(self._database, name)

    def runs(self) -> list[RunRow]:
        """Returns all runs, the earliest first."""
        statement = select(RUNS).order_by(RUNS.c.started, RUNS.c.id)
        return self._database.read(
            lambda connection: [from_row(RunRow, row) for row in connection.execute(statement)]
        )

    def start_run(
        self,
        name: str,
        config: Mapping[str, Any],
        versions: Mapping[str, Any],
        uid: str | None = None,
    ) -> RunArchive:
        """Starts a run, or goes on with it.

        Args:
            name: Name of the run; unique in an archive.
            config: Configuration as JSON values, without its placement and speed.
            versions: Versions of what it runs with. Those of the first start are kept.
            uid: Id of the run in its record; None if it has none.

        Raises:
            ArchiveError: The name is taken by another run, or by one of another configuration.
        """
        new: dict[str, Any] = {
            "name": name,
            "uid": uid,
            "config": canonical(dict(config)),
            "versions": canonical(dict(versions)),
            "started": self._database.clock.now(),
            "records": 0,
        }

        def work(connection: Connection) -> None:
            connection.execute(self._database.dialect.insert_new(RUNS), new)
            row = from_row(RunRow, find_run(connection, self._database.place, name))
            self._refuse_other_work(row, json.loads(new["config"]), uid)
            if canonical(row.versions) != new["versions"]:
                LOGGER.info("run %s continues with other versions than it started with", name)

        self._database.write(work)
        return self.run(name)

    def prompts(self) -> Prompts:
        """Returns all stored prompts."""
        statement = select(PROMPTS).order_by(PROMPTS.c.hash)

        def work(connection: Connection) -> Prompts:
            rows = connection.execute(statement)
            return {row.hash: (row.name, row.version, row.text) for row in rows}

        return self._database.read(work)

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """Returns all answered calls about descriptions with these SHA-256 hashes."""
        unique = sorted(set(description_hashes))

        def work(connection: Connection) -> list[CallRow]:
            return [
                unseal(CallRow, row)
                for some in chunks(unique)
                for row in connection.execute(_CALLS_ABOUT, {"hashes": some})
            ]

        return self._database.read(work)

    def knows_endpoint(self, base_url: str) -> bool:
        """Returns True if a call that the endpoint at an address answered is stored."""
        statement = select(CALLS.c.key).where(CALLS.c.endpoint == base_url).limit(1)
        return (
            self._database.read(lambda connection: connection.execute(statement).first())
            is not None
        )

    def call(self, key: str) -> CallRow | None:
        """Returns the answered call with a key; None if there is none."""
        statement = select(CALLS).where(CALLS.c.key == key, CALLS.c.state == CallState.ANSWERED)

        def work(connection: Connection) -> CallRow | None:
            row = connection.execute(statement).first()
            return None if row is None else unseal(CallRow, row)

        return self._database.read(work)

    def _refuse_other_work(self, row: RunRow, config: Mapping[str, Any], uid: str | None) -> None:
        if row.uid != uid:
            raise ArchiveError(
                f"archive {self.place} has another run of the name {row.name}, started "
                f"{utc_text(row.started)}: choose another name= or another archive="
            )
        if differing := differences(row.config, config):
            raise ArchiveError(
                f"archive {self.place} has a run {row.name} of another configuration:"
                f"{differing}\nset these as the run has them, or choose another name="
            )


def _prepare(database: Database, create: bool, wait: float) -> None:
    """Makes sure that a database is an archive.

    Args:
        database: The database, not opened yet.
        create: Make an archive if there is none.
        wait: Longest wait for a server, in seconds.

    Raises:
        ArchiveError: The database is something else, or cannot become an archive.
    """
    dialect = database.dialect
    dialect.prepare_place(create)
    patience = wait if dialect.on_server else None
    exists = database.read(lambda connection: _is_archive(connection, dialect), patience)
    if not exists and not create:
        raise ArchiveError(f"{database.place} holds no archive: check the place, or make one first")
    database.prepare()
    if not exists:
        database.write(lambda connection: _create(connection, dialect))


def _is_archive(connection: Connection, dialect: DatabaseDialect) -> bool:
    """Returns False for an empty database.

    Raises:
        ArchiveError: It is an archive of another version, or holds tables of something else.
    """
    names = set(inspect(connection).get_table_names())
    if ARCHIVE.name in names:
        version = connection.execute(select(ARCHIVE.c.version)).scalar_one_or_none()
        if version == VERSION:
            return True
        raise ArchiveError(
            f"archive {dialect.place} is of version {version}, this raylab reads {VERSION}: go "
            "on with the raylab that made it, or give another archive="
        )
    strange = names & METADATA.tables.keys() if dialect.on_server else names
    if strange:
        listed = ", ".join(sorted(strange)[:3])
        raise ArchiveError(
            f"{dialect.place} is no archive, it holds tables that raylab did not make ({listed}): "
            "choose another file or database"
        )
    return False


def _create(connection: Connection, dialect: DatabaseDialect) -> None:
    """Makes the tables in one transaction, one process at a time."""
    dialect.lock_schema(connection)
    if not _is_archive(connection, dialect):
        METADATA.create_all(connection)
        connection.execute(insert(ARCHIVE), {"version": VERSION, "id": secrets.token_hex(16)})
