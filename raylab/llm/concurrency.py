"""The number of calls in flight at an endpoint, which finds itself."""

import asyncio
from collections import deque
from dataclasses import dataclass

from raylab.config.annotation import LlmConfig
from raylab.config.llm import Limits

FIRST, LEAST, MOST = 20, 10, 100
"""Calls in flight: at the start, after any number of refusals, and at most."""
GROWTH = 1.05
"""Growth with a clean round: as many answers as there may be calls in flight, and no failure."""
FALL = 0.8
"""Fall with the first HTTP 429 of an episode, whose calls were all sent before the fall."""
PAUSE = 15.0
"""Seconds after a fall in which no call is sent, unless the server asks for others."""


@dataclass(frozen=True)
class Share:
    """The share of one process in the calls in flight of a run.

    Attributes:
        number: number of the process, from 0.
        count: number of processes.
    """

    number: int = 0
    count: int = 1

    def take(self, whole: int) -> int:
        """Returns this share of a number; shares sum to it, but that each has at least 1."""
        return max(whole // self.count + (self.number < whole % self.count), 1)


def fewest_calls(llm: LlmConfig) -> int:
    """Returns the number of calls at once with which the endpoint of each role starts, at least."""
    used = {chat.endpoint for chat in llm.roles.values()}
    return min(llm.endpoints[name].limits.concurrency or FIRST for name in used)


def most_calls(llm: LlmConfig) -> int:
    """Returns the number of calls that the endpoint of some role takes at once, at most."""
    used = {chat.endpoint for chat in llm.roles.values()}
    return max(llm.endpoints[name].limits.concurrency or MOST for name in used)


class Slots:
    """Places for calls in flight, given in order; `async with` holds one.

    Args:
        limits: The limits of the endpoint.
        share: The share of this process.
    """

    def __init__(self, limits: Limits, share: Share) -> None:
        most = limits.concurrency or MOST
        self.most = share.take(most)
        """Calls that may ever be in flight."""
        self._least = share.take(min(LEAST, most))
        self._allowed = float(share.take(limits.concurrency or FIRST))
        self._used = 0
        self._clean = 0
        self._fell = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def allowed(self) -> int:
        """The number of calls that may be in flight now."""
        return int(self._allowed)

    async def __aenter__(self) -> None:
        if self._used < self.allowed:
            self._used += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def answered(self) -> None:
        """Counts an answer; grows after a clean round."""
        self._clean += 1
        if self._clean >= self.allowed:
            self._clean = 0
            self._allowed = min(self._allowed * GROWTH, self.most)
            self._admit()

    def failed(self) -> None:
        """Counts an attempt without an answer: the round is not clean."""
        self._clean = 0

    def refused(self, sent: float, now: float) -> bool:
        """Counts an HTTP 429; returns True if it is the first of an episode.

        Args:
            sent: Time when the attempt was sent.
            now: Time now.
        """
        self._clean = 0
        if sent <= self._fell:
            return False
        self._fell = now
        self._allowed = max(self._allowed * FALL, self._least)
        return True

    def _leave(self) -> None:
        self._used -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._used < self.allowed:
            place = self._waiting.popleft()
            if not place.done():
                self._used += 1
                place.set_result(None)
