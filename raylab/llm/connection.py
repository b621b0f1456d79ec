"""The connections of one process to an endpoint, and the state of the endpoint."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import aiohttp
import httpx2
from pydantic import SecretStr

from raylab.config.llm import Endpoint, Lane
from raylab.errors import CallError, ConfigError, DeadlineError, EndpointError, LlmError
from raylab.llm.embedded import Embedded
from raylab.llm.endpoints import key_of
from raylab.llm.limits import Share, Slots
from raylab.llm.redaction import Redactor, scrub
from raylab.llm.transport import LARGEST_ANSWER, OversizeError, Transport
from raylab.llm.wire import AttemptOutcome, Completion, Failure, read_completion, read_status

SILENT_CALLS = 5
"""Consecutive calls that reached their deadline without an answer, after which a run ends."""
UNREACHED_DEADLINE = 120.0
"""Longest deadline in seconds while no connection to an endpoint was ever made."""
REFUSED_CALLS = 50
"""Consecutive calls refused in the same words, after which a run ends."""
TIMEOUTS = {Lane.STANDARD: 120.0, Lane.FLEX: 900.0}
"""Seconds for one attempt where none are configured."""
UNCONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, aiohttp.ClientConnectorError)

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """The clocks of a client; tests replace them."""

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    """Seconds since the epoch, for dates that servers give."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random
    """Uniform in [0, 1)."""


class Connection:
    """A connection to an endpoint, usable until it is ended.

    Args:
        name: Name of the endpoint in the configuration.
        endpoint: Its configuration.
        lane: The lane in which calls are sent.
        share: The share of this process in the calls in flight.
        embedded: The served embedded model, for an endpoint without base_url.
        timing: Clocks.

    Raises:
        ConfigError: The key is not in the environment, or the embedded model is not served.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        lane: Lane,
        share: Share,
        embedded: Embedded | None,
        timing: Timing,
    ) -> None:
        self.name = name
        self.form = endpoint.reply_format
        self.lane = lane
        self.timeout = endpoint.limits.timeout or TIMEOUTS[lane]
        """Seconds for one attempt."""
        self.base_url, self._key = _address(name, endpoint, embedded)
        self.slots = Slots(endpoint.limits, share)
        """Held while an attempt waits for the limits a minute, and is in flight."""
        self.turn = asyncio.Lock()
        """Held while waiting for the limits a minute, so that calls go in order."""
        self.redactor = Redactor([self.key])
        """Removes keys from answers; a client replaces it by one that knows all its keys."""
        self._deadline = endpoint.limits.deadline
        self._timing = timing
        self._not_before = float("-inf")
        self._ended: LlmError | None = None
        self._halted = asyncio.Event()
        self._answered = False
        self._reached = False
        self._warned = False
        self._silent = 0
        self._refused = 0
        self._refusal = ""
        self._transport = Transport(
            self.base_url,
            self.key,
            self.slots.most,
            trust_env=endpoint.base_url is not None,
        )

    @property
    def key(self) -> str:
        """The key of the endpoint; empty if it needs none."""
        return self._key.get_secret_value()

    def __repr__(self) -> str:
        return f"Connection({self.name}={self.base_url})"

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    def end(self, reason: LlmError) -> None:
        """Ends the connection and wakes all waiting calls."""
        self._ended = self._ended or reason
        self._halted.set()

    @property
    def has_ended(self) -> bool:
        """True if no further call may be sent."""
        return self._ended is not None

    def check(self) -> None:
        """Raises the reason of the end if the connection has ended."""
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)

    async def pause(self, seconds: float) -> None:
        """Waits until the time is over or the connection ends, then checks."""
        asleep = asyncio.ensure_future(self._timing.sleep(seconds))
        halted = asyncio.ensure_future(self._halted.wait())
        try:
            await asyncio.wait((asleep, halted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asleep.cancel()
            halted.cancel()
        self.check()

    def throttle(self, seconds: float) -> None:
        """Delays further calls for this many seconds."""
        self._not_before = max(self._not_before, self._timing.clock() + seconds)

    @property
    def throttled(self) -> float:
        """The remaining seconds of throttling; 0 or less if a call may be sent."""
        return self._not_before - self._timing.clock()

    @property
    def deadline(self) -> float:
        """The seconds for one call with all its attempts."""
        return self._deadline if self._reached else min(self._deadline, UNREACHED_DEADLINE)

    def warn_of_usage(self, problem: str) -> None:
        """Warns once of a usage that the endpoint says and that cannot be true."""
        if not self._warned:
            self._warned = True
            LOGGER.warning(
                "endpoint %s: %s: such calls count as much as they may take", self.name, problem
            )

    async def send(self, content: bytes) -> Completion | Failure:
        """Makes one attempt; removes keys from what the server says."""
        result = await self._send(content)
        if isinstance(result, Completion):
            return replace(
                result,
                text=self.redactor(result.text),
                response_model=self.redactor(result.response_model),
                finish_reason=self.redactor(result.finish_reason),
            )
        self._reached |= result.was_sent
        return replace(result, message=self.redactor(scrub(result.message, self.key)))

    async def _send(self, content: bytes) -> Completion | Failure:
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._transport.post(content)
        except TimeoutError:
            return Failure(AttemptOutcome.TIMEOUT, f"no answer within {self.timeout:g} s")
        except OversizeError:
            return Failure(
                AttemptOutcome.OVERSIZED,
                f"it has more than {LARGEST_ANSWER:,} bytes: lower max_tokens, or check that "
                "base_url is that of a chat endpoint",
            )
        except (httpx2.HTTPError, aiohttp.ClientError, OSError) as error:
            root = _root(error)
            return Failure(
                AttemptOutcome.CONNECTION,
                f"the connection failed: {type(root).__name__} {root}".rstrip(),
                was_sent=not _was_not_made(error),
            )
        if not answer.is_success:
            now = self._timing.now()
            return read_status(
                answer.status, answer.headers, answer.content, now, self._answered, self.lane
            )
        return read_completion(answer.content)

    def succeeded(self) -> None:
        """Counts an answered call."""
        self.slots.answered()
        self._answered = self._reached = True
        self._silent = self._refused = 0

    def failed(self, failure: Failure, model: str, attempts: int) -> LlmError:
        """Counts a failed call; returns its error, which may end the endpoint."""
        where = f"endpoint {self.name} ({self.base_url}), model {model}"
        said = failure.message
        if failure.outcome in (AttemptOutcome.REFUSED, AttemptOutcome.OVERSIZED):
            refused = failure.outcome is AttemptOutcome.REFUSED
            did = "refused" if refused else "gave no usable answer to"
            self._refused = self._refused + 1 if said == self._refusal else 1
            self._refusal = said
            if self._refused < REFUSED_CALLS:
                return CallError(f"{where}: {did} the call: {said}")
            said = f"{did} {self._refused} calls in a row: {said}"
        elif failure.outcome is not AttemptOutcome.UNUSABLE:
            self._silent += 1
            said = f"no answer in {attempts} attempts, the last: {said}"
            if self._silent < SILENT_CALLS:
                return DeadlineError(f"{where}: {said}")
            said = f"{self._silent} calls in a row failed; {said}"
        error = EndpointError(f"{where}: {said}")
        self.end(error)
        return error


def _address(name: str, endpoint: Endpoint, embedded: Embedded | None) -> tuple[str, SecretStr]:
    """Returns the address of an endpoint and its key, which is empty if it needs none."""
    if endpoint.base_url is None:
        if embedded is None:
            raise ConfigError(f"endpoint {name} has no base_url, and no embedded model is served")
        return embedded.base_url, embedded.api_key
    return endpoint.base_url, key_of(name, endpoint)


def _root(error: BaseException) -> BaseException:
    """Returns the innermost cause; the HTTP client wraps it in its own errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _was_not_made(error: BaseException | None) -> bool:
    """Returns True if no connection was made, so that nothing was sent."""
    while error is not None:
        if isinstance(error, UNCONNECTED):
            return True
        error = error.__cause__
    return False
