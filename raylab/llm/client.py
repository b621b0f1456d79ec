"""A client that answers requests from the journal or an endpoint, with retries and limits."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from raylab.config.annotation import LlmConfig
from raylab.errors import CallError, LlmError, StoppedError
from raylab.llm.chat import ChatRequest, Journal, Reply
from raylab.llm.connection import Connection, Timing
from raylab.llm.embedded import Embedded
from raylab.llm.rate_limits import (
    LocalRateLimiter,
    Permit,
    RateLimiter,
    RateLimiterClient,
    limited_endpoints,
)
from raylab.llm.redaction import Redactor
from raylab.llm.wire import AttemptOutcome, Completion, Failure, encode_request, most_tokens

FIRST_PAUSE = 1.0
"""Longest pause in seconds before the second attempt; doubles with each further attempt."""
LONGEST_BACKOFF = 60.0
LOUD_LOGGERS = ("openai", "httpx2", "httpcore2", "httpx", "httpcore")
"""Loggers that log every call, some with its headers."""
TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True)
class CallEvent:
    """An ended attempt at a call.

    Attributes:
        endpoint: name of the endpoint in the configuration.
        model: model as requested.
        outcome: result of the attempt.
        retried: True if another attempt follows.
        prompt_tokens: tokens of the request, as the server counts them; 0 without an answer.
        completion_tokens: tokens of the reply, likewise.
        cost: price of an answered attempt; None without an answer or a price.
        seconds: time from sending to the end of the answer.
    """

    endpoint: str
    model: str
    outcome: AttemptOutcome
    retried: bool
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float


class Client:
    """A client that answers requests; see `raylab.llm.chat.Chat`. It belongs to one event loop.

    A reply is stored in the journal before it is returned. Concurrent equal requests are sent once.
    An attempt is retried after a timeout, a broken connection, HTTP 408, 409, 425, 429 or 5xx, and
    HTTP 200 without a completion.

    Args:
        llm: Endpoints, prices and budget. The concurrency of an endpoint is that of this client;
            the limiter enforces limits a minute and the budget.
        journal: Log of answered calls.
        limiter: Client of the limiter that all processes share; None limits this process alone.
            It is asked about the endpoints in `limited_endpoints(llm)` only.
        embedded: The served embedded model; needed by an endpoint without base_url.
        on_call: Called after every attempt.
        timing: Clocks.

    Raises:
        ConfigError: A key is not in the environment, or the embedded model is not served.
    """

    def __init__(
        self,
        llm: LlmConfig,
        journal: Journal,
        limiter: RateLimiterClient | None = None,
        embedded: Embedded | None = None,
        on_call: Callable[[CallEvent], None] | None = None,
        timing: Timing | None = None,
    ) -> None:
        for name in LOUD_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._timing = timing or Timing()
        used = {chat.endpoint for chat in llm.roles.values()}
        limits = {name: llm.endpoints[name].limits for name in used}
        self._connections = {
            name: Connection(name, llm.endpoints[name], embedded, self._timing)
            for name in sorted(used)
        }
        redactor = Redactor(connection.key for connection in self._connections.values())
        for connection in self._connections.values():
            connection.redactor = redactor
        self._limited = limited_endpoints(llm)
        self._limiter = limiter or LocalRateLimiter(
            RateLimiter(limits, llm.budget, clock=self._timing.clock)
        )
        self._journal = journal
        self._prices = llm.prices
        self._on_call = on_call
        self._in_flight: dict[str, asyncio.Future[Reply | LlmError | None]] = {}

    def __repr__(self) -> str:
        return f"Client({', '.join(map(repr, self._connections.values()))})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stop(self) -> None:
        """Starts no further attempts; those in flight finish and are stored."""
        for connection in self._connections.values():
            connection.end(StoppedError("the run is stopping; resume=true goes on from here"))

    async def close(self) -> None:
        """Closes the connections; no call may be in flight."""
        for connection in self._connections.values():
            await connection.close()

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        """Answers a request; see `raylab.llm.chat.Chat.complete`.

        A request that equals one in flight waits for its reply, which then counts as cached.

        Raises:
            CallError: All attempts failed, or the endpoint refused the call.
            EndpointError: The endpoint would answer no call.
            BudgetError: The budget is used up; nothing was sent.
            StoppedError: The run is stopping; nothing was sent.
        """
        key = request.key
        while (leader := self._in_flight.get(key)) is not None:
            result = await asyncio.shield(leader)
            if isinstance(result, Reply):
                return replace(result, cached=True)
            if result is not None:
                raise type(result)(*result.args)
        self._in_flight[key] = leader = asyncio.get_running_loop().create_future()
        result = None
        try:
            result = await self._answer(request, key, description_hash, role)
            return result
        except LlmError as error:
            result = error
            raise
        finally:
            # None (after a cancellation) makes one of the waiting requests take over.
            del self._in_flight[key]
            leader.set_result(result)

    async def _answer(
        self, request: ChatRequest, key: str, description_hash: str, role: str
    ) -> Reply:
        kept = await self._journal.get(key, description_hash)
        if kept is not None:
            return replace(kept, cached=True)
        return await self._call(request, key, description_hash, role)

    async def _call(
        self, request: ChatRequest, key: str, description_hash: str, role: str
    ) -> Reply:
        connection = self._connections[request.endpoint]
        try:
            content = encode_request(request, connection.form)
        except UnicodeEncodeError:
            raise CallError(
                "a message holds half of a surrogate pair, which is not valid: correct the case"
            ) from None
        attempt = 0
        while True:
            attempt += 1
            # The slot is held until the reply is stored, so a crash loses at most one reply a slot.
            async with connection.slots:
                result, seconds = await self._attempt(connection, request, content)
                if isinstance(result, Completion):
                    self._tell(request, AttemptOutcome.OK, False, seconds, result)
                    connection.succeeded()
                    reply = self._reply(request, key, result, seconds, attempt)
                    await self._keep(request, reply, description_hash, role)
                    return reply
            again = result.passing and attempt <= connection.limits.retries
            self._tell(request, result.outcome, again, seconds)
            if not again:
                raise connection.failed(result, request.model, attempt)
            await connection.pause(self._back_off(result, attempt))

    def _reply(
        self, request: ChatRequest, key: str, result: Completion, seconds: float, attempts: int
    ) -> Reply:
        return Reply(
            key=key,
            text=result.text,
            response_model=result.response_model,
            finish_reason=result.finish_reason,
            prompt_tokens=result.prompt_tokens,
            completion_tokens=result.completion_tokens,
            cost=self._cost(request.model, result.prompt_tokens, result.completion_tokens),
            seconds=seconds,
            attempts=attempts,
        )

    async def _keep(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str
    ) -> None:
        """Stores a reply; if that fails, stops all calls, whose replies would also be lost."""
        try:
            await self._journal.put(request, reply, description_hash, role)
        except Exception as error:
            reason = LlmError(
                f"an answer could not be archived, so no further call is sent: {error}"
            )
            for connection in self._connections.values():
                connection.end(reason)
            raise

    def _back_off(self, failure: Failure, attempt: int) -> float:
        """Returns the seconds until the next attempt: full jitter on top of the server's pause."""
        most = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_BACKOFF)
        return (failure.pause or 0.0) + most * self._timing.draw()

    async def _attempt(
        self, connection: Connection, request: ChatRequest, content: bytes
    ) -> tuple[Completion | Failure, float]:
        """Sends one attempt when the limits allow it; returns the result and its seconds."""
        prompt, reply = most_tokens(content, request.parameters)
        cost = self._cost(request.model, prompt, reply) or 0.0
        permit = await self._admit(connection, prompt + reply, cost)
        started = self._timing.clock()
        result = await connection.send(content)
        seconds = self._timing.clock() - started
        if isinstance(result, Failure) and result.outcome is AttemptOutcome.RATE_LIMITED:
            await self._throttle(connection, result.pause or 0.0)
        if permit is not None:
            await self._settle(permit, request.model, result, prompt + reply, cost)
        return result, seconds

    async def _admit(self, connection: Connection, tokens: int, cost: float) -> Permit | None:
        """Waits until the limits allow an attempt; returns the permit if one is needed."""
        connection.check()
        while (wait := connection.throttled) > 0:
            await connection.pause(wait)
        if connection.name not in self._limited:
            return None
        async with connection.turn:
            while True:
                connection.check()
                permit = await self._limiter.reserve(connection.name, tokens, cost)
                if permit.granted:
                    connection.check()
                    return permit
                await connection.pause(permit.wait)

    async def _throttle(self, connection: Connection, seconds: float) -> None:
        if seconds > 0:
            connection.throttle(seconds)
            if connection.name in self._limited:
                await self._limiter.penalise(connection.name, seconds)

    async def _settle(
        self, permit: Permit, model: str, result: Completion | Failure, tokens: int, cost: float
    ) -> None:
        if isinstance(result, Failure):
            await self._limiter.settle(permit.number, None, 0.0)
            return
        # A server that counts no tokens is assumed to have used the reserved ones.
        used = result.prompt_tokens + result.completion_tokens
        paid = self._cost(model, result.prompt_tokens, result.completion_tokens)
        await self._limiter.settle(permit.number, used or tokens, (paid if used else cost) or 0.0)

    def _cost(self, model: str, prompt_tokens: int, completion_tokens: int) -> float | None:
        price = self._prices.get(model)
        if price is None:
            return None
        total = prompt_tokens * price.input + completion_tokens * price.output
        return total / TOKENS_PER_PRICE

    def _tell(
        self,
        request: ChatRequest,
        outcome: AttemptOutcome,
        retried: bool,
        seconds: float,
        completion: Completion | None = None,
    ) -> None:
        if self._on_call is None:
            return
        prompt = completion.prompt_tokens if completion else 0
        reply = completion.completion_tokens if completion else 0
        cost = self._cost(request.model, prompt, reply) if completion else None
        self._on_call(
            CallEvent(
                request.endpoint, request.model, outcome, retried, prompt, reply, cost, seconds
            )
        )
