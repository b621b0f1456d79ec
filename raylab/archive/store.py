"""The archive: its runs, the journal of calls, the prompts.

Every operation is one transaction, durable when it returns, and idempotent, so a caller that lost
the answer may repeat it. If two writers disagree, the first one wins.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, bindparam, select

from raylab.archive.chain import canonical, run_hash
from raylab.archive.database import Clock, Database
from raylab.archive.journal import Prompts, add_calls, start_journal
from raylab.archive.queries import chunks, find_run
from raylab.archive.records import CallRow, ChainProblem, RunRow
from raylab.archive.rows import AnyRow, call_row, call_values, run_row
from raylab.archive.run import RunArchive
from raylab.archive.tables import CALLS, PROMPTS, RUNS, utc_text
from raylab.archive.verification import verify_chains
from raylab.archive.versions import prepare
from raylab.config.schema import conflicts
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
        """Uses a database of the latest version; see `open`."""
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
        """Opens an archive, creates it if necessary, and upgrades it to the latest schema.

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
            ArchiveError: The place holds something else, a newer schema or a damaged file, cannot
                be reached or written, or is empty and `create` is false.
        """
        database = Database(location, patience, clock)
        try:
            prepare(database, create, wait)
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
            lambda connection: [run_row(row) for row in connection.execute(statement)]
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
            versions: Versions of what it runs with; `protocol` and `taxonomy` are also columns.
                Those of the first start are kept.
            uid: Id of the run in its record; None if it has none.

        Raises:
            ArchiveError: The name is taken by another run, or by one of another configuration.
        """
        texts = {"config": canonical(dict(config)), "versions": canonical(dict(versions))}
        columns = {key: str(versions.get(key) or "") for key in ("protocol", "taxonomy")}
        started = self._database.clock.now()
        head = run_hash(name, **texts, started=started, uid=uid)
        new = {**texts, **columns, "name": name, "uid": uid, "started": started}
        new |= {"head_sequence": 0, "head_hash": head}

        def work(connection: Connection) -> None:
            connection.execute(self._database.dialect.insert_new(RUNS), new)
            row = find_run(connection, self._database.place, name)
            self._refuse_other_work(row, texts["config"], uid)
            if row.versions != texts["versions"]:
                LOGGER.info("run %s continues with other versions than it started with", name)
            start_journal(connection, self._database, row.id, head)

        self._database.write(work)
        return self.run(name)

    def prompts(self) -> Prompts:
        """Returns all stored prompts."""
        statement = select(PROMPTS).order_by(PROMPTS.c.hash)

        def work(connection: Connection) -> Prompts:
            rows = connection.execute(statement)
            return {row.hash: (row.name, row.version, row.text) for row in rows}

        return self._database.read(work)

    def add_calls(self, rows: Sequence[CallRow]) -> None:
        """Stores completed calls; existing keys stay unchanged.

        Raises:
            ValueError: A time has no zone.
        """
        calls = [call_values(row) for row in rows]
        if calls:
            self._database.write(lambda connection: add_calls(connection, self._database, calls))

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """Returns all stored calls about descriptions with these SHA-256 hashes."""
        unique = sorted(set(description_hashes))

        def work(connection: Connection) -> list[CallRow]:
            return [
                call_row(row)
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
        """Returns the call with a key; None if there is none."""
        statement = select(CALLS).where(CALLS.c.key == key)

        def work(connection: Connection) -> CallRow | None:
            row = connection.execute(statement).first()
            return None if row is None else call_row(row)

        return self._database.read(work)

    def verify(self) -> list[ChainProblem]:
        """Returns the problems in the chains of all runs; see `RunArchive.verify`.

        Raises:
            ArchiveError: The archive cannot be read at all.
        """
        return verify_chains(self._database, None)

    def _refuse_other_work(self, row: AnyRow, config: str, uid: str | None) -> None:
        if None not in (row.uid, uid) and row.uid != uid:
            raise ArchiveError(
                f"archive {self.place} has another run of the name {row.name}, started "
                f"{utc_text(row.started)}: choose another name= or another archive="
            )
        # Earlier raylabs kept fewer values, so what the archive lacks is no difference.
        if differing := conflicts(json.loads(row.config), json.loads(config)):
            raise ArchiveError(
                f"archive {self.place} has a run {row.name} of another configuration:"
                f"{differing}\nset these as the run has them, or choose another name="
            )
