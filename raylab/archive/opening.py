"""From a place to an archive: what is there is looked at before anything is written."""

from raylab.archive.database import Database
from raylab.archive.versions import current_version, latest_version, upgrade
from raylab.errors import ArchiveError


def prepare(database: Database, create: bool, wait: float) -> None:
    """Makes sure that a database is an archive of the latest schema.

    Args:
        database: Where it is, not opened yet.
        create: Whether to make an archive where there is none.
        wait: Seconds for which a server is waited for.

    Raises:
        ArchiveError: It is something else, or cannot be made so.
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
