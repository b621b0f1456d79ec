"""The client against a real server on loopback; only time is replaced, where a test would wait."""

import asyncio
import functools
import itertools
import logging
import socket
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import fields, replace
from typing import Any
from unittest.mock import AsyncMock
from unittest.mock import call as mock_call

import pytest

from raylab.core.errors import CallError, DeadlineError, EndpointError, LlmError, StoppedError
from raylab.label.config.jobs import LlmConfig
from raylab.llm.chat import ChatRequest, Claim, Cost, Message, Reply
from raylab.llm.client import Client
from raylab.llm.config import ChatModel, Endpoint, Limits, Price, ReplyFormat
from raylab.llm.connection import REFUSED_CALLS, SILENT_CALLS, Timing
from raylab.llm.limits import RateLimiterClient
from raylab.llm.wire import Failure
from tests.llm.scripted_server import (
    Answer,
    Behaviour,
    Call,
    Model,
    ScriptedServer,
    completion,
    failure,
    in_turn,
)

KEY = "sk-test-1f2e3d4c5b6a79880011"
PATIENCE = 20.0
SCHEMA = {"title": "a verdict!" + "x" * 80, "type": "object", "properties": {}}


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test in an event loop of its own, which ends whatever happens."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE))

    return run


class Notebook:
    """A journal in memory, without batches."""

    open_batch = find_batch = note_batch = end_batch = AsyncMock(side_effect=NotImplementedError)

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.kept: list[tuple[ChatRequest, str, str]] = []
        self.claimed: dict[str, str] = {}
        """Keys of the attempts in flight, by claim."""
        self.ended: list[bool] = []
        """For each attempt without an answer, whether it may be billed."""
        self.numbers = itertools.count()

    async def get(self, key: str, description_hash: str) -> Reply | None:
        return self.replies.get(key)

    async def claim(self, key: str, most: Cost) -> Claim | Reply | None:
        if key in self.claimed.values():
            return None
        if key in self.replies:
            return self.replies[key]
        claim = Claim(str(next(self.numbers)), key, most)
        self.claimed[claim.id] = key
        return claim

    def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str, claim: Claim
    ) -> Awaitable[None]:
        async def store() -> None:
            del self.claimed[claim.id]
            self.replies[reply.key] = reply
            self.kept.append((request, description_hash, role))

        return store()

    async def end(self, claim: Claim, paid: bool) -> None:
        del self.claimed[claim.id]
        self.ended.append(paid)


class Clock:
    """Time that passes only in pauses, and in those only while it is not stopped."""

    def __init__(self, draw: float = 0.0) -> None:
        self.time = 1_000_000.0
        self.draw = draw
        self.pauses: list[float] = []
        self.runs = asyncio.Event()
        self.runs.set()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        end = self.time + seconds
        await self.runs.wait()
        self.time = max(self.time, end)
        await asyncio.sleep(0)

    @property
    def timing(self) -> Timing:
        return Timing(lambda: self.time, lambda: self.time, self.sleep, lambda: self.draw)


def config(base_url: str | None, key_env: str | None = None, **settings: Any) -> LlmConfig:
    """An evaluator at `base_url`, None for the embedded model, and an endpoint of no use."""
    limits = {name: settings.pop(name) for name in Limits.model_fields.keys() & settings.keys()}
    main = Endpoint(
        base_url=base_url,
        api_key_env=key_env,
        reply_format=settings.pop("form", ReplyFormat.JSON_SCHEMA),
        limits=Limits(**limits),
    )
    idle = Endpoint(base_url="http://nowhere.invalid/v1", api_key_env="RAYLAB_NO_SUCH_KEY")
    evaluator = ChatModel(model=settings.pop("model", "m"), endpoint="main")
    endpoints = {"main": main, "idle": idle}
    return LlmConfig.model_validate({"endpoints": endpoints, "evaluator": evaluator, **settings})


def request(text: str = "hello", **changes: Any) -> ChatRequest:
    whole = ChatRequest(
        endpoint="main",
        base_url="http://somewhere/v1",
        model="m",
        messages=(Message("system", "Answer."), Message("user", text)),
        parameters={"temperature": 0.5, "max_tokens": 30},
        seed=7,
    )
    return replace(whole, **changes)


def says(text: str, **changes: Any) -> Callable[[Call], Answer]:
    return lambda call: completion(call, text, **changes)


def ask(client: Client, text: str = "hello", **changes: Any) -> Coroutine[Any, Any, Reply]:
    return client.complete(request(text, **changes), "description_hash", "classify-a")


@asynccontextmanager
async def serving(
    behave: Behaviour,
    journal: Notebook | None = None,
    clock: Clock | None = None,
    limiter: RateLimiterClient | None = None,
    on_attempt: Callable[[Reply | Failure], None] = lambda result: None,
    latency: float = 0.0,
    key: str | None = None,
    **settings: Any,
) -> AsyncGenerator[tuple[ScriptedServer, Client]]:
    """A server and a client of it; `settings` are those of `config`."""
    async with ScriptedServer(behave, latency, key=key) as server:
        llm, timing = config(server.base_url, **settings), clock and clock.timing
        journal = journal or Notebook()
        async with Client(llm, journal, limiter, on_attempt=on_attempt, timing=timing) as client:
            yield server, client


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def error_of(call: Awaitable[Reply]) -> LlmError:
    try:
        await call
    except LlmError as error:
        return error
    raise AssertionError("no error")


@awaited
async def test_reply_is_what_the_server_said() -> None:
    prices = {"m": Price(input=2.0, cached_input=1.0, output=10.0)}
    usage = {
        "prompt_tokens": 1_000,
        "completion_tokens": 300,
        "prompt_tokens_details": {"cached_tokens": 600},
        "completion_tokens_details": {"reasoning_tokens": 250},
    }
    async with serving(says("the text", usage=usage), prices=prices) as (_, client):
        reply = await ask(client)
    assert (reply.key, reply.text) == (request().key, "the text")
    assert (reply.response_model, reply.finish_reason) == ("m-scripted fp_1", "stop")
    assert (reply.prompt_tokens, reply.cached_prompt_tokens) == (1_000, 600)
    assert (reply.completion_tokens, reply.reasoning_tokens) == (300, 250)
    # 400 at 2, 600 at 1 and 300 at 10, a million
    assert reply.cost == pytest.approx((800 + 600 + 3_000) / 1e6)
    assert (reply.attempts, reply.cached) == (1, False)
    assert 0 < reply.seconds < PATIENCE


# Servers take no other names.
ENFORCED = {"name": "a_verdict_" + "x" * 54, "schema": SCHEMA, "strict": True}
FORMS: dict[ReplyFormat, Any] = {
    ReplyFormat.JSON_SCHEMA: {"type": "json_schema", "json_schema": ENFORCED},
    ReplyFormat.JSON_OBJECT: {"type": "json_object"},
    ReplyFormat.TEXT: None,
}


@pytest.mark.parametrize(("form", "sent"), FORMS.items())
@awaited
async def test_body_of_the_call(form: ReplyFormat, sent: object) -> None:
    parameters = {"model": "other", "messages": [], "temperature": 0.5, "max_tokens": 30}
    async with serving(says("x"), form=form) as (server, client):
        await ask(client, "grün", schema=SCHEMA, salt="again", parameters=parameters)
    assert server.calls[0].body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Answer."}, {"role": "user", "content": "grün"}],
        "temperature": 0.5,
        "max_tokens": 30,
        "seed": 7,
    } | ({} if sent is None else {"response_format": sent})
    assert server.calls[0].headers["Content-Type"] == "application/json"
    assert "Authorization" not in server.calls[0].headers


CHANGES: dict[str, Any] = {
    "base_url": "http://elsewhere/v1",
    "model": "n",
    "messages": request().messages[::-1],
    "parameters": {"temperature": 0.6, "max_tokens": 30},
    "seed": 8,
    "schema": {"type": "object"},
    "salt": "again",
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changes_a_call_changes_its_key(name: str) -> None:
    assert request(**{name: CHANGES[name]}).key != request().key


def test_the_local_name_of_an_endpoint_and_the_order_of_parameters_change_no_key() -> None:
    assert {field.name for field in fields(ChatRequest)} - CHANGES.keys() == {"endpoint", "lane"}
    same = request(parameters=dict(reversed([*request().parameters.items()])))
    assert replace(same, endpoint="other").key == request().key


FAILURES: dict[str, tuple[Answer, str, str]] = {
    "429": (
        failure(429, "slow down", retry_after=0),
        "rate_limited",
        "HTTP 429 Too Many Requests: slow down",
    ),
    "503": (failure(503, "busy"), "server_error", "HTTP 503 Service Unavailable: busy"),
    "hang": (Answer(hangs=True), "timeout", "no answer within 0.2 s"),
    "cut": (Answer(cut="before"), "connection", "the connection failed: "),
}


@pytest.mark.parametrize(("answer", "outcome", "words"), FAILURES.values(), ids=FAILURES)
@awaited
async def test_failure_that_may_pass_is_tried_again_until_the_deadline(
    answer: Answer, outcome: str, words: str
) -> None:
    results = list[Reply | Failure]()
    journal, clock, on_attempt = Notebook(), Clock(draw=0.5), results.append
    limits = {"timeout": 0.2 if answer.hangs else 30.0, "deadline": 2}
    behave = in_turn(answer, says("at last"), answer)
    async with serving(behave, journal, clock, on_attempt=on_attempt, **limits) as (server, client):
        reply = await ask(client)
        assert (reply.text, reply.attempts, len(server.calls)) == ("at last", 2, 2)
        assert server.calls[0].hash == server.calls[1].hash
        failed, answered = results
        assert isinstance(failed, Failure) and failed.outcome == outcome
        assert answered == reply
        error = await error_of(ask(client, "other"))
    assert type(error) is DeadlineError
    for piece in ("main", server.base_url, "model m", "no answer in ", words):
        assert piece in str(error)
    assert journal.ended == [outcome not in ("rate_limited", "server_error")] * len(journal.ended)


@awaited
async def test_what_was_not_sent_is_tried_for_two_minutes_and_not_billed() -> None:
    journal, clock = Notebook(), Clock(draw=0.5)
    with ExitStack() as stack:
        # It neither accepts connections nor refuses them.
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            stack.enter_context(waiting := socket.socket()).setblocking(False)
            waiting.connect_ex(server.getsockname())
        llm = config(f"http://127.0.0.1:{server.getsockname()[1]}/v1", timeout=0.2)
        async with Client(llm, journal, timing=clock.timing) as client:
            assert type(await error_of(ask(client))) is DeadlineError
    assert journal.ended == [False] * 9
    # half of 1, 2, 4, ... seconds, of which 60 is the most
    assert clock.pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


@awaited
async def test_what_was_sent_and_then_cancelled_may_be_billed() -> None:
    behave = in_turn(Answer(hangs=True), says("x"))
    async with serving(behave, journal := Notebook()) as (server, client):
        first = asyncio.ensure_future(ask(client))
        await until(lambda: server.calls)
        first.cancel()
        assert (await ask(client, "other")).text == "x"
    assert journal.ended == [True]


@awaited
async def test_nobody_sends_before_the_end_of_a_rate_limit() -> None:
    clock = Clock(draw=0.5)
    clock.runs.clear()
    behave = in_turn(failure(429, "wait", retry_after=7), says("x"))
    async with serving(behave, clock=clock) as (server, client):
        first = asyncio.ensure_future(ask(client, "first"))
        await until(lambda: clock.pauses)
        second = asyncio.ensure_future(ask(client, "second"))
        await until(lambda: len(clock.pauses) == 2)
        assert (clock.pauses, len(server.calls)) == ([7.5, 7], 1)
        clock.runs.set()
        assert {(await first).attempts, (await second).attempts} == {1, 2}


@pytest.mark.parametrize(
    ("status", "kind", "most"),
    [(400, CallError, REFUSED_CALLS), (503, DeadlineError, SILENT_CALLS), (404, EndpointError, 1)],
)
@awaited
async def test_endpoint_is_left_after_so_many_failures_in_a_row(
    status: int, kind: type[LlmError], most: int
) -> None:
    fails = [failure(status, "as scripted")] * most
    async with serving(in_turn(*fails[1:], says("x"), *fails), deadline=1e-9) as (server, client):
        errors = [await error_of(ask(client, f"before {i}")) for i in range(most - 1)]
        assert (await ask(client)).text == "x"
        errors += [await error_of(ask(client, str(i))) for i in range(most)]
        again = await error_of(ask(client, "again"))
    assert [type(error) for error in errors] == [kind] * 2 * (most - 1) + [EndpointError]
    assert all(f"HTTP {status} " in str(error) for error in errors)
    assert all(piece in str(errors[0]) for piece in ("main", "model m", ": as scripted"))
    assert (f"{most} calls in a row failed; " in str(errors[-1])) is (most > 1)
    assert (type(again), str(again)) == (EndpointError, str(errors[-1]))
    assert len(server.calls) == 2 * most


@awaited
async def test_half_a_surrogate_pair_is_refused_here() -> None:
    async with serving(Model()) as (server, client):
        error = await error_of(ask(client, "broken \ud83d text"))
    assert type(error) is CallError
    assert "surrogate" in str(error)
    assert server.calls == []


@awaited
async def test_claim_that_came_before_a_long_suspension_is_asked_for_again() -> None:
    clock = Clock()

    class Suspended(Notebook):
        asked = 0

        async def claim(self, key: str, most: Cost) -> Claim | Reply | None:
            claim = await super().claim(key, most)
            self.asked += 1
            if self.asked == 1:
                clock.time += 3600
            return claim

    journal = Suspended()
    async with serving(says("x"), journal=journal, clock=clock) as (server, client):
        await ask(client)
    assert (journal.asked, len(server.calls), journal.claimed) == (2, 1, {})


@awaited
async def test_stop_finishes_what_is_in_flight_and_starts_nothing() -> None:
    clock = Clock()
    clock.runs.clear()
    behave = in_turn(says("kept"), failure(500, "no"), says("in flight"))
    journal = Notebook()
    settings = {"latency": 0.05, "concurrency": 2}
    async with serving(behave, journal, clock, **settings) as (server, client):
        await ask(client, "kept")
        backs_off = asyncio.ensure_future(ask(client, "backs off"))
        await until(lambda: clock.pauses)
        in_flight = [asyncio.ensure_future(ask(client, text)) for text in ("a", "b")]
        waits_for_slot = asyncio.ensure_future(ask(client, "c"))
        # What backs off holds no place.
        await until(lambda: server.in_flight == 2)
        client.stop()
        assert type(await error_of(backs_off)) is StoppedError
        assert type(await error_of(ask(client, "new"))) is StoppedError
        assert [(await call).text for call in in_flight] == ["in flight"] * 2
        assert type(await error_of(waits_for_slot)) is StoppedError
        assert (await ask(client, "kept")).cached
    assert len(server.calls) == 4
    assert len(journal.kept) == 3


@awaited
async def test_limiter_is_asked_before_each_attempt_and_told_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limiter, clock, journal = AsyncMock(), Clock(), Notebook()
    # Told to wait twice, then granted; after the failed attempt granted at once.
    limiter.reserve.side_effect = [3.0, 4.0, 0.0, 0.0, 0.0]
    usage = {"prompt_tokens": 11, "completion_tokens": 4}
    behave = in_turn(failure(429, "wait", retry_after=9), says("x", usage=usage))
    settings = {"limiter": limiter, "clock": clock, "tokens_per_minute": 5}
    async with serving(behave, journal, **settings) as (server, client):
        await ask(client)
        # The next is answered elsewhere just before it is sent.
        monkeypatch.setattr(journal, "get", AsyncMock(return_value=None))
        assert (await ask(client)).cached
    length = int(server.calls[0].headers["Content-Length"])
    assert clock.pauses == [3, 4, 9]
    most = -(-length // 3) + 30
    assert limiter.reserve.await_args_list == [mock_call("main", most)] * 5
    assert limiter.settle.await_args_list == [
        mock_call("main", most - 15, 0),
        mock_call("main", most, 1),
    ]


@awaited
async def test_key_is_sent_and_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # White space around a key is none of it.
    monkeypatch.setenv("RAYLAB_TEST_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)
    echo = f"Incorrect API key provided: {KEY} (Bearer:{KEY[:12]}...)."
    answer = says(f'{{"rationale": "Bearer {KEY}, so"}}', model=f"m {KEY}", system_fingerprint=KEY)
    behave = in_turn(answer, failure(500, echo), failure(401, echo))
    results, journal = list[Reply | Failure](), Notebook()
    settings = {"key_env": "RAYLAB_TEST_KEY", "deadline": 1e-9}
    async with serving(behave, journal, on_attempt=results.append, key=KEY, **settings) as (
        _,
        client,
    ):
        reply = await ask(client, "1")
        errors = [await error_of(ask(client, text)) for text in ("2", "3")]
        shown = [repr(client), repr(vars(client)), repr(results), caplog.text]
    assert (reply.text, reply.response_model) == ('{"rationale": "Bearer ***, so"}', "m *** ***")
    shown.append(repr(journal.replies))
    for error in errors:
        assert "Incorrect API key provided: ***" in str(error)
        assert error.__cause__ is error.__context__ is None
        lines = traceback.TracebackException.from_exception(error, capture_locals=True)
        shown += [str(error), repr(error), "".join(lines.format())]
    for text in shown:
        assert KEY[:12] not in text
