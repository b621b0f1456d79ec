"""An evaluator that answers when a test says so."""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from aiohttp import web
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.llm.scripted_server import Answer, Call, ScriptedServer

SECONDS = 60.0
"""Longest wait for what must come; no test depends on how long it takes."""


class _Held(ScriptedServer):
    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.came = asyncio.Condition()

    async def _send(self, request: web.Request, call: Call, answer: Answer) -> web.StreamResponse:
        async with self.came:
            self.came.notify_all()
        await self.gate.wait()
        return await super()._send(request, call, answer)


class HeldEvaluator:
    """A chat server in a thread of its own, which holds every answer until it is released."""

    def __init__(self, portal: BlockingPortal, server: _Held) -> None:
        self._portal = portal
        self._server = server

    @property
    def url(self) -> str:
        return self._server.base_url

    @property
    def calls(self) -> list[str]:
        """The hashes of the calls that came, in order."""
        return [call.hash for call in self._server.calls]

    @property
    def most_in_flight(self) -> int:
        return self._server.most_in_flight

    def wait_for(self, calls: int) -> None:
        """Waits until so many calls have come."""
        self._portal.call(self._until, calls)

    def release(self) -> None:
        """Answers all calls, those that come later as well."""
        self._portal.call(self._server.gate.set)

    def hold(self) -> None:
        """Holds the calls that come from now on."""
        self._portal.call(self._server.gate.clear)

    async def _until(self, calls: int) -> None:
        async with asyncio.timeout(SECONDS), self._server.came:
            await self._server.came.wait_for(lambda: len(self._server.calls) >= calls)


@contextmanager
def held_evaluator() -> Generator[HeldEvaluator]:
    with start_blocking_portal() as portal:
        server = portal.call(_Held)
        portal.call(server.start)
        evaluator = HeldEvaluator(portal, server)
        try:
            yield evaluator
        finally:
            evaluator.release()
            portal.call(server.stop)


def wait_until(holds: Callable[[], object]) -> None:
    """Waits for something that another thread does and nobody is told of."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
