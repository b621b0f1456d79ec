"""Answers made to fill memory or to break the client, from a real server on loopback."""

import gzip
import json
import random
import zlib

import pytest
from aiohttp import web

from raylab.errors import CallError, EndpointError, RaylabError
from raylab.llm.client import Client
from raylab.llm.connection import REFUSED_CALLS
from raylab.llm.transport import LARGEST_ANSWER, LARGEST_ERROR
from raylab.llm.wire import (
    AttemptOutcome,
    Completion,
    Failure,
    read_completion,
    read_status,
    retry_after,
    server_words,
)
from tests.fuzzing import try_altered
from tests.llm.scripted_server import Answer, Call, ScriptedServer, completion, failure, in_turn
from tests.llm.test_client import Clock, Notebook, ask, awaited, config, error_of, says
from tests.memory import MIB, memory

TOO_LONG = f"gave no usable answer to the call: it has more than {LARGEST_ANSWER:,} bytes"


def stuffed(size: int) -> bytes:
    """A chat completion of this size."""
    body = {"choices": [{"message": {"content": "here"}}], "thoughts": ""}
    start = json.dumps(body).encode().removesuffix(b'"}')
    return start + b"x" * (size - len(start) - 2) + b'"}'


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
@pytest.mark.parametrize("status", [200, 307, 400])
@awaited
async def test_endless_answer_is_left_after_its_limit(status: int) -> None:
    server = EndlessServer()
    server.status = status
    async with server:
        llm = config(server.base_url, timeout=600)
        async with Client(llm, Notebook()) as client:
            with memory():
                error = await error_of(ask(client))
    most = LARGEST_ANSWER if status == 200 else LARGEST_ERROR
    # Beside what was read, some is in the buffers of both ends.
    assert server.sent < most + 64 * MIB
    assert (TOO_LONG in str(error)) is (status == 200)
    assert len(str(error)) < 1000


@pytest.mark.parametrize("form", ["gzip", "deflate"])
@awaited
async def test_compressed_answer_is_limited_by_what_it_expands_to(form: str) -> None:
    packer = zlib.compressobj(1, wbits=31 if form == "gzip" else 15)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(200)) + packer.flush()
    answer = Answer(packed, headers={"Content-Encoding": form})
    async with ScriptedServer(lambda _: answer) as server:
        async with Client(config(server.base_url), journal := Notebook()) as client:
            with memory(100 * MIB):
                error = await error_of(ask(client))
    assert TOO_LONG in str(error)
    # It was paid, so it is not bought again.
    assert (len(server.calls), journal.kept) == (1, [])


@awaited
async def test_answer_of_the_largest_size_is_read() -> None:
    bodies = in_turn(Answer(stuffed(LARGEST_ANSWER)), Answer(stuffed(LARGEST_ANSWER + 1)))
    async with ScriptedServer(bodies) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            assert (await ask(client)).text == "here"
            assert type(await error_of(ask(client, "again"))) is CallError


@awaited
async def test_compressed_answer_is_read() -> None:
    def packed(call: Call) -> Answer:
        plain = completion(call, "all of it")
        return Answer(gzip.compress(plain.body), headers={"Content-Encoding": "gzip"})

    async with ScriptedServer(packed) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            assert (await ask(client)).text == "all of it"


@awaited
async def test_oversized_answers_in_a_row_end_the_endpoint() -> None:
    async with ScriptedServer(lambda _: Answer(stuffed(LARGEST_ANSWER + 1))) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            errors = [await error_of(ask(client, f"call {n}")) for n in range(REFUSED_CALLS)]
    assert {type(error) for error in errors[:-1]} == {CallError}
    assert type(errors[-1]) is EndpointError
    assert f"gave no usable answer to {REFUSED_CALLS} calls in a row" in str(errors[-1])


@awaited
async def test_redirect_is_not_followed() -> None:
    async with ScriptedServer(says("from elsewhere")) as other:
        moved = Answer(status=307, headers={"Location": f"{other.base_url}/chat/completions"})
        async with ScriptedServer(lambda _: moved) as server:
            async with Client(config(server.base_url), Notebook()) as client:
                error = await error_of(ask(client))
    assert type(error) is EndpointError
    assert "HTTP 307 Temporary Redirect; base_url should be the address that" in str(error)
    assert other.calls == []


DEEP = {
    "list": b"[" * 100_000,
    "object": b'{"a":' * 100_000,
    "field": b'{"choices": [{"message": {"content": "x"}}], "y": ' + b"[" * 100_000,
    "closed": b'{"error": {"message": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
def test_deep_answer_is_a_failed_attempt(body: bytes) -> None:
    result = read_completion(body)
    assert isinstance(result, Failure)
    assert result.outcome is AttemptOutcome.MALFORMED
    assert len(server_words(body)) <= 401


@awaited
async def test_deep_answers_are_tried_again_and_end_the_call() -> None:
    deep = Answer(DEEP["list"])
    behave = in_turn(deep, says("x"), Answer(DEEP["object"], status=400), says("y"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url), Notebook(), timing=Clock().timing) as client:
            assert (await ask(client)).text == "x"
            assert "HTTP 400" in str(await error_of(ask(client, "other")))


# Altered answers


def sample() -> bytes:
    call = Call({"model": "m", "messages": []}, "0" * 64, 1)
    return completion(call, "here").body


def test_altered_answers_are_completions_or_failures() -> None:
    errors = [failure(429, "slow", retry_after=7).body, b'{"detail": [{"loc": ["body", 1]}]}']

    def read(content: bytes) -> None:
        assert isinstance(read_completion(content), Completion | Failure)
        draw = random.Random(content)
        headers = {draw.choice(RETRY_HEADERS): content[:40].decode("latin-1")}
        status = draw.choice((0, 99, 204, 302, 400, 401, 404, 429, 500, 599, 999))
        result = read_status(status, headers, content, 1e9, draw.random() < 0.5)
        assert len(result.message) < 1000

    try_altered([sample(), *errors], read, RaylabError)


RETRY_HEADERS = ("retry-after", "retry-after-ms", "x-ms-retry-after-ms")


@pytest.mark.parametrize(
    "value",
    [
        *("Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359", "Mon, 01 Jan 0001"),
        *(
            "9" * 400,
            "1e308",
            "-1e308",
            "0 0",
            "Mon, 32 Jan 2026 99:99:99 GMT",
            "\u0661",
            "\0",
            ",",
        ),
        *("Mon, 01 Jan 2026 00:00:00 +99999999", "1 Jan 99999999 1:1", "Jan", "(", '"', "1:" * 999),
    ],
)
@pytest.mark.parametrize("name", RETRY_HEADERS)
def test_any_pause_is_read_or_passed_over(name: str, value: str) -> None:
    pause = retry_after({name: value}, 1e9)
    assert pause is None or 0 <= pause < float("inf")
