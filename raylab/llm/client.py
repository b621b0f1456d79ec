"""A client that answers requests from the journal or an endpoint, with retries and limits."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Self

from raylab.core.errors import CallError, LlmError, StoppedError
from raylab.llm.batches import BatchLane
from raylab.llm.chat import CallBatch, ChatRequest, Claim, Cost, Journal, Reply
from raylab.llm.config import Lane, Service
from raylab.llm.connection import Connection, Timing
from raylab.llm.endpoints import EndpointAccess, Redactor, access_to
from raylab.llm.limits import RateLimiterClient, Share, limited_endpoints
from raylab.llm.prices import Prices, reply_cost
from raylab.llm.wire import FINAL, AttemptOutcome, Failure, encode_request, most_tokens

FIRST_PAUSE = 1.0
"""Longest pause in seconds before the second attempt; doubles with each further attempt."""
MAX_BACKOFF = 60.0
MALFORMED_ANSWERS = 3
"""Answers to a call, each of them perhaps paid, that may hold no completion."""
LOOK_SECONDS = 1.0
"""Longest pause in seconds before a claim that was not granted is asked for again."""
SUSPENDED_SECONDS = 30.0
"""Age of a claim in seconds, above which it is requested again."""
LOUD_LOGGERS = ("openai", "httpx2", "httpcore2", "httpx", "httpcore")
"""Loggers that log every call, some with its headers."""


@dataclass
class _Call:
    """A call on its way."""

    request: ChatRequest
    key: str
    description_hash: str
    role: str
    lane: Lane
    connection: Connection
    content: bytes
    most: Cost
    attempts: int = 0
    malformed: int = 0
    since: float = 0.0
    """Time from which the deadline counts."""
    seconds: float = 0.0
    """Duration of the last attempt."""
    stored: asyncio.Task[None] | None = None
    """Ends when the reply is durable, or raises; None before there is one."""


class Client:
    """A client that answers requests; see `raylab.llm.chat.Chat`. It belongs to one event loop.

    A call is claimed in the journal before each attempt, and its reply is stored there before it is
    returned. Equal requests are sent once, in this process and in all that share the journal. Until
    the deadline of its endpoint a call is tried again after a timeout, a broken connection,
    HTTP 408, 409, 425, 429 or 5xx, and twice after HTTP 200 without a completion.

    Args:
        llm: Endpoints and prices. The limiter enforces the per-minute limits, the journal the
            budget.
        limiter: Client of the limiter that all processes share, asked about the endpoints in
            `limited_endpoints(llm)` alone; None if there are none.
        embedded: The served embedded model; needed by an endpoint without base_url.

    Raises:
        ConfigError: A key is not in the environment, or a budget in money lacks a price.
    """

    def __init__(
        self,
        llm: Service,
        journal: Journal,
        limiter: RateLimiterClient | None = None,
        embedded: EndpointAccess | None = None,
        on_attempt: Callable[[Reply | Failure], None] = lambda result: None,
        timing: Timing | None = None,
        share: Share | None = None,
    ) -> None:
        for name in LOUD_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._timing, share = timing or Timing(), share or Share()
        used, limited = llm.used_endpoints, limited_endpoints(llm)
        accesses = {name: access_to(name, endpoint, embedded) for name, endpoint in used.items()}
        redact = Redactor(access.api_key.get_secret_value() for access in accesses.values())
        self._connections = dict[str, Connection]()
        for name, endpoint in used.items():
            shared = limiter if name in limited else None
            access = accesses[name]
            self._connections[name] = Connection(
                name, endpoint, access, redact, share, shared, self._timing
            )
        self._journal = journal
        self._prices = Prices(llm)
        self._on_attempt, self._after_batch = on_attempt, llm.after_batch
        self._batches = {
            name: BatchLane(connection, journal, self._prices, on_attempt)
            for name, connection in self._connections.items()
            if connection.endpoint.base_url is not None
        }
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def concurrency(self) -> int:
        """The number of calls that may be in flight now, over all endpoints."""
        return sum(connection.slots.capacity for connection in self._connections.values())

    @property
    def batches(self) -> list[CallBatch]:
        """The batches in flight that this process waits for."""
        return [each for lane in self._batches.values() for each in lane.in_flight.values()]

    def stop(self) -> None:
        """Starts no further attempts; those in flight finish and are stored, batches excepted."""
        self._end(StoppedError("the run is stopping; resume=true goes on from here"))

    def _end(self, reason: LlmError) -> None:
        for connection in self._connections.values():
            connection.end(reason)

    async def close(self) -> None:
        """Closes the connections; no call may be in flight."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        for each in (*self._batches.values(), *self._connections.values()):
            await each.close()

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        """Answers a request; see `raylab.llm.chat.Chat.complete`.

        A request that equals one in flight waits for its reply, which then counts as cached.
        """
        key = request.key
        if (archived := await self._journal.get(key, description_hash)) is not None:
            return replace(archived, cached=True)
        connection, lane = self._connections[request.endpoint], request.lane
        try:
            while lane is Lane.BATCH:
                batches = self._batches[request.endpoint]
                result = await batches.complete(request, key, description_hash, role)
                if isinstance(result, Reply):
                    return result
                if result is not None:
                    raise connection.count_failure(result, request.model, 1)
                lane = self._after_batch
            content = encode_request(request, connection.endpoint.reply_format, lane)
        except UnicodeEncodeError:
            raise CallError(
                "a message holds half of a surrogate pair, which is not valid: correct the case"
            ) from None
        tokens = most_tokens(content, request.parameters)
        # Whatever lane is asked for, a server may answer in the standard one, which is the dearest.
        money = self._prices.most(request.endpoint, request.model, Lane.STANDARD, *tokens)
        most = Cost(1, *tokens, money)
        call = _Call(request, key, description_hash, role, lane, connection, content, most)
        while True:
            # The next call of a slot is claimed, and so sent, after this reply is durable: a crash
            # loses at most one reply a slot.
            async with connection.slots:
                result = await self._attempt(call)
            if call.stored is not None:
                await call.stored
            if isinstance(result, Reply):
                return result
            if isinstance(result, str):
                await self._batches[request.endpoint].follow(result)
            else:
                await connection.pause(self._pause_after(call, result))

    async def _attempt(self, call: _Call) -> Reply | Failure | str | None:
        """Makes one attempt, or returns why the journal grants no claim now.

        That is the id of the batch that the call is in. Or it is None, if another worker holds the
        call, or calls in flight hold the rest of the budget: ask again later.
        """
        connection, most = call.connection, call.most
        await connection.admit(most.tokens)
        began, claim = self._timing.now(), None
        try:
            claim = await self._journal.claim(call.key, most)
            # A process that was suspended asks again: by now others may have the run.
            is_late = connection.has_ended or self._timing.now() - began > SUSPENDED_SECONDS
            if isinstance(claim, Claim) and is_late:
                late, claim = claim, None
                await self._journal.end(late, paid=False)
                connection.check()
        finally:
            if not isinstance(claim, Claim):
                await connection.settle(most.tokens, calls=1)
        if not isinstance(claim, Claim):
            return replace(claim, cached=True) if isinstance(claim, Reply) else claim
        try:
            return await self._send(call, claim)
        except asyncio.CancelledError:
            # Nobody waits for the answer any more, which may be billed all the same.
            self._finish(self._journal.end(claim, paid=True))
            raise

    async def _send(self, call: _Call, claim: Claim) -> Reply | Failure:
        """Sends a call once, and ends its claim."""
        started = self._timing.clock()
        result = await call.connection.send(call.content, call.most, call.lane)
        call.seconds = self._timing.clock() - started
        call.attempts += 1
        if call.attempts == 1:
            call.since = started
        if isinstance(result, Failure):
            self._on_attempt(result)
            await self._journal.end(claim, paid=result.may_be_billed)
            return result
        price = self._prices.find(call.request.endpoint, call.request.model, result.lane)
        reply = replace(
            result,
            key=call.key,
            cost=reply_cost(price, result),
            seconds=call.seconds,
            attempts=call.attempts,
        )
        self._on_attempt(reply)
        stored = self._journal.put(call.request, reply, call.description_hash, call.role, claim)

        async def wait_until_stored() -> None:
            try:
                await stored
            except Exception as error:
                # The answers to further calls would be lost too.
                what = "an answer could not be archived, so no further call is sent"
                self._end(LlmError(f"{what}: {error}"))
                raise

        call.stored = self._finish(wait_until_stored())
        if tokens := reply.prompt_tokens + reply.completion_tokens:
            await call.connection.settle(call.most.tokens - tokens)
        return reply

    def _pause_after(self, call: _Call, failure: Failure | None) -> float:
        """Returns the pause before another attempt; raises if that would be vain or too late."""
        if failure is None:
            return LOOK_SECONDS * self._timing.draw()
        longest = min(FIRST_PAUSE * 2 ** min(call.attempts - 1, 30), MAX_BACKOFF)
        pause = (failure.pause or 0.0) + longest * self._timing.draw()
        if failure.outcome is AttemptOutcome.QUEUE_FULL:
            call.since += call.seconds + pause
        call.malformed += failure.outcome is AttemptOutcome.MALFORMED
        is_late = self._timing.clock() + pause >= call.since + call.connection.deadline
        if is_late or failure.outcome in FINAL or call.malformed == MALFORMED_ANSWERS:
            raise call.connection.count_failure(failure, call.request.model, call.attempts)
        return pause

    def _finish(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts work that is finished even if the call is cancelled."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task
