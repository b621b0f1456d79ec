"""A run with open cases, and the page on it for any number of reviewers."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from raylab.annotation.human.reviews import Reviews
from raylab.archive.store import Archive
from raylab.config.jobs import AnnotateConfig, ReviewConfig
from raylab.review.access import Access, access_of
from raylab.taxonomies import choose_codebook
from tests.archive.rows import NOON
from tests.review.browser import Browser

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
        made = config or self.config
        codebook = choose_codebook(made.protocol)
        return Reviews("systems", made, self.archive, codebook, LEASE, now=self.clock)

    def judge(self, config: AnnotateConfig | None = None) -> None:
        """Has the evaluator asked about every decision that waits and is due."""
        self.reviews(config).judge.look()

    def browser(
        self, name: str = "", reviews: Reviews | None = None, access: Access | None = None
    ) -> Browser:
        """A browser with a session of its own, of a reviewer who has signed in if one is named."""
        access = access or access_of(ReviewConfig(name="systems"))
        browser = Browser(reviews or self.reviews(), access)
        if name:
            assert browser.sign_in(name).status_code == 303
        return browser
