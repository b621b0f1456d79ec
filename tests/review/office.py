"""A run with open cases, and the page on it for any number of reviewers."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from raylab.annotation.decisions import confirm_decision, unconfirmed_cases
from raylab.annotation.outcome import HumanDecision, read_decision
from raylab.annotation.reviews import Reviews
from raylab.annotation.settings import protocol_settings
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.config.jobs import AnnotateConfig, ReviewConfig
from raylab.review.access import Access, access_of
from tests.annotation.local import client_of_run
from tests.annotation.outcomes import CODEBOOK
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

    @property
    def run(self) -> RunArchive:
        return self.archive.run("systems")

    def reviews(self) -> Reviews:
        return Reviews(self.run, CODEBOOK, self.config.protocol.seed, LEASE, now=self.clock)

    def decisions(self) -> list[HumanDecision]:
        return [read_decision(row.body, CODEBOOK) for row in self.run.decisions()]

    def statuses(self) -> list[str]:
        """The statuses of the decisions, in the order in which they were archived."""
        return [row.status for row in self.run.decisions()]

    def held(self) -> dict[int, str]:
        """Who works on which case."""
        leases = self.run.reviews().leases(self.clock())
        return {case: lease.reviewer for case, lease in leases.items()}

    def judge(self) -> None:
        """Has the evaluator judge every decision that waits, as a resumed run does."""
        asyncio.run(self._judge())

    async def _judge(self) -> None:
        settings = protocol_settings(self.config, "systems", CODEBOOK)
        with self.run.own() as owner:
            async with client_of_run(
                self.config.llm, self.archive, "systems", owner.token
            ) as client:
                for _, case in unconfirmed_cases(self.run, CODEBOOK):
                    row = await confirm_decision(case, client, settings)
                    assert self.run.reviews().confirm(case.place, row)

    def browser(
        self, name: str = "", reviews: Reviews | None = None, access: Access | None = None
    ) -> Browser:
        """A browser with a session of its own, of a reviewer who has signed in if one is named."""
        access = access or access_of(ReviewConfig(name="systems"))
        browser = Browser(reviews or self.reviews(), access)
        if name:
            assert browser.sign_in(name).status_code == 303
        return browser
