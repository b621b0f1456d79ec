"""The connections of one process to an endpoint, and the state of the endpoint."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

import aiohttp
import httpx2
from openai import DefaultAioHttpClient

from raylab.core.errors import CallError, DeadlineError, EndpointError, LlmError, TextError
from raylab.llm.chat import Cost, Reply
from raylab.llm.config import Endpoint, Lane
from raylab.llm.endpoints import EndpointAccess, Redactor
from raylab.llm.limits import PAUSE, RateLimiterClient, Share, Slots
from raylab.llm.wire import OF_THE_TEXT, AttemptOutcome, Failure, HttpResponse, read_answer

SILENT_CALLS = 5
"""Calls in a row without an answer before their deadline that end a run."""
REFUSED_CALLS = 50
"""Calls in a row refused in the same words that end a run."""
UNREACHED_DEADLINE = 120.0
"""Longest deadline in seconds while no connection to an endpoint was ever made."""
TIMEOUTS = {Lane.STANDARD: 120.0, Lane.FLEX: 900.0}
"""Seconds for one attempt by default."""
CONNECT_TIMEOUT = 15.0
"""Longest wait for a connection in seconds, at most half the time of an attempt: an attempt that
ends without a connection was not sent, and costs nothing."""
KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: shorter than servers keep it, so that none breaks."""
MAX_ANSWER = 1 << 22
"""Most bytes of a decompressed answer: the 200,000 characters of a reply that are read take up to
2.4 MB in JSON, and some servers repeat the model's thoughts beside them."""
MAX_ERROR = 1 << 16
"""Most bytes read of an error."""

LOST = (httpx2.HTTPError, aiohttp.ClientError, OSError)
"""Errors of a connection."""
UNCONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Causes of errors before anything was sent; httpx2 calls lost connections by the same names."""

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """The clocks of a client; tests replace them."""

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    """Seconds since the epoch, which go on while the machine is suspended."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random
    """Uniform in [0, 1)."""


class Transport:
    """A sender of chat requests to one address, by the HTTP client of the openai SDK.

    The SDK's own methods cost more than sending does. Redirects are not followed: they could lead
    to any host, and the archive would name another one.
    """

    def __init__(
        self, access: EndpointAccess, connections: int, timeout: float, trust_env: bool
    ) -> None:
        """Opens at most `connections`; the environment sets proxies if `trust_env`."""
        limits = httpx2.Limits(
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=KEEP_ALIVE,
        )
        self._http = DefaultAioHttpClient(
            limits=limits, trust_env=trust_env, follow_redirects=False
        )
        self._headers = {"Content-Type": "application/json", "User-Agent": "raylab"}
        if access.api_key:
            self._headers["Authorization"] = f"Bearer {access.api_key.get_secret_value()}"
        self._url = httpx2.URL(f"{access.base_url.rstrip('/')}/chat/completions")
        connect = min(CONNECT_TIMEOUT, timeout / 2)
        self._extensions = {"timeout": httpx2.Timeout(None, connect=connect).as_dict()}

    async def close(self) -> None:
        await self._http.aclose()

    async def post(self, content: bytes) -> HttpResponse:
        """Sends a request; reads one byte more than the largest answer at most.

        A body that breaks off ends there.
        """
        request = httpx2.Request(
            "POST", self._url, headers=self._headers, content=content, extensions=self._extensions
        )
        response = await self._http.send(request, stream=True)
        body = bytearray()
        try:
            most = MAX_ANSWER + 1 if response.is_success else MAX_ERROR
            with suppress(*LOST):
                async with aclosing(response.aiter_bytes()) as pieces:
                    async for piece in pieces:
                        body += piece
                        if len(body) >= most:
                            break
        finally:
            await response.aclose()
        return response.status_code, response.headers, bytes(body[:most])


@dataclass(eq=False, repr=False)
class Connection:
    """A connection to an endpoint, usable until it is ended; a client has one for each."""

    name: str
    endpoint: Endpoint
    access: EndpointAccess
    redact: Redactor
    share: Share
    limiter: RateLimiterClient | None
    timing: Timing

    def __post_init__(self) -> None:
        limits = self.endpoint.limits
        self.slots = Slots(limits, self.share)
        """Held from the wait for the rate limit until the reply."""
        self._turn = asyncio.Lock()
        """Held while waiting for the limiter, so that calls go in order."""
        self._not_before = float("-inf")
        self._error: LlmError | None = None
        self._ended = asyncio.Event()
        self._has_answered = self._reached = self._warned = False
        self._failed = Counter[str]()
        """Calls that failed since the last answer, by the words of their refusal."""
        self._transport = Transport(
            self.access,
            self.slots.most,
            limits.timeout or TIMEOUTS[Lane.STANDARD],
            # The embedded model is on this machine, where no proxy reaches it.
            trust_env=self.endpoint.base_url is not None,
        )

    async def close(self) -> None:
        await self._transport.close()

    def end(self, error: LlmError) -> None:
        """Ends the connection for this reason and wakes all waiting calls."""
        self._error = self._error or error
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        """True if no further call may be sent."""
        return self._ended.is_set()

    def check(self) -> None:
        """Raises the reason of the end if the connection has ended."""
        if self._error is not None:
            # Many calls raise this: one exception would gather the tracebacks of all.
            raise type(self._error)(*self._error.args)

    async def pause(self, seconds: float) -> None:
        """Waits until the time is over or the connection ends, then checks."""
        waits = [
            asyncio.ensure_future(self.timing.sleep(seconds)),
            asyncio.ensure_future(self._ended.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.check()

    async def admit(self, tokens: int) -> None:
        """Waits until the limits allow an attempt of at most this many tokens."""
        self.check()
        while (wait := self._not_before - self.timing.clock()) > 0:
            await self.pause(wait)
        if self.limiter is not None:
            async with self._turn:
                while (wait := await self.limiter.reserve(self.name, tokens)) > 0:
                    await self.pause(wait)
                self.check()

    async def settle(self, tokens: int, calls: int = 0) -> None:
        """Gives back the tokens and calls that an attempt did not use."""
        if self.limiter is not None:
            await self.limiter.settle(self.name, tokens, calls)

    @property
    def deadline(self) -> float:
        """The seconds for one call with all its attempts."""
        deadline = self.endpoint.limits.deadline
        return deadline if self._reached else min(deadline, UNREACHED_DEADLINE)

    async def send(self, content: bytes, most: Cost, lane: Lane) -> Reply | Failure:
        """Makes one attempt, which may take `most`; the reply has no key, cost and time yet."""
        started, timeout = self.timing.clock(), self.endpoint.limits.timeout or TIMEOUTS[lane]
        try:
            async with asyncio.timeout(timeout):
                answer = await self._transport.post(content)
        except TimeoutError:
            result = Failure(AttemptOutcome.TIMEOUT, f"no answer within {timeout:g} s")
        except LOST as error:
            causes: list[BaseException] = [error]
            while (cause := causes[-1].__cause__) is not None:
                causes.append(cause)
            words = f"the connection failed: {type(causes[-1]).__name__} {causes[-1]}".rstrip()
            was_made = not any(isinstance(cause, UNCONNECTED) for cause in causes)
            result = Failure(AttemptOutcome.CONNECTION, words, was_sent=was_made)
        else:
            result = Failure(
                AttemptOutcome.OVERSIZED,
                f"the answer has more than {MAX_ANSWER:,} bytes: lower max_tokens, or check "
                "that base_url is that of a chat endpoint",
            )
            if len(answer[2]) <= MAX_ANSWER:
                result = read_answer(answer, most, lane, self._has_answered)
        if isinstance(result, Failure):
            self._reached |= result.was_sent
            if result.outcome in (AttemptOutcome.RATE_LIMITED, AttemptOutcome.QUEUE_FULL):
                # It was refused because there are too many calls, so all of the endpoint wait.
                now = self.timing.clock()
                fell = self.slots.count_refusal(started, now)
                pause = PAUSE * fell if result.pause is None else result.pause
                self._not_before = max(self._not_before, now + pause)
                result = replace(result, pause=pause)
            else:
                self.slots.count_failure()
        else:
            self.slots.count_answer()
        return self.clean(result)

    def clean(self, result: Reply | Failure) -> Reply | Failure:
        """Removes API keys from the server's text, and takes note of an answer."""
        if isinstance(result, Failure):
            return replace(result, message=self.redact(result.message))
        self._has_answered = self._reached = True
        self._failed.clear()
        if not (result.prompt_tokens or self._warned):
            self._warned = True
            LOGGER.warning(
                "endpoint %s reports no plausible usage: its calls count at their maximum",
                self.name,
            )
        return replace(
            result,
            text=self.redact(result.text),
            response_model=self.redact(result.response_model),
            finish_reason=self.redact(result.finish_reason),
        )

    def count_failure(self, failure: Failure, model: str, attempts: int) -> LlmError:
        """Counts a failed call; returns its error, which may end the endpoint."""
        words, kind, most = failure.message, EndpointError, 1
        if failure.outcome in (AttemptOutcome.REFUSED, AttemptOutcome.OVERSIZED):
            kind, most = CallError, REFUSED_CALLS
        elif failure.outcome in OF_THE_TEXT:
            kind, most = TextError, REFUSED_CALLS
        elif failure.outcome is not AttemptOutcome.UNUSABLE:
            kind, most = DeadlineError, SILENT_CALLS
            words = f"no answer in {attempts} attempts, the last: {words}"
        # Silence counts together, whatever its words are; refusals count by their words.
        same = "" if kind is DeadlineError else words
        self._failed[same] += 1
        where = f"endpoint {self.name} ({self.access.base_url}), model {model}"
        if self._failed[same] < most:
            return kind(f"{where}: {words}")
        count = f"{most} calls in a row failed; " if most > 1 else ""
        error = EndpointError(f"{where}: {count}{words}")
        self.end(error)
        return error
