"""Limits on the calls to an endpoint: calls in flight, and calls and tokens per minute.

Each process adapts its own share of the calls in flight. The per-minute limits are shared by all
processes of a run, which reach the `RateLimiter` through a `RateLimiterClient`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raylab.llm.config import Limits, Service

FIRST_CALLS, MIN_CALLS, MAX_CALLS = 20, 10, 100
"""Calls in flight: at the start, after any number of refusals, and at most."""
GROWTH = 1.05
"""Growth with a clean round: as many answers as there may be calls in flight, and no failure."""
FALL = 0.8
"""Factor by which capacity drops at the first HTTP 429. Later 429s for calls sent before the drop
change nothing."""
PAUSE = 15.0
"""Seconds without calls after a drop, unless the server asks for another pause."""
MINUTE = 60.0
RECHECK = 1.0
"""Longest wait for tokens before asking again, because calls that end give tokens back."""


@dataclass(frozen=True)
class Share:
    """The share of one process, by its number from 0, in the calls in flight of a run."""

    number: int = 0
    count: int = 1

    def take(self, whole: int) -> int:
        """Returns this process's part of `whole`.

        The parts add up to `whole`, except that none is below 1.
        """
        return max(whole // self.count + (self.number < whole % self.count), 1)


def calls_at_once(llm: Service) -> tuple[int, int]:
    """Returns the fewest calls in flight that an endpoint in use starts with, and the most."""
    limits = [endpoint.limits.concurrency for endpoint in llm.used_endpoints.values()]
    return min(each or FIRST_CALLS for each in limits), max(each or MAX_CALLS for each in limits)


def limited_endpoints(llm: Service) -> set[str]:
    """Returns the names of the endpoints in use that have per-minute limits."""
    return {
        name
        for name, endpoint in llm.used_endpoints.items()
        if endpoint.limits.requests_per_minute or endpoint.limits.tokens_per_minute
    }


class Slots(asyncio.Semaphore):
    """Places for calls in flight, whose number adapts to the endpoint."""

    def __init__(self, limits: Limits, share: Share) -> None:
        most = limits.concurrency or MAX_CALLS
        self.most = share.take(most)
        """Calls that may ever be in flight."""
        self._least = share.take(min(MIN_CALLS, most))
        self._capacity = float(share.take(limits.concurrency or FIRST_CALLS))
        self._surplus = 0
        """Slots to remove as calls finish, after a drop in capacity."""
        self._clean = 0
        self._fell = float("-inf")
        super().__init__(self.capacity)

    @property
    def capacity(self) -> int:
        """The number of calls that may be in flight now."""
        return int(self._capacity)

    def release(self) -> None:
        """Frees a place, unless there are more than the capacity."""
        # A semaphore cannot take places from those who hold them: they are not given back.
        if self._surplus:
            self._surplus -= 1
        else:
            super().release()

    def count_answer(self) -> None:
        """Counts an answer; grows after a clean round."""
        self._clean += 1
        if self._clean >= self.capacity:
            self._clean = 0
            before, self._capacity = self.capacity, min(self._capacity * GROWTH, self.most)
            for _ in range(self.capacity - before):
                self.release()

    def count_failure(self) -> None:
        """Counts an attempt without an answer: the round is not clean."""
        self._clean = 0

    def count_refusal(self, sent: float, now: float) -> bool:
        """Counts an HTTP 429 to an attempt sent at `sent`; returns True if it begins an episode."""
        self._clean = 0
        # The drop came after this call was sent, so the refusal says nothing about it.
        if sent <= self._fell:
            return False
        before, self._capacity = self.capacity, max(self._capacity * FALL, self._least)
        self._fell = now
        self._surplus += before - self.capacity
        return True


class RateLimiterClient:
    """Access to the `RateLimiter` of a run from any process, by methods of the same names.

    `send` calls a method of the limiter, by its name and arguments.
    """

    def __init__(self, send: Callable[..., Awaitable[Any]]) -> None:
        self._send = send

    async def reserve(self, endpoint: str, tokens: int) -> float:
        return await self._send("reserve", endpoint, tokens)

    async def settle(self, endpoint: str, tokens: int, calls: int = 0) -> None:
        await self._send("settle", endpoint, tokens, calls)


class _Rate:
    """A rate by the generic cell rate algorithm, without bursts: uses come one after the other."""

    def __init__(self, limit: int | None) -> None:
        self._seconds = MINUTE / limit if limit else 0.0
        self.free = float("-inf")
        """Time from which the next use may begin."""

    def take(self, now: float, amount: int) -> None:
        self.free = max(self.free, now) + amount * self._seconds

    def give_back(self, amount: int) -> None:
        self.free -= amount * self._seconds


class RateLimiter:
    """A limiter that grants attempts evenly, within the per-minute limits of each endpoint.

    An endpoint never exceeds its calls per minute; it may exceed its tokens per minute by at most
    one call. The limiter queues no refused attempt and remembers no granted one: a dead process
    holds no place, and a limiter that restarts grants at most one call too many.
    """

    def __init__(
        self, limits: Mapping[str, Limits], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._calls = {name: _Rate(limit.requests_per_minute) for name, limit in limits.items()}
        self._tokens = {name: _Rate(limit.tokens_per_minute) for name, limit in limits.items()}

    def reserve(self, endpoint: str, tokens: int) -> float:
        """Grants an attempt of at most this many tokens, or refuses it for now.

        Returns 0 if the attempt may be sent now, else the seconds after which to ask again.
        """
        now = self._clock()
        calls, used = self._calls[endpoint], self._tokens[endpoint]
        # Tokens may be given back long before their turn; the turns of calls stay as they are.
        start = max(calls.free, min(used.free, now + RECHECK))
        if start > now:
            return start - now
        calls.take(now, 1)
        used.take(now, tokens)
        return 0.0

    def settle(self, endpoint: str, tokens: int, calls: int = 0) -> None:
        """Gives back tokens that an attempt did not use, and the call if it was not sent."""
        self._tokens[endpoint].give_back(tokens)
        self._calls[endpoint].give_back(calls)
