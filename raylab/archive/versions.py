"""Bringing the schema of a database to the latest version."""

import functools
import threading
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime.migration import MigrationStep
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from raylab.archive import migrations
from raylab.archive.tables import METADATA
from raylab.errors import ArchiveError

VERSION_TABLE = "archive_version"
ADVISORY_LOCK = 0x7261796C6162
"""Number of the lock, among all of a PostgreSQL server's database, that upgrades hold."""
DIRECTORY = Path(migrations.__file__).parent
ONE_AT_A_TIME = threading.Lock()
"""Alembic's operations are global to the process."""


def latest() -> str:
    """The version that this raylab writes."""
    return _script().get_current_head() or ""


def current(connection: Connection, place: str) -> str | None:
    """The version of a database; None of an empty one.

    Args:
        connection: Where to look.
        place: The database, for the error.

    Raises:
        ArchiveError: It is of a newer version, or holds tables that are not an archive's.
    """
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE in names:
        version = _context(connection).get_current_revision()
        known = [script.revision for script in _script().walk_revisions()]
        if version is not None and version not in known:
            raise ArchiveError(
                f"archive {place} is of schema {version}, this raylab knows {latest()} at most: "
                "update raylab"
            )
        return version
    strange = names if connection.dialect.name == "sqlite" else names & METADATA.tables.keys()
    if strange:
        listed = ", ".join(sorted(strange)[:3])
        raise ArchiveError(
            f"{place} is no archive, it holds tables that raylab did not make ({listed}): choose "
            "another file or database"
        )
    return None


def upgrade(connection: Connection, place: str) -> None:
    """Takes a database to the latest version, within the transaction of a connection.

    Two processes never do so at once: on SQLite the transaction that writes is alone, on
    PostgreSQL it holds a lock to its end.

    Args:
        connection: In a transaction that writes.
        place: The database, for the error.

    Raises:
        ArchiveError: As `current`.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
    if current(connection, place) != latest():
        context = _context(connection)
        with ONE_AT_A_TIME, Operations.context(context):
            context.run_migrations()


def _context(connection: Connection) -> MigrationContext:
    script = _script()

    def steps(heads: tuple[str, ...], context: MigrationContext) -> list[MigrationStep]:
        missing = script.iterate_revisions("heads", heads, implicit_base=True)
        return [
            MigrationStep.upgrade_from_script(script.revision_map, one)
            for one in reversed(list(missing))
        ]

    return MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "fn": steps}
    )


@functools.cache
def _script() -> ScriptDirectory:
    return ScriptDirectory(str(DIRECTORY), version_locations=[str(DIRECTORY)])
