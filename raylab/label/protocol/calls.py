"""The archive as a journal of calls; see `raylab.llm.chat.Journal`."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from raylab.core.errors import BudgetError, OwnerError
from raylab.label.archive.database import PATIENCE_SECONDS
from raylab.label.archive.ledger import CallOperation, CallResults, ClaimEnd
from raylab.label.archive.records import CallRow, CaseRow, RunCost
from raylab.label.archive.store import Archive
from raylab.label.judgement import Decision
from raylab.llm.chat import CallBatch, ChatRequest, Claim, Cost, Refusal, Reply
from raylab.llm.config import Budget

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Send = Callable[..., Awaitable[Any]]


class RunWriter:
    """The archive of a run as its workers use it; they reach it by an `ArchiveClient`.

    Calls and batches are those of its `raylab.label.archive.ledger.Ledger`.
    """

    def __init__(self, location: str, run: str, owner: str, budget: Budget) -> None:
        """Opens the archive; writes calls of `run` within a budget, as the owner of this token."""
        # A server may be starting when this process starts again.
        self._archive = Archive.open(location, create=False, wait=PATIENCE_SECONDS)
        self._run = self._archive.run(run)
        self._ledger = self._run.ledger(owner, budget)

    def write_calls(self, operations: Sequence[CallOperation], claimant: str) -> CallResults:
        return self._ledger.write(operations, claimant)

    def void_claims(self, claimant: str) -> None:
        self._ledger.void(claimant)

    def open_batch(self, batch: CallBatch, claimant: str) -> CallResults:
        return self._ledger.open_batch(batch, claimant)

    def find_batch(self, id: str) -> CallBatch | None:
        return self._ledger.find_batch(id)

    def note_batch(self, id: str, file: str, server_id: str | None) -> bool:
        return self._ledger.note_batch(id, file, server_id)

    def end_batch(self, batch: CallBatch, endings: Sequence[ClaimEnd]) -> None:
        self._ledger.end_batch(batch, endings)

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """Returns all answered calls about these descriptions."""
        return self._archive.calls_of(description_hashes)

    def add_cases(self, rows: Sequence[CaseRow]) -> None:
        """Archives ended cases."""
        self._run.add_cases(rows)

    def confirm(self, sequence: int, row: Decision) -> None:
        """Archives the evaluator's report on the decision of this sequence."""
        self._run.reviews().confirm(sequence, row)


class ArchiveClient:
    """A client of the `RunWriter` of a run, wherever that is. Repeated writes are stored once.

    Args:
        send: Calls a method of the writer, by its name and arguments.
        claimant: Name of this client among those of the run.
    """

    def __init__(self, send: Send, claimant: str = "") -> None:
        self._send, self.claimant = send, claimant

    async def ask(
        self, method: Callable[Concatenate[RunWriter, P], R], *values: P.args, **named: P.kwargs
    ) -> R:
        """Returns what a method of the writer returns for these arguments."""
        return await self._send(method.__name__, *values, **named)


class GroupedWriter(Generic[T, R]):
    """A writer of rows in groups: those that gather while the previous group is being written."""

    def __init__(self, write: Callable[[list[T]], Awaitable[R]]) -> None:
        """Writes with `write`, one group at a time."""
        self._write = write
        self._waiting: list[T] = []
        self._written: asyncio.Future[R] | None = None
        self._writer: asyncio.Task[None] | None = None

    def leave(self, row: T) -> None:
        """Queues a row without waiting until it is written."""
        self.add(row).add_done_callback(lambda written: written.exception())

    def add(self, row: T) -> asyncio.Future[R]:
        """Queues a row; the future has what writing its group returns or raises."""
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        self._waiting.append(row)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_groups())
        return asyncio.shield(self._written)

    async def _write_groups(self) -> None:
        while written := self._written:
            group, self._waiting, self._written = self._waiting, [], None
            try:
                written.set_result(await self._write(group))
            except Exception as error:
                written.set_exception(error)


class CallJournal:
    """The journal of a run's calls in its archive; see `raylab.llm.chat.Journal`.

    It keeps the answered calls about the descriptions that are loaded; a claim finds the others.
    """

    def __init__(self, archive: ArchiveClient, run: str, budget: Budget) -> None:
        """Looks up and writes calls of `run` in `archive`; `budget` is named in errors."""
        self._archive, self._run, self._budget = archive, run, budget
        self._operations = GroupedWriter[CallOperation, CallResults](
            lambda rows: archive.ask(RunWriter.write_calls, rows, archive.claimant)
        )
        self._name, self._numbers = secrets.token_hex(16), count(1)
        self._begun, self._voided = asyncio.Lock(), False
        self._answered = 0
        self._replies: dict[str, Reply] = {}

    async def load(self, description_hashes: Iterable[str]) -> list[str]:
        """Loads all answered calls about these descriptions; returns their keys, for `drop`."""
        async with self._begun:
            if not self._voided:
                # The process may have died before, with claims that nobody else ends.
                await self._archive.ask(RunWriter.void_claims, self._archive.claimant)
                self._voided = True
        rows = await self._archive.ask(RunWriter.calls_of, sorted(set(description_hashes)))
        self._replies |= {row.reply.key: row.reply for row in rows}
        return [row.reply.key for row in rows]

    def drop(self, keys: Iterable[str]) -> None:
        """Drops loaded calls, to bound memory."""
        for key in keys:
            self._replies.pop(key, None)

    def take_count(self) -> int:
        """Returns the number of calls answered from the archive since the last call."""
        count, self._answered = self._answered, 0
        return count

    async def get(self, key: str, description_hash: str) -> Reply | None:
        reply = self._replies.get(key)
        self._answered += reply is not None
        return reply

    async def claim(self, key: str, most: Cost) -> Claim | Reply | str | None:
        claim = Claim(f"{self._name}-{next(self._numbers)}", key, most)
        try:
            results = await self._operations.add(claim)
        except asyncio.CancelledError:
            # The claim may be written already, and would keep its call from all others.
            self._operations.leave(ClaimEnd(claim))
            raise
        self._require(claim, results)
        if claim.id not in results.refused:
            return claim
        if isinstance(reason := self._refusal(claim, results), BudgetError):
            raise reason
        return reason

    def _refusal(self, claim: Claim, results: CallResults) -> Refusal:
        reason = results.refused[claim.id]
        if isinstance(reason, CallRow):
            self._answered += 1
            return reason.reply
        if not isinstance(reason, RunCost):
            return reason
        budget, most = self._budget, claim.most
        tokens = (reason.billed + reason.uncertain + most).tokens
        key = "tokens" if budget.tokens is not None and tokens > budget.tokens else "money"
        total, billed, uncertain, next_one = (
            f"{round(getattr(each, key), 6):,}"
            for each in (budget, reason.billed, reason.uncertain, most)
        )
        return BudgetError(
            f"the budget of {total} ({key}) is used up: {billed} are billed, {uncertain} may have "
            f"been billed, and the next call may take {next_one}; give a larger llm.budget.{key} "
            "and resume=true to go on: all paid answers are kept"
        )

    def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str, claim: Claim
    ) -> asyncio.Task[None]:
        about = description_hash, role, request.base_url, request.model, request.seed
        call = CallRow(reply, *about, request.parameters, datetime.now(UTC))
        # Queued at once, so that a claim that is asked for later is granted later.
        written = self._operations.add(ClaimEnd(claim, call))

        async def wait_until_stored() -> None:
            self._require(claim, await written)

        return asyncio.create_task(wait_until_stored())

    async def end(self, claim: Claim, paid: bool) -> None:
        await self._operations.add(ClaimEnd(claim, paid=paid))

    async def open_batch(self, batch: CallBatch) -> dict[str, Refusal]:
        results = await self._archive.ask(RunWriter.open_batch, batch, self._archive.claimant)
        claims = [call.claim for call in batch.calls]
        for claim in claims:
            self._require(claim, results)
        refused = (claim for claim in claims if claim.id in results.refused)
        return {claim.key: self._refusal(claim, results) for claim in refused}

    async def find_batch(self, id: str) -> CallBatch | None:
        return await self._archive.ask(RunWriter.find_batch, id)

    async def note_batch(self, batch: CallBatch, file: str, server_id: str | None = None) -> bool:
        return await self._archive.ask(RunWriter.note_batch, batch.id, file, server_id)

    async def end_batch(self, batch: CallBatch, ends: Mapping[str, Reply | bool]) -> None:
        now, endings = datetime.now(UTC), list[ClaimEnd]()
        for call in batch.calls:
            end = ends[call.claim.key]
            if isinstance(end, Reply):
                about = call.description_hash, call.role, batch.base_url, call.model, call.seed
                endings.append(ClaimEnd(call.claim, CallRow(end, *about, call.parameters, now)))
            else:
                endings.append(ClaimEnd(call.claim, paid=end))
        await self._archive.ask(RunWriter.end_batch, batch, endings)

    def _require(self, claim: Claim, results: CallResults) -> None:
        if claim.id in results.lost:
            raise OwnerError(
                f"run {self._run} was taken over by another process: no further call is sent; "
                "resume=true goes on when the other ends"
            )
