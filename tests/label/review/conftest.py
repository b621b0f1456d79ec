import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from raylab.label.archive.store import Archive
from raylab.label.input.cases import Case
from raylab.label.opt.code import parse
from tests.label.review.office import (
    AGREED,
    GOLD,
    JOINED,
    NEITHER,
    ONE,
    UNCONFIRMED,
    Office,
    annotation,
    make_run,
)


@pytest.fixture(scope="session")
def made(chat: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which every test gets a copy."""
    storage = tmp_path_factory.mktemp("runs")
    pool = f"A pool of schedules is scored and recombined. {ONE}"
    cases = {
        "pool": Case("pool", pool, gold=GOLD, gold_label=parse(GOLD)),
        "valve/hybrid": f"A valve is regulated by a trained model.\nIt feeds back. {NEITHER}",
        "<b>bold</b>": f"Facts are derived. {UNCONFIRMED}",
        "joined": f"A model is bred. {JOINED}",
        "code": f"def correlate(x, y):\n    return x < y\n# {NEITHER}",
        "agreed": f"A model is fitted. {AGREED}",
    }
    make_run(annotation(storage, chat), cases)
    return storage


@pytest.fixture
def office(made: Path, tmp_path: Path, chat: str) -> Generator[Office]:
    storage = shutil.copytree(made, tmp_path / "runs")
    with Archive.open(storage / "archive.db", create=False) as archive:
        yield Office(archive, annotation(storage, chat))


@pytest.fixture
def pair(office: Office, chat: str) -> Office:
    """The office where two people judge each case."""
    storage = Path(office.config.storage)
    return Office(office.archive, annotation(storage, chat, "review.people=2"))
