"""The actors of an annotation: those that run cases, and the one that writes the archive."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayTaskError

from raylab.annotation.calls import call_row, reply_of
from raylab.annotation.cases import Case
from raylab.annotation.outcome import Outcome, Status
from raylab.annotation.protocol import annotate
from raylab.annotation.settings import protocol_settings
from raylab.archive.records import CallRow, CaseRow
from raylab.archive.store import Archive
from raylab.cluster.metrics import ATTEMPTS, CASES, COST, KNOWN, SECONDS, TOKENS, Meters
from raylab.config.jobs import AnnotateConfig
from raylab.errors import RaylabError
from raylab.llm.chat import ChatRequest, Reply
from raylab.llm.client import CallEvent, Client
from raylab.llm.embedded import Embedded
from raylab.llm.rate_limits import Permit, RateLimiter, Spend
from raylab.llm.wire import AttemptOutcome
from raylab.taxonomies import choose_codebook

logger = logging.getLogger(__name__)

T = TypeVar("T")

SERVER_SECONDS = 60.0
"""For which a database server is waited for that is starting anew."""
Chunk = Sequence[tuple[str, Case]]
"""Cases, each with the generation it belongs to."""


@dataclass
class Tally:
    """What became of some cases, and what their actor did since it last told.

    Attributes:
        statuses: cases that ended, by status.
        halt: why the run must stop; None while it goes on.
        sent: calls that were answered by an endpoint.
        known: calls that were answered from the archive.
        failures: attempts that failed, by kind.
        tokens: of the calls sent, both ways.
        cost: of the calls sent that have a price.
    """

    statuses: Counter[str] = field(default_factory=Counter[str])
    halt: RaylabError | None = None
    sent: int = 0
    known: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    tokens: int = 0
    cost: float = 0.0

    def add(self, other: "Tally") -> None:
        """Take over the counts of another; the first halt stays."""
        self.statuses += other.statuses
        self.halt = self.halt or other.halt
        self.sent += other.sent
        self.known += other.known
        self.failures += other.failures
        self.tokens += other.tokens
        self.cost += other.cost


class ArchiveWriter:
    """The one process that writes the archive. What it is told twice it keeps once."""

    def __init__(self, location: str) -> None:
        self._archive = Archive.open(location, wait=SERVER_SECONDS)

    def add_calls(self, rows: Sequence[CallRow]) -> None:
        self._archive.add_calls(rows)

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        return self._archive.calls_of(description_hashes)

    def add_cases(self, run: str, rows: Sequence[CaseRow]) -> None:
        self._archive.add_cases(run, rows)

    def known(self, run: str, cases: Sequence[str]) -> dict[str, str]:
        return self._archive.known(run, cases)


class RateLimiterActor(RateLimiter):
    """The limits of a run, in a process of their own; started anew, they know what was spent."""

    def __init__(self, settings: dict[str, Any], run: str, location: str) -> None:
        llm = AnnotateConfig.model_validate(settings).llm
        limits = {name: endpoint.limits for name, endpoint in llm.endpoints.items()}
        with Archive.open(location, wait=SERVER_SECONDS) as archive:
            spent = archive.spent(run)
        tokens = spent.prompt_tokens + spent.completion_tokens
        super().__init__(limits, llm.budget, Spend(tokens, spent.cost))


class _RemoteRateLimiter:
    """The way to the limiter from an actor; see `raylab.llm.rate_limits.RateLimiterClient`."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter

    async def reserve(self, endpoint: str, tokens: int, cost: float) -> Permit:
        return await self._limiter.reserve.remote(endpoint, tokens, cost)

    async def settle(self, number: int, tokens: int | None, cost: float) -> None:
        await self._limiter.settle.remote(number, tokens, cost)

    async def penalise(self, endpoint: str, seconds: float) -> None:
        await self._limiter.penalise.remote(endpoint, seconds)


class _Grouped(Generic[T]):
    """Writes rows in groups: whatever gathers while the group before is being written."""

    def __init__(self, write: Callable[[list[T]], Awaitable[object]]) -> None:
        self._write = write
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def add(self, row: T) -> None:
        """Return when the row is durable."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((row, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._drain())
        await written

    async def _drain(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            error: Exception | None = None
            try:
                await self._write([row for row, _ in group])
            except Exception as caught:
                error = caught
            for _, written in group:
                if written.done():
                    continue
                if error is None:
                    written.set_result(None)
                else:
                    written.set_exception(error)


class _Journal:
    """The calls of the archive that concern the cases at hand; see `raylab.llm.chat.Journal`."""

    def __init__(self, writer: Any, run: str) -> None:
        self.found = 0
        self._writer = writer
        self._run = run
        self._replies: dict[str, dict[str, Reply]] = {}
        self._users: Counter[str] = Counter()
        self._rows = _Grouped[CallRow](lambda rows: writer.add_calls.remote(rows))

    async def load(self, description_hashes: Sequence[str]) -> None:
        """Look up what was ever answered about these texts."""
        self._users.update(description_hashes)
        rows: list[CallRow] = await self._writer.calls_of.remote(sorted(set(description_hashes)))
        for row in rows:
            self._replies.setdefault(row.description_hash, {})[row.key] = reply_of(row)

    def drop(self, description_hashes: Sequence[str]) -> None:
        """Forget them again, so that memory does not grow with the cases."""
        self._users.subtract(description_hashes)
        for description_hash in description_hashes:
            if self._users[description_hash] <= 0:
                del self._users[description_hash]
                self._replies.pop(description_hash, None)

    async def get(self, key: str, description_hash: str) -> Reply | None:
        reply = self._replies.get(description_hash, {}).get(key)
        self.found += reply is not None
        return reply

    async def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str
    ) -> None:
        try:
            await self._rows.add(call_row(self._run, request, reply, description_hash, role))
        except RayTaskError as error:
            raise _halt(error) from None
        if description_hash in self._users:
            self._replies.setdefault(description_hash, {})[reply.key] = reply


class _Counts:
    """Counts what an actor does, for Ray's metrics and for its next tally."""

    def __init__(self, run: str) -> None:
        self._tally = Tally()
        self._meters = Meters(run)

    def attempt(self, event: CallEvent) -> None:
        where = {"endpoint": event.endpoint, "model": event.model}
        self._meters.add(ATTEMPTS, **where, outcome=event.outcome.value)
        self._meters.observe(SECONDS, event.seconds, **where)
        if event.outcome is not AttemptOutcome.OK:
            self._tally.failures[event.outcome.value] += 1
            return
        cost = event.cost or 0.0
        self._tally.sent += 1
        self._tally.tokens += event.prompt_tokens + event.completion_tokens
        self._tally.cost += cost
        self._meters.add(TOKENS, event.prompt_tokens, **where, direction="prompt")
        self._meters.add(TOKENS, event.completion_tokens, **where, direction="reply")
        self._meters.add(COST, cost, **where)

    def case(self, outcome: Outcome) -> None:
        self._meters.add(CASES, status=outcome.status.value)

    def known(self, answers: int) -> None:
        self._tally.known += answers
        self._meters.add(KNOWN, answers)

    def take(self) -> Tally:
        """What was counted since this was last called."""
        taken, self._tally = self._tally, Tally()
        return taken


class Annotator:
    """Runs cases, many at a time, in a process of its own."""

    def __init__(
        self,
        settings: dict[str, Any],
        run: str,
        writer: str,
        limiter: str | None,
        embedded: Embedded | None,
    ) -> None:
        """Take a share of the run's calls.

        Args:
            settings: the configuration as JSON values, with this actor's part of the calls in
                flight.
            run: name of the run.
            writer: name of the actor that writes the archive.
            limiter: name of the actor that holds rates and budget; None where there are none.
            embedded: where the embedded model is served, if it is used.
        """
        config = AnnotateConfig.model_validate(settings)
        archive = ray.get_actor(writer)
        limiter = None if limiter is None else _RemoteRateLimiter(ray.get_actor(limiter))
        self._counts = _Counts(run)
        self._journal = _Journal(archive, run)
        self._rows = _Grouped[CaseRow](lambda rows: archive.add_cases.remote(run, rows))
        self._refusal: RaylabError | None = None
        try:
            self._settings = protocol_settings(config, run, choose_codebook(config.protocol))
            self._client = Client(
                config.llm, self._journal, limiter, embedded, self._counts.attempt
            )
        except RaylabError as error:
            # Raised here, it would be taken for a death of the process; the first chunk tells it.
            self._refusal = error

    async def annotate(self, chunk: Chunk) -> Tally:
        """Run cases side by side; each is archived when it has ended."""
        if self._refusal is not None:
            return Tally(halt=self._refusal)
        description_hashes = [case.description_hash for _, case in chunk]
        try:
            await self._journal.load(description_hashes)
            ends = await asyncio.gather(*(self._end(*item) for item in chunk))
        except RayTaskError as error:
            ends = [_halt(error)]
        finally:
            self._journal.drop(description_hashes)
        known, self._journal.found = self._journal.found, 0
        self._counts.known(known)
        tally = self._counts.take()
        for end in ends:
            if isinstance(end, RaylabError):
                tally.halt = tally.halt or end
            else:
                tally.statuses[end.value] += 1
        return tally

    async def stop(self) -> None:
        """Send no further call; those in flight are finished and archived."""
        if self._refusal is None:
            self._client.stop()

    async def _end(self, generation: str, case: Case) -> Status | RaylabError:
        """How a case ended, or why the run must stop before it has."""
        try:
            outcome = await annotate(case, self._client, self._settings, generation)
        except RaylabError as error:
            return error
        except RayTaskError as error:
            return _halt(error)
        except Exception as error:
            logger.exception("case %s", case.id)
            outcome = failed(
                case, generation, f"a fault of raylab: {type(error).__name__}: {error}"
            )
        await self._rows.add(case_row(case, outcome))
        self._counts.case(outcome)
        return outcome.status


def case_row(case: Case, outcome: Outcome) -> CaseRow:
    """The row of the archive that a case ends as."""
    body = outcome.model_dump(mode="json")
    return CaseRow(case.id, case.description_hash, case.description, outcome.status.value, body)


def failed(case: Case, generation: str, reason: str) -> Outcome:
    """The end of a case that the protocol did not come to an end with."""
    now = datetime.now(UTC)
    return Outcome(
        case=case.id,
        description_hash=case.description_hash,
        generation=generation,
        gold=case.gold,
        trap=case.trap,
        meta=dict(case.meta),
        status=Status.FAILED,
        reason=reason,
        path=("failed:process",),
        label=None,
        started=now,
        finished=now,
    )


def _halt(error: RayTaskError) -> RaylabError:
    """Why an actor that was asked has no answer, if it is something a user can act on."""
    if isinstance(error.cause, RaylabError):
        return error.cause
    raise error
