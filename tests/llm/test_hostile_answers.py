"""Answers made to fill memory or to break the client, from a real server on loopback."""

import zlib

import pytest
from aiohttp import web

from raylab.llm.client import Client
from raylab.llm.connection import MAX_ANSWER, MAX_ERROR
from tests.llm.scripted_server import Answer, ScriptedServer
from tests.llm.test_client import Notebook, ask, awaited, config, error_of, serving
from tests.memory import MIB, memory

TOO_LONG = f"the answer has more than {MAX_ANSWER:,} bytes"


class EndlessServer(ScriptedServer):
    """Answers with a body that does not end, and says how much of it was taken."""

    status = 200
    sent = 0

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        piece = b"x" * MIB
        try:
            while True:
                await response.write(piece)
                self.sent += len(piece)
        except ConnectionError:
            return response


@pytest.mark.timeout(60)
@pytest.mark.parametrize("status", [200, 400])
@awaited
async def test_endless_answer_is_left_after_its_limit(status: int) -> None:
    server = EndlessServer()
    server.status = status
    async with server:
        llm = config(server.base_url, timeout=600)
        async with Client(llm, Notebook()) as client:
            with memory():
                error = await error_of(ask(client))
    most = MAX_ANSWER if status == 200 else MAX_ERROR
    # Beside what was read, some is in the buffers of both ends.
    assert server.sent < most + 64 * MIB
    assert (TOO_LONG in str(error)) is (status == 200)
    assert len(str(error)) < 1000


@awaited
async def test_compressed_answer_is_limited_by_what_it_expands_to() -> None:
    packer = zlib.compressobj(1, wbits=31)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(200)) + packer.flush()
    answer = Answer(packed, headers={"Content-Encoding": "gzip"})
    journal = Notebook()
    async with serving(lambda _: answer, journal=journal) as (server, client):
        with memory(100 * MIB):
            error = await error_of(ask(client))
    assert TOO_LONG in str(error)
    # It was paid, so it is not bought again.
    assert (len(server.calls), journal.kept) == (1, [])
