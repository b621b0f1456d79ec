import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.label.review.office import Office, annotation, make_office, open_office


@pytest.fixture(scope="session")
def made(chat: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which every test gets a copy."""
    storage = tmp_path_factory.mktemp("runs")
    make_office(storage, chat)
    return storage


@pytest.fixture
def office(made: Path, tmp_path: Path, chat: str) -> Generator[Office]:
    with open_office(annotation(shutil.copytree(made, tmp_path / "runs"), chat)) as office:
        yield office


@pytest.fixture
def pair(office: Office, chat: str) -> Office:
    """The office where two people judge each case."""
    storage = Path(office.config.storage)
    return Office(office.archive, annotation(storage, chat, "review.people=2"))
