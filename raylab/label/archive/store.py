"""The archive: its runs and the calls that they share.

Every operation is one transaction, durable when it returns, and idempotent, so a caller that lost
the answer may repeat it. If two writers disagree, the first one wins.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, insert, inspect, select, text

from raylab.core.config.schema import differences
from raylab.core.errors import ArchiveError
from raylab.core.files import make_directory
from raylab.label.archive.database import Database, Postgres, Sqlite
from raylab.label.archive.records import CallRow, RunRow
from raylab.label.archive.run import RunArchive
from raylab.label.archive.tables import (
    ARCHIVE,
    CALLS,
    METADATA,
    RUNS,
    VERSION,
    as_json,
    find_run,
    run_row,
    unseal,
    utc_text,
)

OPENING_SECONDS = 5.0
"""Longest wait for the first connection to a server."""


class Archive:
    """An open archive; a context manager that closes it. Any thread may use it."""

    def __init__(self, database: Database) -> None:
        """Uses a database that holds an archive; see `open`."""
        self._database = database

    @classmethod
    def open(
        cls, location: str | Path, *, create: bool = True, wait: float = OPENING_SECONDS
    ) -> Self:
        """Opens an archive, and creates it if necessary.

        Args:
            location: Path of an SQLite file, whose directories are created, or a URL such as
                postgresql://user@host:5432/database. The password is taken from PGPASSWORD or
                ~/.pgpass, never from the URL.
            create: Create an archive if there is none.
            wait: Longest time in seconds for which the first connection to a server is tried.

        Raises:
            ArchiveError: The place holds something else, an archive of another version or a damaged
                file, cannot be reached or written, or is empty and `create` is false.
        """
        database = Database(location)
        dialect, exists = database.dialect, False
        with ExitStack() as failed:
            # What is refused leaves no connection open.
            failed.callback(database.close)
            if isinstance(dialect, Postgres):
                exists = database.read(lambda connection: _is_archive(connection, dialect), wait)
            elif dialect.file.exists():
                exists = database.read(lambda connection: _is_archive(connection, dialect))
            if not (exists or create):
                place = database.place
                raise ArchiveError(f"there is no archive {place}: check the place, or make one")
            if not exists:
                _create(database)
            failed.pop_all()
        return cls(database)

    def __enter__(self) -> Self:
        """Returns the archive."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the archive."""
        self.close()

    @property
    def place(self) -> str:
        """The file or the URL, without secrets."""
        return self._database.place

    @property
    def id(self) -> str:
        """The id of the archive, which a copy of it shares."""
        return self._database.rows(select(ARCHIVE.c.id))[0].id

    def close(self) -> None:
        """Closes all connections; a second call does nothing."""
        self._database.close()

    def run(self, name: str) -> RunArchive:
        """Returns a run; its methods raise if it does not exist."""
        return RunArchive(self._database, name)

    def runs(self) -> list[RunRow]:
        """Returns all runs, the earliest first."""
        ordered = select(RUNS).order_by(RUNS.c.started, RUNS.c.id)
        return [run_row(row) for row in self._database.rows(ordered)]

    def start_run(
        self,
        name: str,
        config: Mapping[str, Any],
        versions: Mapping[str, Any],
        uid: str | None = None,
    ) -> RunArchive:
        """Starts a run, or goes on with it.

        Args:
            config: Configuration as JSON values, without the keys of placement and speed.
            versions: Versions of its software and protocol; the archive keeps the first start's.
            uid: Id of the run in its record; None if it has none.

        Raises:
            ArchiveError: The name is taken by another run, or by one of another configuration.
        """
        new = RunRow(name, dict(config), dict(versions), self._database.now(), 0, uid)
        inserted = self._database.dialect.insert(RUNS).on_conflict_do_nothing()

        def work(connection: Connection) -> RunRow:
            # A run that is there stays, so that its first start decides what it is.
            connection.execute(inserted, vars(new))
            return run_row(find_run(connection, self.place, name))

        row = self._database.write(work)
        if row.uid != new.uid:
            raise ArchiveError(
                f"archive {self.place} has another run of the name {row.name}, started "
                f"{utc_text(row.started)}: choose another name= or another archive="
            )
        if differing := differences(row.config, json.loads(as_json(new.config))):
            raise ArchiveError(
                f"archive {self.place} has a run {row.name} of another configuration:"
                f"{differing}\nset these as the run has them, or choose another name="
            )
        return self.run(name)

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """Returns all answered calls about descriptions with these SHA-256 hashes."""
        about = select(CALLS).where(CALLS.c.description_hash.in_(description_hashes))
        return self._database.read(
            lambda connection: [unseal(CallRow, row) for row in connection.execute(about)]
        )

    def has_answers_from(self, base_url: str) -> bool:
        """Returns True if a call that the endpoint at an address answered is stored."""
        answered = select(CALLS.c.key).where(CALLS.c.endpoint == base_url).limit(1)
        return bool(self._database.rows(answered))


def _is_archive(connection: Connection, dialect: Sqlite | Postgres) -> bool:
    """Returns False for an empty database; refuses another version, and tables of others."""
    names = set(inspect(connection).get_table_names())
    if ARCHIVE.name in names:
        version = connection.execute(select(ARCHIVE.c.version)).scalar_one_or_none()
        if version == VERSION:
            return True
        raise ArchiveError(
            f"archive {dialect.place} is of version {version}, this raylab reads {VERSION}: go "
            "on with the raylab that made it, or give another archive="
        )
    # A database on a server may hold tables of others beside these, a file holds nothing else.
    strange = names & METADATA.tables.keys() if isinstance(dialect, Postgres) else names
    if strange:
        listed = ", ".join(sorted(strange)[:3])
        raise ArchiveError(
            f"{dialect.place} is no archive, it holds tables that raylab did not make ({listed}): "
            "choose another file or database"
        )
    return False


def _create(database: Database) -> None:
    """Makes the tables in one transaction, one process at a time."""
    dialect = database.dialect
    if isinstance(dialect, Sqlite):
        try:
            make_directory(dialect.file.parent)
        except OSError as error:
            raise ArchiveError(f"archive {database.place} cannot be made: {error}") from error
        database.log_ahead()

    def work(connection: Connection) -> None:
        if dialect.schema_lock:
            connection.execute(text(dialect.schema_lock))
        # Another process may have made them while this one waited.
        if not _is_archive(connection, dialect):
            METADATA.create_all(connection)
            connection.execute(insert(ARCHIVE), {"version": VERSION, "id": secrets.token_hex(16)})

    database.write(work)
