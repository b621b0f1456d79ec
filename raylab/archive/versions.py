"""The versions of the schema, and the opening of an archive, which upgrades it to the latest."""

import functools
import threading
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime.migration import MigrationStep
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from raylab.archive import migrations
from raylab.archive.database import Database
from raylab.archive.dialects import DatabaseDialect
from raylab.archive.tables import METADATA
from raylab.errors import ArchiveError

VERSION_TABLE = "archive_version"
DIRECTORY = Path(migrations.__file__).parent
ONE_AT_A_TIME = threading.Lock()
"""A lock, because Alembic's operations are global to the process."""


def prepare(database: Database, create: bool, wait: float) -> None:
    """Makes sure that a database is an archive of the latest schema.

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
    version = database.read(lambda connection: current_version(connection, dialect), patience)
    if version is None and not create:
        raise ArchiveError(f"{database.place} holds no archive: check the place, or make one first")
    database.prepare()
    if version != latest_version():
        database.write(lambda connection: upgrade(connection, dialect))


def latest_version() -> str:
    """Returns the version that this release writes."""
    return _script().get_current_head() or ""


def current_version(connection: Connection, dialect: DatabaseDialect) -> str | None:
    """Returns the version of a database; None for an empty one.

    Args:
        connection: Connection to the database.
        dialect: The database.

    Raises:
        ArchiveError: The version is newer, or the database holds tables of something else.
    """
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE in names:
        version = _context(connection).get_current_revision()
        known = [script.revision for script in _script().walk_revisions()]
        if version is not None and version not in known:
            raise ArchiveError(
                f"archive {dialect.place} is of schema {version}, this raylab knows "
                f"{latest_version()} at most: update raylab"
            )
        return version
    strange = names & METADATA.tables.keys() if dialect.on_server else names
    if strange:
        listed = ", ".join(sorted(strange)[:3])
        raise ArchiveError(
            f"{dialect.place} is no archive, it holds tables that raylab did not make ({listed}): "
            "choose another file or database"
        )
    return None


def upgrade(connection: Connection, dialect: DatabaseDialect) -> None:
    """Upgrades a database to the latest version, in one transaction and one process at a time.

    Args:
        connection: Connection in a transaction that writes.
        dialect: The database.

    Raises:
        ArchiveError: As `current_version`.
    """
    dialect.lock_schema(connection)
    if current_version(connection, dialect) != latest_version():
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
