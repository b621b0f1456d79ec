"""The opening of an archive, which inspects the location before it writes."""

from raylab.archive.database import Database
from raylab.archive.versions import current_version, latest_version, upgrade
from raylab.errors import ArchiveError


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
