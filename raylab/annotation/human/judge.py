"""The judge of a run's pending decisions, which asks the evaluator about them in the background.

Nobody waits for it: a decision is accepted when it is archived as pending, and judged when the
evaluator answers. What cannot be judged now stays where it is, with the reason.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from raylab.annotation.calls import client_of_run
from raylab.annotation.human.confirm import confirmed, decision_row
from raylab.annotation.outcome import read_decision
from raylab.annotation.settings import Settings
from raylab.archive.review.pending import PendingDecision
from raylab.archive.store import Archive
from raylab.config.annotation import LlmConfig
from raylab.errors import ArchiveError, OwnerError, RaylabError, StoppedError
from raylab.llm.chat import Chat
from raylab.llm.client import Client
from raylab.llm.embedded import Embedded
from raylab.llm.limits import RateLimiter

DEADLINE_SECONDS = 10.0
"""Time for a call with all its attempts; a decision that waits tells why, and is due again."""
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

    All its calls share one limiter. It belongs to no thread until `at_work` gives it one.

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
        self._limiter = RateLimiter(self._llm.limits)
        self._ending = False
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._ring: Callable[[], object] | None = None
        """Wakes the event loop in which decisions are being judged; None if none are."""

    async def check(self) -> None:
        """Checks that the evaluator's key is there.

        Raises:
            ConfigError: It is not in the environment.
        """
        await self._client("").close()

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Judges decisions in a thread of its own while in use."""
        thread = threading.Thread(target=self._work, name="judge", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ending = True
            self.wake()
            thread.join()
            self._ending = False

    def wake(self) -> None:
        """Has the judge look for decisions now; any thread may call this."""
        with self._lock:
            self._woken.set()
            if self._ring is not None:
                self._ring()

    def look(self) -> float:
        """Judges the decisions that are due, if this process can own the run for that time.

        Returns:
            The seconds until the next look.
        """
        try:
            waiting = self._run.pending().all()
            if not waiting:
                self.obstacle = ""
                return IDLE_SECONDS
            wait = (min(one.due for one in waiting) - self._now()).total_seconds()
            if wait > 0:
                return min(wait, IDLE_SECONDS)
            with self._run.own() as owner:
                self.obstacle = ""
                asyncio.run(self._judge_due(owner.token))
        except OwnerError as error:
            self._hold(str(error).rpartition(": ")[0])
        except RaylabError as error:
            self._hold(str(error))
        except Exception as error:
            # Whatever it is, decisions that come later must be judged.
            LOGGER.exception("the judge failed")
            self._hold(f"{type(error).__name__}: {error}")
        return BUSY_SECONDS

    def _hold(self, obstacle: str) -> None:
        if obstacle != self.obstacle:
            LOGGER.warning("decisions wait: %s", obstacle)
        self.obstacle = obstacle

    def _work(self) -> None:
        while not self._ending:
            self._woken.clear()
            self._woken.wait(self.look())

    async def _judge_due(self, owner: str) -> None:
        """Judges the decisions that are due, and those that come meanwhile, until none is left."""
        judging: dict[tuple[str, int], asyncio.Task[None]] = {}
        async with self._client(owner) as client:
            try:
                with self._bell() as bell:
                    while not self._ending:
                        bell.clear()
                        for one in self._due():
                            if (one.token, one.tries) not in judging:
                                task = asyncio.create_task(self._judge(one, client))
                                judging[one.token, one.tries] = task
                        if not await _first_of(bell, _running(judging.values())):
                            return
            finally:
                client.stop()
                await _finish(_running(judging.values()))

    @contextmanager
    def _bell(self) -> Generator[asyncio.Event]:
        """Yields an event of this loop that is set whenever the judge is woken."""
        bell = asyncio.Event()
        loop = asyncio.get_running_loop()
        with self._lock:
            self._ring = lambda: loop.call_soon_threadsafe(bell.set)
        try:
            yield bell
        finally:
            with self._lock:
                self._ring = None

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

    def _client(self, owner: str) -> Client:
        # One for each time that decisions are due: a client that gave an endpoint up does not ask
        # it again.
        return client_of_run(
            self._llm,
            self._archive,
            self._run.name,
            owner,
            self._embedded,
            limiter=self._limiter,
        )


def _running(tasks: Iterable[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    return {task for task in tasks if not task.done()}


async def _first_of(bell: asyncio.Event, running: set[asyncio.Task[None]]) -> bool:
    """Waits for the bell or the end of a task; returns False at once if there is no task."""
    if running:
        rung = asyncio.create_task(bell.wait())
        await asyncio.wait({rung, *running}, return_when=asyncio.FIRST_COMPLETED)
        rung.cancel()
    return bool(running)


async def _finish(running: set[asyncio.Task[None]]) -> None:
    """Gives calls in flight a moment to end; a decision whose call does not, goes on waiting."""
    _, late = await asyncio.wait(running, timeout=SECONDS_TO_END) if running else ((), ())
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


def _impatient(llm: LlmConfig) -> LlmConfig:
    """Returns the models with a shorter deadline than that of a run."""
    endpoints = {
        name: endpoint.model_copy(
            update={"limits": endpoint.limits.model_copy(update={"deadline": DEADLINE_SECONDS})}
        )
        for name, endpoint in llm.endpoints.items()
    }
    return llm.model_copy(update={"endpoints": endpoints})
