"""From a place to an archive: what is there is looked at before anything is written."""

from pathlib import Path

from sqlalchemy import text

from raylab.archive.database import OTHER_FILE, Database
from raylab.archive.versions import current, latest, upgrade
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
    file = database.file
    if file is not None:
        _make_room(file, create)
    patience = wait if file is None else None
    version = database.read(lambda connection: current(connection, database.place), patience)
    if version is None and not create:
        raise ArchiveError(f"{database.place} holds no archive: check the place, or make one first")
    if file is None:
        _check_encoding(database)
    else:
        _write_ahead(database)
    if version != latest():
        database.write(lambda connection: upgrade(connection, database.place))


def _make_room(file: Path, create: bool) -> None:
    """Makes the directory of a new file; of one that is there, checks that it is a file."""
    try:
        if file.is_dir():
            raise ArchiveError(f"archive {file} is a directory: name a file in it")
        if not file.exists():
            if not create:
                raise ArchiveError(f"there is no archive {file}: check the path, or make one first")
            file.parent.mkdir(parents=True, exist_ok=True)
        elif not file.is_file():
            raise ArchiveError(f"archive {file} is no regular file: {OTHER_FILE}")
    except OSError as error:
        raise ArchiveError(f"archive {file} cannot be opened: {error}; {OTHER_FILE}") from error


def _check_encoding(database: Database) -> None:
    encoding = database.read(lambda connection: connection.scalar(text("SHOW server_encoding")))
    if encoding != "UTF8":
        raise ArchiveError(
            f"archive {database.place} has encoding {encoding}, which does not hold every text: "
            "make its database with ENCODING 'UTF8'"
        )


def _write_ahead(database: Database) -> None:
    """Has SQLite keep a write-ahead log, with which readers and a writer do not wait."""
    if not database.write_ahead():
        raise ArchiveError(
            f"archive {database.place} lies on a filesystem without a shared write-ahead log: give "
            "archive= a file on a local disk, or a PostgreSQL URL"
        )
