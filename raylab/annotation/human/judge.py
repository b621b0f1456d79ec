"""The judge of a run's pending decisions, which asks the evaluator about them in the background.

Nobody waits for it: a decision is accepted when it is archived as pending, and judged when the
evaluator answers. What cannot be judged now stays where it is, with the reason.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from raylab.annotation.archived import read_decision
from raylab.annotation.calls import ArchiveJournal
from raylab.annotation.human.confirm import confirmed, decision_row
from raylab.annotation.settings import Settings
from raylab.archive.review.pending import PendingDecision
from raylab.archive.store import Archive
from raylab.config.annotation import LlmConfig
from raylab.errors import ArchiveError, RaylabError, StoppedError
from raylab.llm.chat import Chat
from raylab.llm.client import Client
from raylab.llm.embedded import Embedded

RETRIES = 1
"""Attempts of a call after the first: a decision that still waits tells why, and is due again."""
FIRST_PAUSE = timedelta(seconds=2)
"""Time after which a decision is due again; doubles with each further failure."""
LONGEST_PAUSE = timedelta(minutes=5)
IDLE_SECONDS = 10.0
"""Time between two looks for decisions that another process has accepted."""
BUSY_SECONDS = 2.0
"""Time before the next look while nothing can be judged."""
SECONDS_TO_END = 10.0
"""For calls that are in flight when the judge ends."""
LOGGER = logging.getLogger(__name__)


class Judge:
    """The judge of a run: one for each process that accepts decisions.

    All its calls share one client. It belongs to no thread until `at_work` gives it one.

    Args:
        run: Name of the run.
        archive: Its archive.
        settings: Those of the run.
        llm: Its models.
        lease: Time for which a case whose decision is refused stays with its reviewer.
        now: Returns the time, with its zone.
        embedded: Server of the embedded model, if the run uses it.

    Attributes:
        obstacle: reason why no decision can be judged at present; empty if there is none.
    """

    def __init__(
        self,
        run: str,
        archive: Archive,
        settings: Settings,
        llm: LlmConfig,
        lease: timedelta,
        now: Callable[[], datetime],
        embedded: Embedded | None = None,
    ) -> None:
        self.obstacle = ""
        self._run = archive.run(run)
        self._archive = archive
        self._settings = settings
        self._llm = _impatient(llm)
        self._lease = lease
        self._now = now
        self._embedded = embedded
        self._ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()

    async def check(self) -> None:
        """Checks that the evaluator's key is there.

        Raises:
            ConfigError: It is not in the environment.
        """
        await self._client().close()

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Judges decisions in a thread of its own while in use."""
        started = threading.Event()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._work(started)), name="judge", daemon=True
        )
        thread.start()
        started.wait()
        try:
            yield
        finally:
            self._ending = True
            self.wake()
            thread.join()

    def wake(self) -> None:
        """Has the judge look for decisions now; any thread may call this."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def judge_due(self) -> None:
        """Judges the decisions that are due, and those that come meanwhile, until none is left.

        The caller owns the run.

        Raises:
            ConfigError: The evaluator's key is missing.
            ArchiveError: The archive fails.
        """
        judging: dict[tuple[str, int], asyncio.Task[None]] = {}
        async with self._client() as client:
            while True:
                for one in () if self._ending else self._due():
                    if (one.token, one.tries) not in judging:
                        task = asyncio.create_task(self._judge(one, client))
                        judging[one.token, one.tries] = task
                running = {task for task in judging.values() if not task.done()}
                if not running:
                    return
                if self._ending:
                    client.stop()
                    await _finish(running)
                    return
                await self._wait(running)

    async def _work(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        started.set()
        while not self._ending:
            self._woken.clear()
            pause = await self._look()
            await self._wait(timeout=pause)

    async def _look(self) -> float:
        """Judges what is due; returns the seconds until the next look."""
        try:
            waiting = self._run.pending().all()
            if not waiting:
                self.obstacle = ""
                return IDLE_SECONDS
            wait = (min(one.due for one in waiting) - self._now()).total_seconds()
            if wait > 0:
                return min(wait, IDLE_SECONDS)
            with self._run.own():
                self.obstacle = ""
                await self.judge_due()
        except RaylabError as error:
            self.obstacle = str(error)
            LOGGER.warning("decisions wait: %s", error)
        except Exception as error:
            # Whatever it is, decisions that come later must be judged.
            self.obstacle = f"{type(error).__name__}: {error}"
            LOGGER.exception("decisions wait")
        return BUSY_SECONDS

    async def _wait(
        self, running: set[asyncio.Task[None]] | None = None, timeout: float | None = None
    ) -> None:
        """Waits until the judge is woken, one of the tasks ends, or the time is over."""
        woken = asyncio.create_task(self._woken.wait())
        await asyncio.wait(
            {woken, *(running or ())}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        woken.cancel()
        self._woken.clear()

    def _due(self) -> Iterator[PendingDecision]:
        now = self._now()
        return (one for one in self._run.pending().all() if one.due <= now)

    async def _judge(self, one: PendingDecision, chat: Chat) -> None:
        """Has a decision judged and archives it, or notes why that was not possible."""
        try:
            decision = read_decision(one.body, self._settings.codebook)
            row = decision_row(await confirmed(decision, self._run, chat, self._settings))
            self._run.add_decision(row, judged=one.token, lease_until=self._now() + self._lease)
        except StoppedError:
            pass
        except RaylabError as error:
            self._postpone(one, str(error))
        except Exception as error:
            LOGGER.exception("a decision of %s could not be judged", one.reviewer)
            self._postpone(one, f"{type(error).__name__}: {error}")

    def _postpone(self, one: PendingDecision, problem: str) -> None:
        due = self._now() + min(FIRST_PAUSE * 2 ** min(one.tries, 16), LONGEST_PAUSE)
        try:
            self._run.pending().postpone(one.token, problem, one.tries + 1, due)
        except ArchiveError as error:
            LOGGER.warning("why a decision waits could not be noted: %s", error)

    def _client(self) -> Client:
        # One for each time that decisions are due: a client that gave an endpoint up does not ask
        # it again.
        journal = ArchiveJournal(self._archive, self._run.name)
        return Client(self._llm, journal, embedded=self._embedded)


async def _finish(running: set[asyncio.Task[None]]) -> None:
    """Gives calls in flight a moment to end; a decision whose call does not, goes on waiting."""
    _, late = await asyncio.wait(running, timeout=SECONDS_TO_END)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


def _impatient(llm: LlmConfig) -> LlmConfig:
    """Returns the models with fewer attempts than a run makes."""
    endpoints = {
        name: endpoint.model_copy(
            update={"limits": endpoint.limits.model_copy(update={"retries": RETRIES})}
        )
        for name, endpoint in llm.endpoints.items()
    }
    return llm.model_copy(update={"endpoints": endpoints})
