"""A worker that annotates cases in one process, with clients for the archive and the limits.

Calls are looked up in the archive before they are sent, answers are archived before they are read,
and a case is archived when it ends. The other side of a client may run anywhere.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from raylab.core.errors import CallError, DeadlineError, RaylabError
from raylab.label.archive.records import CaseRow
from raylab.label.config.jobs import LlmConfig
from raylab.label.input.cases import Case
from raylab.label.protocol.calls import ArchiveClient, CallJournal, GroupedWriter, RunWriter
from raylab.label.protocol.decisions import DecidedCase, confirm_decision
from raylab.label.protocol.outcome import Outcome, Status
from raylab.label.protocol.protocol import annotate
from raylab.label.protocol.settings import Settings
from raylab.llm.chat import Reply
from raylab.llm.client import Client
from raylab.llm.connection import Timing
from raylab.llm.endpoints import EndpointAccess
from raylab.llm.limits import RateLimiterClient, Share
from raylab.llm.wire import Failure

LOGGER = logging.getLogger(__name__)

Chunk = Sequence[tuple[str, Case]]
"""Cases, each with the generation it belongs to."""


def chunks_of(cases: Iterator[tuple[str, Case]], size: int) -> Iterator[Chunk]:
    """Yields the cases in chunks of at most `size`."""
    while chunk := list(islice(cases, size)):
        yield chunk


@dataclass
class Tally:
    """Counts of ended cases and of the calls made for them.

    Attributes:
        statuses: Ended cases by status.
        open_cases: Why cases stay open that the run tries again when it is resumed, a reason each.
        halt: Error that stops the run; None while it goes on.
        sent: Calls answered by an endpoint.
        answered: Calls answered by the archive.
        failures: Failed attempts by kind.
        tokens: Tokens of the calls sent, requests and replies together.
        cost: Cost of the calls sent that have a price.
        concurrency: Calls that each worker may have in flight now, by its number.
        batches: Batches that each worker waits for, by its number, as their time of creation in
            seconds since the epoch and their number of calls.
    """

    statuses: Counter[str] = field(default_factory=Counter[str])
    open_cases: list[str] = field(default_factory=list[str])
    halt: RaylabError | None = None
    sent: int = 0
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    tokens: int = 0
    cost: float = 0.0
    concurrency: dict[int, int] = field(default_factory=dict[int, int])
    batches: dict[int, list[tuple[float, int]]] = field(
        default_factory=dict[int, list[tuple[float, int]]]
    )

    def add(self, other: "Tally") -> None:
        """Adds the counts of another; the first halt stays."""
        self.statuses += other.statuses
        self.open_cases += other.open_cases
        self.halt = self.halt or other.halt
        self.sent += other.sent
        self.answered += other.answered
        self.failures += other.failures
        self.tokens += other.tokens
        self.cost += other.cost
        self.concurrency |= other.concurrency
        self.batches |= other.batches


class Worker:
    """An annotator of cases, many at a time, in one event loop."""

    def __init__(
        self,
        llm: LlmConfig,
        settings: Settings,
        run: str,
        archive: ArchiveClient,
        limiter: RateLimiterClient | None = None,
        embedded: EndpointAccess | None = None,
        timing: Timing | None = None,
        share: Share | None = None,
    ) -> None:
        """Opens the connections.

        Args:
            limiter: Limits that all workers share; None if there are none.
            share: The share of this worker in the calls in flight; None is all of them.
        """
        self._settings, self._archive, self._share = settings, archive, share or Share()
        self._tally = Tally()
        self._journal = CallJournal(archive, run, llm.budget)
        self._rows = GroupedWriter[CaseRow, None](
            lambda rows: archive.ask(RunWriter.add_cases, rows)
        )
        self._client = Client(
            llm, self._journal, limiter, embedded, self._count, timing, self._share
        )

    def _count(self, result: Reply | Failure) -> None:
        """Counts an attempt at a call that ended."""
        tally = self._tally
        if isinstance(result, Failure):
            tally.failures[result.outcome.value] += 1
        else:
            tally.sent += 1
            tally.tokens += result.prompt_tokens + result.completion_tokens
            tally.cost += result.cost or 0.0

    async def annotate(self, chunk: Chunk) -> Tally:
        """Annotates cases concurrently; returns the counts since the last call when all ended."""
        keys: list[str] = []
        ends: list[Status | str | RaylabError]
        try:
            keys = await self._journal.load(case.description_hash for _, case in chunk)
            ends = await asyncio.gather(*(self._end(*item) for item in chunk))
        except RaylabError as error:
            ends = [error]
        finally:
            # Memory holds the calls of the cases under way alone.
            self._journal.drop(keys)
        tally = self.take_counts()
        for end in ends:
            if isinstance(end, RaylabError):
                tally.halt = tally.halt or end
            elif isinstance(end, Status):
                tally.statuses[end.value] += 1
            else:
                tally.open_cases.append(end)
        return tally

    def take_counts(self) -> Tally:
        """Returns the counts of calls since the last time; `annotate` adds those of cases."""
        tally, self._tally = self._tally, Tally()
        tally.answered = self._journal.take_count()
        tally.concurrency[self._share.number] = self._client.concurrency
        tally.batches[self._share.number] = [
            (batch.created.timestamp(), len(batch.calls)) for batch in self._client.batches
        ]
        return tally

    def stop(self) -> None:
        """Sends no further call; those in flight are finished and archived."""
        self._client.stop()

    async def close(self) -> None:
        """Closes the connections; no case may be under way."""
        await self._client.close()

    async def _end(self, generation: str, case: Case) -> Status | str | RaylabError:
        """Returns the status of an ended case, or why it stays open, or what stops the run."""
        try:
            if isinstance(case, DecidedCase):
                row = await confirm_decision(case, self._client, self._settings)
                await self._store(self._archive.ask(RunWriter.confirm, case.place, row))
                return Status(row.status)
            outcome = await annotate(case, self._client, self._settings, generation)
            await self._store(self._rows.add(case_row(case, outcome)))
            return outcome.status
        except (CallError, DeadlineError) as error:
            return f"{case.id}: {error}"
        except RaylabError as error:
            return error
        except Exception as error:
            # One case that raylab fails at must not end the other cases of the chunk.
            LOGGER.exception("case %s", case.id)
            return f"{case.id}: a fault of raylab: {type(error).__name__}: {error}"

    async def _store(self, written: Awaitable[None]) -> None:
        """Waits for a write; if it fails, sends no further call."""
        try:
            await written
        except RaylabError:
            # What other cases still pay for could not be archived either.
            self.stop()
            raise


def case_row(case: Case, outcome: Outcome) -> CaseRow:
    """Returns the archived form of an ended case."""
    body = outcome.model_dump(mode="json")
    return CaseRow(case.id, case.description_hash, case.description, outcome.status.value, body)
