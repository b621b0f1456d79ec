from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from raylab.label.archive.store import Archive
from tests.label.archive.postgres import PostgresServer

NUMBERS = count()


@pytest.fixture(params=["sqlite", "postgresql"])
def archive_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of an archive that is not there yet, on each database."""
    if request.param == "sqlite":
        return str(tmp_path / "archive.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create_schema(f"archive{next(NUMBERS)}")


@pytest.fixture
def archive(archive_url: str) -> Iterator[Archive]:
    """An archive with the run `r`."""
    with Archive.open(archive_url) as archive:
        archive.start_run("r", {"prompt": "maximal"}, {"protocol": "1", "taxonomy": "opt-1"})
        yield archive
