"""The archive as a journal of calls; see `raylab.llm.chat.Journal`."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Generic, Protocol, TypeVar

from raylab.archive.attempts import AnswerRow, CallOperation, CallResults, ClaimRow, EndRow
from raylab.archive.records import CallRow
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.config.annotation import LlmConfig
from raylab.errors import OwnerError
from raylab.llm.chat import ChatRequest, Claim, Reply, Reservation
from raylab.llm.client import Client
from raylab.llm.connection import Timing
from raylab.llm.embedded import Embedded
from raylab.llm.rate_limits import LocalRateLimiter, RateLimiter, Spend

T = TypeVar("T")
R = TypeVar("R")


class CallArchive(Protocol):
    """Access to the calls of a run in the archive, as its owner."""

    async def write_calls(self, operations: Sequence[CallOperation]) -> CallResults:
        """Claims, stores and ends calls; see `raylab.archive.attempts.RunCalls.write`."""
        ...

    async def void_claims(self) -> None:
        """Voids what an earlier process had claimed under the same name."""
        ...

    async def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """Returns all archived calls about these descriptions."""
        ...


class GroupedWriter(Generic[T, R]):
    """A writer of rows in groups: those that gather while the previous group is being written."""

    def __init__(self, write: Callable[[list[T]], Awaitable[R]]) -> None:
        """Writes with `write`, one group at a time."""
        self._write = write
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._writer: asyncio.Task[None] | None = None

    def leave(self, row: T) -> None:
        """Queues a row for whose end nobody waits."""
        self.add(row).add_done_callback(lambda written: written.exception())

    def add(self, row: T) -> asyncio.Future[R]:
        """Queues a row; returns what writing its group returns or raises, when it is durable."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((row, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._drain())
        return written

    async def _drain(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            waiting = [written for _, written in group]
            try:
                result = await self._write([row for row, _ in group])
            except Exception as error:
                for written in waiting:
                    if not written.done():
                        written.set_exception(error)
            else:
                for written in waiting:
                    if not written.done():
                        written.set_result(result)


class CallWriter:
    """The writing half of a journal: claims calls, stores their answers, and ends them."""

    def __init__(self, archive: CallArchive, run: str) -> None:
        """Writes the calls of `run`."""
        self._run = run
        self._operations = GroupedWriter[CallOperation, CallResults](archive.write_calls)
        self._name = secrets.token_hex(16)
        self._numbers = count(1)

    async def claim(
        self, key: str, request: ChatRequest, description_hash: str, most: Reservation
    ) -> Claim | Reply | None:
        """See `raylab.llm.chat.Journal`."""
        claim = Claim(f"{self._name}-{next(self._numbers)}")
        row = ClaimRow(claim.id, key, request.base_url, request.model, **vars(most))
        try:
            results = await self._operations.add(row)
        except asyncio.CancelledError:
            self._operations.leave(EndRow(claim.id, paid=False))
            raise
        if results.lost:
            raise OwnerError(
                f"run {self._run} was taken over by another process, because this one gave no sign "
                "of life in time: no further call is sent; resume=true goes on when the other ends"
            )
        if claim.id not in results.refused:
            return claim
        known = results.refused[claim.id]
        return None if known is None else reply_of(known)

    def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str, claim: Claim
    ) -> asyncio.Future[CallResults]:
        """See `raylab.llm.chat.Journal`."""
        row = call_row(self._run, request, reply, description_hash, role)
        return self._operations.add(AnswerRow(row, claim.id))

    async def end(self, claim: Claim, paid: bool) -> None:
        """See `raylab.llm.chat.Journal`."""
        await self._operations.add(EndRow(claim.id, paid))


class CallCache(CallWriter):
    """A journal with a cache of the archived calls about the current cases."""

    def __init__(self, archive: CallArchive, run: str) -> None:
        """Looks up calls in `archive` and archives new ones as those of `run`."""
        super().__init__(archive, run)
        self._archive = archive
        self._begun = asyncio.Lock()
        self._voided = False
        self._found = 0
        self._replies: dict[str, dict[str, Reply]] = {}
        self._users: Counter[str] = Counter()

    async def load(self, description_hashes: Sequence[str]) -> None:
        """Loads all archived calls about these descriptions."""
        async with self._begun:
            if not self._voided:
                await self._archive.void_claims()
                self._voided = True
        self._users.update(description_hashes)
        for row in await self._archive.calls_of(sorted(set(description_hashes))):
            self._remember(row.description_hash, reply_of(row))

    def drop(self, description_hashes: Sequence[str]) -> None:
        """Drops the calls about these descriptions, to bound memory."""
        self._users.subtract(description_hashes)
        for description_hash in description_hashes:
            if self._users[description_hash] <= 0:
                del self._users[description_hash]
                self._replies.pop(description_hash, None)

    def take_found(self) -> int:
        """Returns the number of calls answered from the archive since the last call."""
        found, self._found = self._found, 0
        return found

    async def get(self, key: str, description_hash: str) -> Reply | None:
        """See `raylab.llm.chat.Journal`."""
        reply = self._replies.get(description_hash, {}).get(key)
        self._found += reply is not None
        return reply

    async def claim(
        self, key: str, request: ChatRequest, description_hash: str, most: Reservation
    ) -> Claim | Reply | None:
        """See `raylab.llm.chat.Journal`."""
        claim = await super().claim(key, request, description_hash, most)
        if isinstance(claim, Reply):
            self._found += 1
            self._remember(description_hash, claim)
        return claim

    def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str, claim: Claim
    ) -> asyncio.Future[CallResults]:
        """See `raylab.llm.chat.Journal`."""

        def remember(stored: asyncio.Future[CallResults]) -> None:
            if not stored.cancelled() and stored.exception() is None:
                self._remember(description_hash, reply)

        stored = super().put(request, reply, description_hash, role, claim)
        stored.add_done_callback(remember)
        return stored

    def _remember(self, description_hash: str, reply: Reply) -> None:
        if description_hash in self._users:
            self._replies.setdefault(description_hash, {})[reply.key] = reply


class ArchiveJournal(CallWriter):
    """A journal in an archive that this process has open."""

    def __init__(self, archive: Archive, run: str, owner: str) -> None:
        """Looks up calls of any run in `archive` and stores new ones as those of `run`.

        Args:
            archive: The archive.
            run: Name of the run.
            owner: Token of the run's ownership by this process.
        """
        super().__init__(LocalCalls(archive, run, owner), run)
        self._opened = archive

    async def get(self, key: str, description_hash: str) -> Reply | None:
        """See `raylab.llm.chat.Journal`."""
        row = self._opened.call(key)
        return None if row is None else reply_of(row)


class LocalCalls:
    """The calls of a run in an archive that this process has open; see `CallArchive`."""

    def __init__(self, archive: Archive, run: str, owner: str, claimant: str = "") -> None:
        """Writes as the owner of a token; `claimant` names this process among those of the owner.

        Raises:
            ArchiveError: The archive has no such run, or fails.
        """
        self._archive = archive
        self._calls = archive.run(run).calls(owner)
        self._claimant = claimant

    async def write_calls(self, operations: Sequence[CallOperation]) -> CallResults:
        """See `CallArchive`."""
        return self._calls.write(operations, self._claimant)

    async def void_claims(self) -> None:
        """See `CallArchive`."""
        self._calls.void(self._claimant)

    async def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """See `CallArchive`."""
        return self._archive.calls_of(description_hashes)


def spent_by(run: RunArchive) -> Spend:
    """Returns what a run has paid, or may have paid, for the attempts that have ended."""
    cost = run.cost(in_flight=False)
    return Spend(cost.prompt_tokens + cost.completion_tokens, cost.cost)


def client_of_run(
    llm: LlmConfig,
    archive: Archive,
    run: str,
    owner: str,
    embedded: Embedded | None = None,
    timing: Timing | None = None,
    limiter: RateLimiter | None = None,
) -> Client:
    """Returns a client of this process alone, which shares limits and budget with nobody.

    Args:
        llm: Endpoints, prices and budget of the run.
        archive: Archive of the run.
        run: Name of the run.
        owner: Token of the run's ownership by this process.
        embedded: Server of the embedded model, if the run uses it.
        timing: Clocks; None takes the system's.
        limiter: That of an earlier client of the run, so that its last minute counts.

    Raises:
        ConfigError: A key is not in the environment, or the embedded model is not served.
        ArchiveError: The archive fails, or has no such run.
    """
    if limiter is None:
        limiter = RateLimiter(llm.limits, llm.budget, clock=(timing or Timing()).clock)
    limiter.resume(spent_by(archive.run(run)))
    journal = ArchiveJournal(archive, run, owner)
    return Client(llm, journal, LocalRateLimiter(limiter), embedded, timing=timing)


def reply_of(row: CallRow) -> Reply:
    """Returns the reply to an archived call."""
    return Reply(
        key=row.key,
        text=row.text,
        response_model=row.response_model,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cost=row.cost,
        seconds=row.seconds,
        attempts=row.attempts,
        cached=True,
    )


def call_row(
    run: str, request: ChatRequest, reply: Reply, description_hash: str, role: str
) -> CallRow:
    """Returns the archived form of a call of `run` that was answered just now."""
    return CallRow(
        key=reply.key,
        description_hash=description_hash,
        run=run,
        role=role,
        endpoint=request.base_url,
        model=request.model,
        response_model=reply.response_model,
        seed=request.seed,
        parameters=request.parameters,
        text=reply.text,
        finish_reason=reply.finish_reason,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cost=reply.cost,
        seconds=reply.seconds,
        attempts=reply.attempts,
        created=datetime.now(UTC),
    )
