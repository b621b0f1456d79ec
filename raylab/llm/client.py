"""A client that answers requests from the journal or an endpoint, with retries and limits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Self

from raylab.config.annotation import LlmConfig
from raylab.config.llm import Lane
from raylab.errors import CallError, LlmError, StoppedError
from raylab.llm.chat import ChatRequest, Claim, Journal, Reply, Reservation, TokenCounts
from raylab.llm.connection import Connection, Timing
from raylab.llm.embedded import Embedded
from raylab.llm.limits import (
    PAUSE,
    LocalRateLimiter,
    RateLimiter,
    RateLimiterClient,
    Share,
    limited_endpoints,
)
from raylab.llm.prices import Prices
from raylab.llm.redaction import Redactor
from raylab.llm.wire import (
    AttemptOutcome,
    Completion,
    Failure,
    encode_request,
    most_tokens,
    unbelievable,
)

FIRST_PAUSE = 1.0
"""Longest pause in seconds before the second attempt; doubles with each further attempt."""
LONGEST_BACKOFF = 60.0
FIRST_LOOK = 0.05
"""Longest pause in seconds before the first new look at a call in flight elsewhere; doubles."""
LONGEST_LOOK = 2.0
SUSPENDED_SECONDS = 30.0
"""Longest wait for a claim, after which it is asked for again."""
LOUD_LOGGERS = ("openai", "httpx2", "httpcore2", "httpx", "httpcore")
"""Loggers that log every call, some with its headers."""


@dataclass(frozen=True)
class CallEvent:
    """An ended attempt at a call.

    Attributes:
        endpoint: name of the endpoint in the configuration.
        model: model as requested.
        outcome: result of the attempt.
        retried: True if another attempt follows.
        seconds: time from sending to the end of the answer.
        reply: the answer; None without one.
    """

    endpoint: str
    model: str
    outcome: AttemptOutcome
    retried: bool
    seconds: float
    reply: Reply | None = None


class Client:
    """A client that answers requests; see `raylab.llm.chat.Chat`. It belongs to one event loop.

    A call is claimed in the journal before each attempt, and its reply is stored there before it is
    returned. Equal requests are sent once, in this process and in all that share the journal. Until
    the deadline of its endpoint a call is tried again after a timeout, a broken connection,
    HTTP 408, 409, 425, 429 or 5xx, and HTTP 200 without a completion.

    Args:
        llm: Endpoints and prices. The limiter enforces the limits a minute, the journal the
            budget.
        journal: Log of answered calls.
        limiter: Client of the limiter that all processes share; None limits this process alone.
            It is asked about the endpoints in `limited_endpoints(llm)` only.
        embedded: The served embedded model; needed by an endpoint without base_url.
        on_call: Called after every attempt.
        timing: Clocks.
        share: The share of this client in the calls in flight.

    Raises:
        ConfigError: A key is not in the environment, the embedded model is not served, or a
            budget in money lacks a price.
    """

    def __init__(
        self,
        llm: LlmConfig,
        journal: Journal,
        limiter: RateLimiterClient | None = None,
        embedded: Embedded | None = None,
        on_call: Callable[[CallEvent], None] | None = None,
        timing: Timing | None = None,
        share: Share | None = None,
    ) -> None:
        for name in LOUD_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._timing = timing or Timing()
        used = {chat.endpoint for chat in llm.roles.values()}
        self._connections = {
            name: Connection(
                name, llm.endpoints[name], llm.lane, share or Share(), embedded, self._timing
            )
            for name in sorted(used)
        }
        redactor = Redactor(connection.key for connection in self._connections.values())
        for connection in self._connections.values():
            connection.redactor = redactor
        self._limited = limited_endpoints(llm)
        self._limiter = limiter or LocalRateLimiter(RateLimiter(llm.limits, self._timing.clock))
        self._journal = journal
        self._prices = Prices(llm)
        self._on_call = on_call
        self._ending: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Client({', '.join(map(repr, self._connections.values()))})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def concurrency(self) -> int:
        """The number of calls that may be in flight now, over all endpoints."""
        return sum(connection.slots.allowed for connection in self._connections.values())

    def stop(self) -> None:
        """Starts no further attempts; those in flight finish and are stored."""
        for connection in self._connections.values():
            connection.end(StoppedError("the run is stopping; resume=true goes on from here"))

    async def close(self) -> None:
        """Closes the connections; no call may be in flight."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        for connection in self._connections.values():
            await connection.close()

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        """Answers a request; see `raylab.llm.chat.Chat.complete`.

        A request that equals one in flight waits for its reply, which then counts as cached.

        Raises:
            CallError: The endpoint refused the call.
            DeadlineError: No attempt was answered before the deadline.
            EndpointError: The endpoint would answer no call.
            BudgetError: The budget is used up; nothing was sent.
            StoppedError: The run is stopping; nothing was sent.
        """
        key = request.key
        kept = await self._journal.get(key, description_hash)
        if kept is not None:
            return replace(kept, cached=True)
        connection = self._connections[request.endpoint]
        call = self._prepare(connection, request, key, description_hash, role)
        while True:
            # The next call of a slot is claimed, and so sent, after this reply is durable: a crash
            # loses at most one reply a slot.
            async with connection.slots:
                result = await self._attempt(connection, call)
            if call.kept is not None:
                await call.kept
            if isinstance(result, Reply):
                return result
            await connection.pause(self._pause_after(connection, call, result))

    def _prepare(
        self,
        connection: Connection,
        request: ChatRequest,
        key: str,
        description_hash: str,
        role: str,
    ) -> "_Call":
        try:
            content = encode_request(request, connection.form, connection.lane)
        except UnicodeEncodeError:
            raise CallError(
                "a message holds half of a surrogate pair, which is not valid: correct the case"
            ) from None
        prompt, reply = most_tokens(content, request.parameters)
        cost = self._prices.most(request.endpoint, request.model, TokenCounts(prompt, reply))
        most = Reservation(prompt, reply, cost)
        return _Call(request, key, description_hash, role, content, most)

    async def _attempt(self, connection: Connection, call: "_Call") -> Reply | Failure | None:
        """Makes one attempt; returns None if the journal grants it only later."""
        await self._admit(connection, call.most.tokens)
        asked = self._timing.now()
        try:
            claim = await self._journal.claim(
                call.key, call.request, call.description_hash, call.most
            )
        except BaseException:
            await self._settle(connection, call.most.tokens, 1)
            raise
        if not isinstance(claim, Claim):
            await self._settle(connection, call.most.tokens, 1)
            return claim if claim is None else replace(claim, cached=True)
        # A process that was suspended asks again: by now others may have the run.
        if connection.has_ended or self._timing.now() - asked > SUSPENDED_SECONDS:
            await self._journal.end(claim, paid=False)
            await self._settle(connection, call.most.tokens, 1)
            connection.check()
            return None
        try:
            return await self._send(connection, call, claim)
        except asyncio.CancelledError:
            # Nobody waits for the answer any more, which may be billed all the same.
            self._finish(self._journal.end(claim, paid=True))
            raise

    async def _send(self, connection: Connection, call: "_Call", claim: Claim) -> Reply | Failure:
        started = self._timing.clock()
        result = await connection.send(call.content)
        call.seconds = self._timing.clock() - started
        call.attempts += 1
        if call.attempts == 1:
            call.since = started
        if isinstance(result, Failure):
            result = await self._slow_down(connection, result, started)
            await self._journal.end(claim, paid=result.billed)
            return result
        connection.succeeded()
        reply = self._reply(connection, call, self._believe(connection, call, result))
        self._tell(call, AttemptOutcome.OK, False, reply)
        stored = self._journal.put(call.request, reply, call.description_hash, call.role, claim)
        call.kept = self._finish(self._keep(stored))
        if tokens := reply.prompt_tokens + reply.completion_tokens:
            await self._settle(connection, call.most.tokens - tokens)
        return reply

    async def _slow_down(self, connection: Connection, failure: Failure, started: float) -> Failure:
        """Lets all calls of the endpoint wait where it has refused one for their number."""
        if failure.outcome not in (AttemptOutcome.RATE_LIMITED, AttemptOutcome.QUEUE_FULL):
            connection.slots.failed()
            return failure
        fell = connection.slots.refused(started, self._timing.clock())
        pause = failure.pause
        if pause is None:
            pause = PAUSE if fell else 0.0
        if pause > 0:
            connection.throttle(pause)
            if connection.name in self._limited:
                await self._limiter.penalise(connection.name, pause)
        return replace(failure, pause=pause)

    def _pause_after(self, connection: Connection, call: "_Call", failure: Failure | None) -> float:
        """Returns the pause before another attempt.

        Raises:
            LlmError: Another would fail too, or come too late.
        """
        if failure is None:
            call.looks += 1
            return self._jitter(FIRST_LOOK, call.looks, LONGEST_LOOK)
        jitter = self._jitter(FIRST_PAUSE, call.attempts, LONGEST_BACKOFF)
        pause = (failure.pause or 0.0) + jitter
        if failure.outcome is AttemptOutcome.QUEUE_FULL:
            call.since += call.seconds + pause
        again = failure.passing and self._timing.clock() + pause < call.since + connection.deadline
        self._tell(call, failure.outcome, again)
        if not again:
            raise connection.failed(failure, call.request.model, call.attempts)
        return pause

    def _believe(self, connection: Connection, call: "_Call", completion: Completion) -> Completion:
        """Returns the completion without its usage if that cannot be true."""
        problem = completion.usage_problem or unbelievable(
            completion, len(call.content), call.most.completion_tokens
        )
        if not problem:
            return completion
        connection.warn_of_usage(problem)
        return replace(completion, tokens=TokenCounts())

    def _reply(self, connection: Connection, call: "_Call", result: Completion) -> Reply:
        request, tokens = call.request, result.tokens
        # A server may answer in another lane than it was asked to, and bills that one.
        is_flex = connection.lane is Lane.FLEX and result.service_tier in ("", Lane.FLEX)
        lane = Lane.FLEX if is_flex else Lane.STANDARD
        return Reply(
            key=call.key,
            text=result.text,
            response_model=result.response_model,
            finish_reason=result.finish_reason,
            prompt_tokens=tokens.prompt,
            completion_tokens=tokens.completion,
            cost=self._prices.cost(request.endpoint, request.model, tokens, lane),
            seconds=call.seconds,
            attempts=call.attempts,
            cached_prompt_tokens=tokens.cached_prompt,
            reasoning_tokens=tokens.reasoning,
            lane=lane,
        )

    async def _keep(self, stored: Awaitable[object]) -> None:
        """Waits until a reply is stored; if that fails, stops all calls: they would be lost too."""
        try:
            await stored
        except Exception as error:
            reason = LlmError(
                f"an answer could not be archived, so no further call is sent: {error}"
            )
            for connection in self._connections.values():
                connection.end(reason)
            raise

    def _finish(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts work that is finished even if the call is cancelled."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    def _jitter(self, first: float, count: int, longest: float) -> float:
        """Returns a pause with full jitter, which doubles with each further one."""
        return min(first * 2 ** min(count - 1, 30), longest) * self._timing.draw()

    async def _admit(self, connection: Connection, tokens: int) -> None:
        """Waits until the limits allow an attempt."""
        connection.check()
        while (wait := connection.throttled) > 0:
            await connection.pause(wait)
        if connection.name not in self._limited:
            return
        async with connection.turn:
            while (wait := await self._limiter.reserve(connection.name, tokens)) > 0:
                await connection.pause(wait)
                connection.check()

    async def _settle(self, connection: Connection, tokens: int, calls: int = 0) -> None:
        """Gives back what an attempt did not use."""
        if connection.name in self._limited:
            await self._limiter.settle(connection.name, tokens, calls)

    def _tell(
        self, call: "_Call", outcome: AttemptOutcome, retried: bool, reply: Reply | None = None
    ) -> None:
        if self._on_call is not None:
            endpoint, model = call.request.endpoint, call.request.model
            self._on_call(CallEvent(endpoint, model, outcome, retried, call.seconds, reply))


@dataclass
class _Call:
    """A call on its way.

    Attributes:
        attempts: attempts made.
        looks: looks at an equal call in flight elsewhere.
        since: time from which the deadline counts.
        seconds: duration of the last attempt.
        kept: ends when the reply is durable, or raises; None before there is one.
    """

    request: ChatRequest
    key: str
    description_hash: str
    role: str
    content: bytes
    most: Reservation
    attempts: int = 0
    looks: int = 0
    since: float = 0.0
    seconds: float = 0.0
    kept: asyncio.Task[None] | None = None
