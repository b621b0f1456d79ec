"""Limits that all processes of a run share: calls and tokens a minute.

`RateLimiter` is synchronous; other processes reach it through a `RateLimiterClient`. A permit means
"send now". Refused requests are not queued: the caller asks again after the wait. So a dead process
holds no place in a queue, and a penalty applies to everyone.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from raylab.config.annotation import LlmConfig
from raylab.config.llm import Limits

MINUTE = 60.0
BURST = 10
"""Burst = limit / BURST: the part of a minute's limit that may be used at once."""


def limited_endpoints(llm: LlmConfig) -> set[str]:
    """Returns the names of the endpoints in use whose calls need a permit."""
    limits = {chat.endpoint: llm.endpoints[chat.endpoint].limits for chat in llm.roles.values()}
    return {
        name
        for name, limit in limits.items()
        if limit.requests_per_minute or limit.tokens_per_minute
    }


@dataclass(frozen=True)
class Permit:
    """Permission to send one attempt now, or the time to wait before asking again.

    Attributes:
        number: identifies the permit when it is settled, also after a restart of the limiter; 0 if
            none was granted.
        wait: seconds until the caller should ask again; 0 if granted.
    """

    number: int
    wait: float

    @property
    def granted(self) -> bool:
        """True if the attempt may be sent."""
        return self.number != 0


class RateLimiterClient(Protocol):
    """Access to the limiter of a run from any process."""

    async def reserve(self, endpoint: str, tokens: int) -> Permit:
        """Asks to send an attempt of at most this many tokens."""
        ...

    async def settle(self, number: int, tokens: int) -> None:
        """Reports the tokens of an attempt that ended."""
        ...

    async def cancel(self, number: int) -> None:
        """Gives back the permit of an attempt that was not sent."""
        ...

    async def penalise(self, endpoint: str, seconds: float) -> None:
        """Grants no permit for the endpoint for this many seconds, at the request of its server."""
        ...


@dataclass(slots=True, eq=False)
class _Use:
    """Calls or tokens used at a time."""

    at: float
    amount: int


class _Window:
    """A limit on the use within the half-open interval (now - seconds, now]."""

    def __init__(self, seconds: float, limit: float) -> None:
        self._seconds = seconds
        self._limit = limit
        self._uses: deque[_Use] = deque()
        self._total = 0

    def wait(self, now: float, amount: int) -> float:
        """Returns the seconds until the amount fits; above the limit, until no use is left."""
        self._forget(now)
        excess = self._total + amount - self._limit
        if excess <= 0 or not self._total:
            return 0.0
        for use in self._uses:
            excess -= use.amount
            if excess <= 0:
                break
        else:
            use = self._uses[-1]
        return use.at + self._seconds - now

    def add(self, use: _Use) -> None:
        self._uses.append(use)
        self._total += use.amount

    def shrink(self, now: float, use: _Use, amount: int) -> None:
        """Changes the amount of an earlier use."""
        self._forget(now)
        if use.at + self._seconds > now:
            self._total += amount - use.amount

    def _forget(self, now: float) -> None:
        while self._uses and self._uses[0].at + self._seconds <= now:
            self._total -= self._uses.popleft().amount


class _Rate:
    """A limit that holds in every minute and, for an even flow, in shorter windows."""

    def __init__(self, limit: int) -> None:
        burst = max(1, limit // BURST)
        self._minute = _Window(MINUTE, limit)
        self._burst = _Window(MINUTE * burst / limit, burst)

    def wait(self, now: float, amount: int) -> float:
        # The burst window counts 1, so that large calls can use up the whole minute.
        return max(self._minute.wait(now, amount), self._burst.wait(now, 1))

    def add(self, use: _Use) -> None:
        self._minute.add(use)
        self._burst.add(use)

    def settle(self, now: float, use: _Use, amount: int) -> None:
        self._minute.shrink(now, use, amount)
        self._burst.shrink(now, use, amount)
        use.amount = amount


class _EndpointLimits:
    """The limits of one endpoint and its use so far."""

    def __init__(self, limits: Limits) -> None:
        self.not_before = float("-inf")
        calls, tokens = limits.requests_per_minute, limits.tokens_per_minute
        self.calls = None if calls is None else _Rate(calls)
        self.tokens = None if tokens is None else _Rate(tokens)

    def wait(self, now: float, tokens: int) -> float:
        wait = self.not_before - now
        if self.calls is not None:
            wait = max(wait, self.calls.wait(now, 1))
        if self.tokens is not None:
            wait = max(wait, self.tokens.wait(now, tokens))
        return wait

    def take(self, now: float, tokens: int) -> tuple[_Use, _Use]:
        """Counts a call with its tokens; returns the uses to be settled."""
        call, use = _Use(now, 1), _Use(now, tokens)
        if self.calls is not None:
            self.calls.add(call)
        if self.tokens is not None:
            self.tokens.add(use)
        return call, use

    def give_back(self, now: float, call: _Use, use: _Use) -> None:
        """Counts a call that was not sent no more."""
        if self.calls is not None:
            self.calls.settle(now, call, 0)
        if self.tokens is not None:
            self.tokens.settle(now, use, 0)


@dataclass(slots=True, eq=False)
class _Reservation:
    limits: _EndpointLimits
    call: _Use
    use: _Use


class RateLimiter:
    """A source of permits within the limits of the endpoints.

    In any 60 seconds an endpoint gets at most its calls and tokens a minute. A call counts with its
    reserved tokens until it is settled. A call that exceeds a minute's tokens is sent alone.

    Args:
        limits: Limits by endpoint.
        clock: Monotonic seconds.
    """

    def __init__(
        self, limits: Mapping[str, Limits], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoints = {name: _EndpointLimits(limit) for name, limit in limits.items()}
        self._clock = clock
        self._reserved: dict[int, _Reservation] = {}

    def reserve(self, endpoint: str, tokens: int) -> Permit:
        """Returns a permit; see `RateLimiterClient.reserve`."""
        now, limits = self._clock(), self._endpoints[endpoint]
        self._forget_old(now)
        wait = limits.wait(now, tokens)
        if wait > 0:
            return Permit(0, wait)
        number = secrets.randbits(62) + 1
        self._reserved[number] = _Reservation(limits, *limits.take(now, tokens))
        return Permit(number, 0.0)

    def settle(self, number: int, tokens: int) -> None:
        """Counts the tokens of an attempt; see `RateLimiterClient.settle`."""
        reservation = self._reserved.pop(number, None)
        if reservation is not None and reservation.limits.tokens is not None:
            reservation.limits.tokens.settle(self._clock(), reservation.use, tokens)

    def cancel(self, number: int) -> None:
        """Gives back the permit of an attempt that was not sent."""
        reservation = self._reserved.pop(number, None)
        if reservation is not None:
            reservation.limits.give_back(self._clock(), reservation.call, reservation.use)

    def penalise(self, endpoint: str, seconds: float) -> None:
        """Grants no permit for the endpoint for this many seconds."""
        limits = self._endpoints[endpoint]
        limits.not_before = max(limits.not_before, self._clock() + seconds)

    def _forget_old(self, now: float) -> None:
        """Drops permits of more than a minute ago, whose settlement changes nothing."""
        while self._reserved:
            number, oldest = next(iter(self._reserved.items()))
            if oldest.call.at + MINUTE > now:
                return
            del self._reserved[number]


class LocalRateLimiter:
    """The client of a limiter in the same process."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def reserve(self, endpoint: str, tokens: int) -> Permit:
        """See `RateLimiterClient.reserve`."""
        return self._limiter.reserve(endpoint, tokens)

    async def settle(self, number: int, tokens: int) -> None:
        """See `RateLimiterClient.settle`."""
        self._limiter.settle(number, tokens)

    async def cancel(self, number: int) -> None:
        """See `RateLimiterClient.cancel`."""
        self._limiter.cancel(number)

    async def penalise(self, endpoint: str, seconds: float) -> None:
        """See `RateLimiterClient.penalise`."""
        self._limiter.penalise(endpoint, seconds)
