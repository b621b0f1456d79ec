"""The archive as a journal of calls; see `raylab.llm.chat.Journal`."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Generic, Protocol, TypeVar

from raylab.archive.ledger import (
    AnswerRow,
    CallOperation,
    CallResults,
    ClaimRow,
    EndRow,
    Overspent,
)
from raylab.archive.records import CallRow, CaseRow, DecisionRow
from raylab.archive.store import Archive
from raylab.config.llm import Budget, Lane
from raylab.errors import BudgetError, OwnerError
from raylab.llm.chat import ChatRequest, Claim, Reply, Reservation

T = TypeVar("T")
R = TypeVar("R")


class ArchiveClient(Protocol):
    """Access to the one writer of a run's archive. What is written twice is stored once."""

    async def write_calls(self, operations: Sequence[CallOperation]) -> CallResults:
        """Claims, stores and ends calls; see `raylab.archive.ledger.Ledger.write`."""
        ...

    async def void_claims(self) -> None:
        """Ends what an earlier process had claimed under the same name."""
        ...

    async def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """Returns all answered calls about these descriptions."""
        ...

    async def add_cases(self, rows: Sequence[CaseRow]) -> None:
        """Archives ended cases."""
        ...

    async def confirm(self, sequence: int, row: DecisionRow) -> None:
        """Archives the evaluator's report on the decision of this sequence."""
        ...


class ArchiveWriter:
    """The one writer of the archive of a run; clients reach it through an `ArchiveClient` each."""

    def __init__(self, archive: Archive, run: str, owner: str, budget: Budget) -> None:
        """Writes the cases and calls of `run` within a budget, as the owner of this token.

        Raises:
            ArchiveError: The archive has no such run, or fails.
        """
        self._archive = archive
        self._run = archive.run(run)
        self._ledger = self._run.ledger(owner, budget)

    def write_calls(self, operations: Sequence[CallOperation], claimant: str) -> CallResults:
        """See `ArchiveClient`; `claimant` is the name of the client."""
        return self._ledger.write(operations, claimant)

    def void_claims(self, claimant: str) -> None:
        """See `ArchiveClient`."""
        self._ledger.void(claimant)

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """See `ArchiveClient`."""
        return self._archive.calls_of(description_hashes)

    def add_cases(self, rows: Sequence[CaseRow]) -> None:
        """See `ArchiveClient`."""
        self._run.add_cases(rows)

    def confirm(self, sequence: int, row: DecisionRow) -> None:
        """See `ArchiveClient`."""
        self._run.reviews().confirm(sequence, row)

    def known(self, cases: Sequence[str]) -> dict[str, str]:
        """Returns the status of each of these cases that is archived."""
        return self._run.statuses(cases)


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


class CallJournal:
    """The journal of a run's calls in its archive; see `raylab.llm.chat.Journal`.

    It keeps the answered calls about the descriptions that are loaded, and looks up the others.
    """

    def __init__(self, archive: ArchiveClient, run: str, budget: Budget) -> None:
        """Looks up and writes calls of `run` in `archive`; `budget` is named in errors."""
        self._archive = archive
        self._run = run
        self._budget = budget
        self._operations = GroupedWriter[CallOperation, CallResults](archive.write_calls)
        self._name = secrets.token_hex(16)
        self._numbers = count(1)
        self._begun = asyncio.Lock()
        self._voided = False
        self._found = 0
        self._replies: dict[str, dict[str, Reply]] = {}
        self._users: Counter[str] = Counter()

    async def load(self, description_hashes: Sequence[str]) -> None:
        """Loads all answered calls about these descriptions."""
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
        if description_hash in self._users:
            reply = self._replies.get(description_hash, {}).get(key)
        else:
            rows = await self._archive.calls_of([description_hash])
            reply = next((reply_of(row) for row in rows if row.key == key), None)
        self._found += reply is not None
        return reply

    async def claim(
        self, key: str, request: ChatRequest, description_hash: str, most: Reservation
    ) -> Claim | Reply | None:
        """See `raylab.llm.chat.Journal`."""
        claim = Claim(f"{self._name}-{next(self._numbers)}", key)
        row = ClaimRow(key, claim.id, most.prompt_tokens, most.completion_tokens, most.cost)
        try:
            results = await self._operations.add(row)
        except asyncio.CancelledError:
            self._operations.leave(EndRow(key, claim.id, paid=False))
            raise
        self._require(claim, results)
        if claim.id not in results.refused:
            return claim
        reason = results.refused[claim.id]
        if isinstance(reason, Overspent):
            raise self._overspent(reason, row)
        if reason is None:
            return None
        self._found += 1
        reply = reply_of(reason)
        self._remember(description_hash, reply)
        return reply

    def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str, claim: Claim
    ) -> Awaitable[None]:
        """See `raylab.llm.chat.Journal`."""
        row = call_row(request, reply, description_hash, role)
        # Queued at once, so that a claim that is asked for later is granted later.
        written = self._operations.add(AnswerRow(row, claim.id))
        return asyncio.create_task(self._stored(written, row, claim))

    async def end(self, claim: Claim, paid: bool) -> None:
        """See `raylab.llm.chat.Journal`."""
        await self._operations.add(EndRow(claim.key, claim.id, paid))

    async def _stored(
        self, written: asyncio.Future[CallResults], row: CallRow, claim: Claim
    ) -> None:
        self._require(claim, await written)
        self._remember(row.description_hash, reply_of(row))

    def _require(self, claim: Claim, results: CallResults) -> None:
        if claim.id in results.lost:
            raise OwnerError(
                f"run {self._run} was taken over by another process: no further call is sent; "
                "resume=true goes on when the other ends"
            )

    def _remember(self, description_hash: str, reply: Reply) -> None:
        if description_hash in self._users:
            self._replies.setdefault(description_hash, {})[reply.key] = reply

    def _overspent(self, reason: Overspent, claim: ClaimRow) -> BudgetError:
        billed, uncertain = reason.cost.billed, reason.cost.uncertain
        most, budget = claim.most, self._budget
        tokens = (billed + uncertain + most).tokens
        if budget.tokens is not None and tokens > budget.tokens:
            key, total, unit = "tokens", f"{budget.tokens:,}", " tokens"
            figures = [f"{cost.tokens:,}" for cost in (billed, uncertain, most)]
        else:
            key, total, unit = "money", f"{budget.money:.6g}", ""
            figures = [f"{cost.money:.6g}" for cost in (billed, uncertain, most)]
        return BudgetError(
            f"the budget is used up: of {total}{unit} {figures[0]} are billed, {figures[1]} may "
            f"have been billed, and the next call may take {figures[2]}; give a larger "
            f"llm.budget.{key} and resume=true to go on: all paid answers are kept"
        )


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
        cached_prompt_tokens=row.cached_prompt_tokens,
        reasoning_tokens=row.reasoning_tokens,
        lane=Lane(row.lane),
    )


def call_row(request: ChatRequest, reply: Reply, description_hash: str, role: str) -> CallRow:
    """Returns the archived form of a call that was answered just now."""
    return CallRow(
        key=reply.key,
        description_hash=description_hash,
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
        cached_prompt_tokens=reply.cached_prompt_tokens,
        reasoning_tokens=reply.reasoning_tokens,
        lane=reply.lane.value,
        cost=reply.cost,
        seconds=reply.seconds,
        attempts=reply.attempts,
        created=datetime.now(UTC),
    )
