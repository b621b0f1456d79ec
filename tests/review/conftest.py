import shutil
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from raylab.archive.store import Archive
from raylab.config import AnnotateConfig, ReviewConfig
from raylab.opt.cases import Case, python_cases
from raylab.review.access import Access, access_of
from raylab.review.reviews import Reviews
from tests.archive.rows import NOON
from tests.llm.scripted_server import server_process
from tests.review.browser import Browser
from tests.review.runs import AGREED, NEITHER, ONE, UNCONFIRMED, annotation, make_run

LEASE = timedelta(minutes=10)
HOSTILE = (
    "<h1>Free</h1><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
    "</div></section></main><form action='http://evil.example'>"
)
GOLD = "Swm/Ctl"
LONG = "x" * 95_000


@dataclass
class Clock:
    """A time that goes on when it is told to."""

    time: datetime = NOON

    def __call__(self) -> datetime:
        return self.time

    def pass_by(self, span: timedelta) -> None:
        self.time += span


@dataclass
class Office:
    """A run with open cases, a clock, and the page for any number of reviewers.

    The cases, by their sequence: 1 one answer acceptable, 2 neither, 3 an adjudication refused and
    a hostile description, 4 a line of 95,000 characters, 5 source code; 6 is accepted.
    """

    archive: Archive
    config: AnnotateConfig
    clock: Clock = field(default_factory=Clock)

    def reviews(self, config: AnnotateConfig | None = None) -> Reviews:
        return Reviews("systems", config or self.config, self.archive, LEASE, now=self.clock)

    def browser(
        self, name: str = "", reviews: Reviews | None = None, access: Access | None = None
    ) -> Browser:
        """A browser with a session of its own, of a reviewer who has signed in if one is named."""
        access = access or access_of(ReviewConfig(name="systems"), 8700)
        browser = Browser(reviews or self.reviews(), access)
        if name:
            assert browser.sign_in(name).status_code == 303
        return browser


@pytest.fixture(scope="session")
def chat() -> Generator[str]:
    with server_process() as url:
        yield url


@pytest.fixture(scope="session")
def made(chat: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which every test gets a copy."""
    storage = tmp_path_factory.mktemp("runs")
    (source,) = python_cases(["statistics.correlation"])
    cases = {
        "pool": Case("pool", f"A pool of schedules is scored and recombined. {ONE}", gold=GOLD),
        "valve/hybrid": f"A valve is regulated by a trained model.\nIt feeds back. {NEITHER}",
        "<b>bold</b>": f"{HOSTILE} {UNCONFIRMED}",
        "long": f"{LONG} {ONE}",
        "code": Case("code", f"{source.description}\n# {NEITHER}", meta=source.meta),
        "agreed": f"A model is fitted. {AGREED}",
    }
    make_run(annotation(storage, chat, "protocol.seed=5"), cases)
    return storage


@pytest.fixture
def storage(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "runs")


@pytest.fixture
def office(storage: Path, chat: str) -> Generator[Office]:
    with Archive.open(storage / "archive.db", create=False) as archive:
        yield Office(archive, annotation(storage, chat, "protocol.seed=5"))


@pytest.fixture
def unreached(storage: Path) -> Callable[[], AnnotateConfig]:
    """The configuration with models that nobody serves."""
    return lambda: annotation(storage, "http://127.0.0.1:9/v1", "protocol.seed=5")
