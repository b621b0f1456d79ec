"""A worker that annotates cases in one process, with clients for the archive and the limits.

Calls are looked up in the archive before they are sent, answers are archived before they are read,
and a case is archived when it ends. The other side of a client may run anywhere.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Generic, Protocol, TypeVar

from raylab.annotation.calls import call_row, reply_of
from raylab.annotation.cases import Case
from raylab.annotation.inputs import CASES_PER_LOOKUP, refuse_other_description
from raylab.annotation.outcome import Outcome, Status
from raylab.annotation.protocol import annotate
from raylab.annotation.settings import protocol_settings
from raylab.annotation.sources import select_cases
from raylab.archive.records import CallRow, CaseRow
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig
from raylab.errors import RaylabError
from raylab.llm.chat import ChatRequest, Reply
from raylab.llm.client import CallEvent, Client
from raylab.llm.embedded import Embedded
from raylab.llm.rate_limits import RateLimiterClient
from raylab.llm.wire import AttemptOutcome

LOGGER = logging.getLogger(__name__)

T = TypeVar("T")

Chunk = Sequence[tuple[str, Case]]
"""Cases, each with the generation it belongs to."""


def open_cases(
    config: AnnotateConfig, codebook: Codebook, run: str, archive: Archive
) -> Iterator[tuple[str, Case]]:
    """Yields the cases that are not archived yet, each with its generation.

    Raises:
        DataError: The description of a case differs from the archived one.
    """
    cases = select_cases(config.cases, config.generations, codebook)
    while some := list(islice(cases, CASES_PER_LOOKUP)):
        archived = archive.run(run).description_hashes([case.id for _, case in some])
        for generation, case in some:
            if case.id not in archived:
                yield generation, case
            else:
                refuse_other_description(case, archived[case.id], run)


def chunks_of(cases: Iterator[tuple[str, Case]], size: int) -> Iterator[Chunk]:
    """Yields the cases in chunks of at most `size`."""
    while chunk := list(islice(cases, size)):
        yield chunk


@dataclass
class Tally:
    """Counts of ended cases and of the calls made for them.

    Attributes:
        statuses: Ended cases by status.
        halt: Error that stops the run; None while it goes on.
        sent: Calls answered by an endpoint.
        known: Calls answered by the archive.
        failures: Failed attempts by kind.
        tokens: Tokens of the calls sent, requests and replies together.
        cost: Cost of the calls sent that have a price.
    """

    statuses: Counter[str] = field(default_factory=Counter[str])
    halt: RaylabError | None = None
    sent: int = 0
    known: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    tokens: int = 0
    cost: float = 0.0

    def add(self, other: "Tally") -> None:
        """Adds the counts of another; the first halt stays."""
        self.statuses += other.statuses
        self.halt = self.halt or other.halt
        self.sent += other.sent
        self.known += other.known
        self.failures += other.failures
        self.tokens += other.tokens
        self.cost += other.cost

    def count_attempt(self, event: CallEvent) -> None:
        """Counts an attempt at a call that ended."""
        if event.outcome is not AttemptOutcome.OK:
            self.failures[event.outcome.value] += 1
            return
        self.sent += 1
        self.tokens += event.prompt_tokens + event.completion_tokens
        self.cost += event.cost or 0.0


class ArchiveClient(Protocol):
    """Access to the one writer of the archive. A row that is added twice is stored once."""

    async def add_calls(self, rows: Sequence[CallRow]) -> None:
        """Archives answered calls."""
        ...

    async def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """Returns all archived calls about these descriptions."""
        ...

    async def add_cases(self, rows: Sequence[CaseRow]) -> None:
        """Archives ended cases."""
        ...


class Meter(Protocol):
    """A receiver of the events of a worker."""

    def attempted(self, event: CallEvent) -> None:
        """Takes an ended attempt at a call."""
        ...

    def found(self, answers: int) -> None:
        """Takes the number of calls that the archive answered, 0 or more."""
        ...

    def ended(self, status: Status) -> None:
        """Takes the status of an ended case."""
        ...


class GroupedWriter(Generic[T]):
    """A writer of rows in groups: those that gather while the previous group is being written."""

    def __init__(self, write: Callable[[list[T]], Awaitable[object]]) -> None:
        """Writes with `write`, one group at a time."""
        self._write = write
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def add(self, row: T) -> None:
        """Returns when the row is durable; raises the error of writing its group."""
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


class CallCache:
    """A cache of the archived calls about the current cases; see `raylab.llm.chat.Journal`."""

    def __init__(self, archive: ArchiveClient, run: str) -> None:
        """Looks up calls in `archive` and archives new ones as those of `run`."""
        self._archive = archive
        self._run = run
        self._found = 0
        self._replies: dict[str, dict[str, Reply]] = {}
        self._users: Counter[str] = Counter()
        self._rows = GroupedWriter[CallRow](archive.add_calls)

    async def load(self, description_hashes: Sequence[str]) -> None:
        """Loads all archived calls about these descriptions."""
        self._users.update(description_hashes)
        for row in await self._archive.calls_of(sorted(set(description_hashes))):
            self._replies.setdefault(row.description_hash, {})[row.key] = reply_of(row)

    def drop(self, description_hashes: Sequence[str]) -> None:
        """Drops the calls about these descriptions, to bound memory."""
        self._users.subtract(description_hashes)
        for description_hash in description_hashes:
            if self._users[description_hash] <= 0:
                del self._users[description_hash]
                self._replies.pop(description_hash, None)

    def take_found(self) -> int:
        """Returns the number of calls answered from the cache since the last call."""
        found, self._found = self._found, 0
        return found

    async def get(self, key: str, description_hash: str) -> Reply | None:
        """See `raylab.llm.chat.Journal.get`."""
        reply = self._replies.get(description_hash, {}).get(key)
        self._found += reply is not None
        return reply

    async def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str
    ) -> None:
        """See `raylab.llm.chat.Journal.put`."""
        await self._rows.add(call_row(self._run, request, reply, description_hash, role))
        if description_hash in self._users:
            self._replies.setdefault(description_hash, {})[reply.key] = reply


class Worker:
    """An annotator of cases, many at a time, in one event loop."""

    def __init__(
        self,
        config: AnnotateConfig,
        codebook: Codebook,
        run: str,
        archive: ArchiveClient,
        meter: Meter,
        limiter: RateLimiterClient | None = None,
        embedded: Embedded | None = None,
    ) -> None:
        """Opens the connections.

        Args:
            config: Configuration of the run, with this worker's share of the calls in flight.
            codebook: Codebook of the classification.
            run: Name of the run.
            archive: Archive of calls and cases.
            meter: Receiver of the counts.
            limiter: Limits that all workers share; None if there are none.
            embedded: Address of the embedded model, if it is used.

        Raises:
            ConfigError: A key is not in the environment.
        """
        self._settings = protocol_settings(config, run, codebook)
        self._meter = meter
        self._tally = Tally()
        self._cache = CallCache(archive, run)
        self._rows = GroupedWriter[CaseRow](archive.add_cases)
        self._client = Client(config.llm, self._cache, limiter, embedded, self._count)

    async def annotate(self, chunk: Chunk) -> Tally:
        """Annotates cases concurrently; returns the counts since the last call."""
        hashes = [case.description_hash for _, case in chunk]
        ends: list[Status | RaylabError]
        try:
            await self._cache.load(hashes)
            ends = await asyncio.gather(*(self._end(*item) for item in chunk))
        except RaylabError as error:
            ends = [error]
        finally:
            self._cache.drop(hashes)
        return self._take_tally(ends)

    def stop(self) -> None:
        """Sends no further call; those in flight are finished and archived."""
        self._client.stop()

    async def _end(self, generation: str, case: Case) -> Status | RaylabError:
        """Returns the status of an ended case, or the error that stops the run before its end."""
        try:
            outcome = await annotate(case, self._client, self._settings, generation)
        except RaylabError as error:
            return error
        except Exception as error:
            LOGGER.exception("case %s", case.id)
            reason = f"a fault of raylab: {type(error).__name__}: {error}"
            outcome = failed_outcome(case, generation, reason)
        await self._rows.add(case_row(case, outcome))
        self._meter.ended(outcome.status)
        return outcome.status

    def _count(self, event: CallEvent) -> None:
        self._tally.count_attempt(event)
        self._meter.attempted(event)

    def _take_tally(self, ends: Sequence[Status | RaylabError]) -> Tally:
        tally, self._tally = self._tally, Tally()
        tally.known = self._cache.take_found()
        self._meter.found(tally.known)
        for end in ends:
            if isinstance(end, RaylabError):
                tally.halt = tally.halt or end
            else:
                tally.statuses[end.value] += 1
        return tally


def case_row(case: Case, outcome: Outcome) -> CaseRow:
    """Returns the archived form of an ended case."""
    body = outcome.model_dump(mode="json")
    return CaseRow(case.id, case.description_hash, case.description, outcome.status.value, body)


def failed_outcome(case: Case, generation: str, reason: str) -> Outcome:
    """Returns the outcome of a case that a fault ended outside of the protocol."""
    now = datetime.now(UTC)
    return Outcome(
        case=case.id,
        description_hash=case.description_hash,
        generation=generation,
        gold=case.gold,
        gold_label=case.gold_label,
        trap=case.trap,
        meta=dict(case.meta),
        status=Status.FAILED,
        reason=reason,
        path=("failed:process",),
        label=None,
        started=now,
        finished=now,
    )
