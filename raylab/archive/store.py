"""The archive: its runs, the journal of calls, the prompts.

Every operation is one transaction, durable when it returns, and changes nothing when it is done
again, so that a caller who lost the answer may repeat it. Where two writers disagree the first one
stands.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Table, select, update

from raylab.archive.chain import canonical, run_hash
from raylab.archive.database import Database
from raylab.archive.opening import prepare
from raylab.archive.queries import chunks
from raylab.archive.records import CallRow, ChainProblem, RunRow
from raylab.archive.rows import AnyRow, call_row, call_values, run_row
from raylab.archive.run import RunArchive
from raylab.archive.tables import CALLS, PROMPTS, RUNS
from raylab.archive.verification import verify_chains
from raylab.config.schema import differences
from raylab.errors import ArchiveError

PATIENCE_SECONDS = 60.0
OPENING_SECONDS = 5.0

LOGGER = logging.getLogger(__name__)

Prompts = Mapping[str, tuple[str, str, str]]
"""By hash: name, version, text."""


class Archive:
    """An archive that is open; a context manager that closes it. Any thread may use it."""

    def __init__(self, database: Database) -> None:
        """Takes over a database at the latest version; see `open`."""
        self._database = database

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        create: bool = True,
        patience: float = PATIENCE_SECONDS,
        wait: float = OPENING_SECONDS,
    ) -> Self:
        """Opens an archive, makes it if there is none, and brings it to the latest schema.

        Args:
            location: Path of an SQLite file, whose directories are made, or URL such as
                postgresql://user@host:5432/database. The password is taken from PGPASSWORD or
                ~/.pgpass, never from the URL.
            create: Whether to make an archive where there is none.
            patience: Seconds for which an operation is tried again at most while the database is
                locked, restarting or not reached.
            wait: Seconds for which a server is waited for now, before it was ever reached.

        Raises:
            ArchiveError: The place holds something else, a newer schema or a damaged file, cannot
                be reached or written, or holds nothing and is not to be made.
        """
        database = Database(location, patience)
        try:
            prepare(database, create, wait)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def __enter__(self) -> Self:
        """The archive."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """The place, which never holds a password."""
        return f"Archive({self.place!r})"

    @property
    def place(self) -> str:
        """The file, or the URL, fit to be shown."""
        return self._database.place

    def close(self) -> None:
        """Closes all connections; again does nothing."""
        self._database.close()

    def run(self, name: str) -> RunArchive:
        """Returns a run, which is looked for when its methods are called."""
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
        """Starts a run, or goes on with it, which clears its finish.

        Args:
            name: Name of the run; unique in an archive.
            config: What the run does, as JSON values, without where and how fast it does it.
            versions: What it runs with; `protocol` and `taxonomy` are columns too. Those of the
                first start are kept.
            uid: Id of the run in its record; that of the first start is kept.

        Raises:
            ArchiveError: The name is taken by a run of another configuration.
        """
        texts = {"config": canonical(dict(config)), "versions": canonical(dict(versions))}
        columns = {key: str(versions.get(key) or "") for key in ("protocol", "taxonomy")}
        started = datetime.now(UTC)
        head = run_hash(name, **texts, started=started, uid=uid)
        new = {**texts, **columns, "name": name, "uid": uid, "started": started}
        new |= {"head_sequence": 0, "head_hash": head}

        def work(connection: Connection) -> None:
            connection.execute(self._database.dialect.insert_new(RUNS), new)
            row = connection.execute(select(RUNS).where(RUNS.c.name == name)).one()
            self._refuse_other_work(row, texts["config"])
            if row.versions != texts["versions"]:
                LOGGER.info("run %s goes on with other versions than it was started with", name)
            connection.execute(update(RUNS).where(RUNS.c.id == row.id).values(finished=None))

        self._database.write(work)
        return self.run(name)

    def add_prompts(self, prompts: Prompts) -> None:
        """Keeps prompts by their hash; those that are there already are left."""
        rows = [
            {"hash": key, "name": name, "version": version, "text": content}
            for key, (name, version, content) in sorted(prompts.items())
        ]
        self._insert_new(PROMPTS, rows)

    def prompts(self) -> Prompts:
        """Returns all prompts ever used."""
        statement = select(PROMPTS).order_by(PROMPTS.c.hash)

        def work(connection: Connection) -> Prompts:
            rows = connection.execute(statement)
            return {row.hash: (row.name, row.version, row.text) for row in rows}

        return self._database.read(work)

    def add_calls(self, rows: Sequence[CallRow]) -> None:
        """Keeps completed calls; those whose key is there already are left.

        Raises:
            ValueError: A time has no zone.
        """
        # Writers that insert the same keys in different orders would wait for each other.
        ordered = sorted(rows, key=lambda row: row.key)
        self._insert_new(CALLS, [call_values(row) for row in ordered])

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """Returns all calls ever made about any of these texts, by the SHA-256 of each."""
        unique = sorted(set(description_hashes))

        def work(connection: Connection) -> list[CallRow]:
            return [
                call_row(row)
                for some in chunks(unique)
                for row in connection.execute(
                    select(CALLS).where(CALLS.c.description_hash.in_(some))
                )
            ]

        return self._database.read(work)

    def call(self, key: str) -> CallRow | None:
        """Returns the call of a key; None if it was never answered."""
        statement = select(CALLS).where(CALLS.c.key == key)

        def work(connection: Connection) -> CallRow | None:
            row = connection.execute(statement).first()
            return None if row is None else call_row(row)

        return self._database.read(work)

    def verify(self) -> list[ChainProblem]:
        """Returns what is wrong in the chains of all runs; see `RunArchive.verify`.

        Raises:
            ArchiveError: Reading fails altogether.
        """
        return verify_chains(self._database, None)

    def _insert_new(self, table: Table, rows: list[dict[str, Any]]) -> None:
        if rows:
            statement = self._database.dialect.insert_new(table)
            self._database.write(lambda connection: connection.execute(statement, rows))

    def _refuse_other_work(self, row: AnyRow, config: str) -> None:
        if row.config == config:
            return
        differing = differences(json.loads(row.config), json.loads(config))
        raise ArchiveError(
            f"archive {self.place} has a run {row.name} of another configuration:"
            f"{differing}\nset these as the run has them, or choose another name="
        )
