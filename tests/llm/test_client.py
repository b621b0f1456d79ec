"""The client against a real server on loopback; only time is replaced, where a test would wait."""

import asyncio
import functools
import itertools
import json
import logging
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from raylab.config.annotation import LlmConfig
from raylab.config.llm import ChatModel, Endpoint, Limits, Price, ReplyFormat
from raylab.errors import (
    ArchiveError,
    CallError,
    ConfigError,
    DeadlineError,
    EndpointError,
    LlmError,
    StoppedError,
)
from raylab.llm.chat import ChatRequest, Claim, Message, Reply, Reservation
from raylab.llm.client import CallEvent, Client
from raylab.llm.connection import REFUSED_CALLS, SILENT_CALLS, Timing
from tests.llm.scripted_server import (
    Answer,
    Call,
    ScriptedServer,
    completion,
    failure,
    in_turn,
)

KEY = "sk-test-1f2e3d4c5b6a79880011"
PATIENCE = 20.0
SCHEMA = {"title": "a verdict", "type": "object", "properties": {"code": {"type": "string"}}}
JSON = "application/json"


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test in an event loop of its own, which ends whatever happens."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE))

    return run


class Notebook:
    """A journal in memory."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.kept: list[tuple[ChatRequest, str, str]] = []
        self.claimed: dict[str, str] = {}
        """Keys of the attempts in flight, by claim."""
        self.ended: list[bool] = []
        """For each attempt without an answer, whether it may be billed."""
        self.numbers = itertools.count()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.queued = 0
        """Replies that are not stored yet."""

    async def get(self, key: str, description_hash: str) -> Reply | None:
        return self.replies.get(key)

    async def claim(
        self, key: str, request: ChatRequest, description_hash: str, most: Reservation
    ) -> Claim | Reply | None:
        if self.queued:
            await self.may_write.wait()
        if key in self.claimed.values():
            return None
        if key in self.replies:
            return self.replies[key]
        claim = Claim(str(next(self.numbers)))
        self.claimed[claim.id] = key
        return claim

    def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str, claim: Claim
    ) -> Awaitable[None]:
        self.queued += 1
        return self._store(request, reply, description_hash, role, claim)

    async def _store(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str, claim: Claim
    ) -> None:
        await self.may_write.wait()
        self.queued -= 1
        del self.claimed[claim.id]
        self.replies[reply.key] = reply
        self.kept.append((request, description_hash, role))

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


class CountingLimiter:
    """Waits as it is told to, and remembers what it was asked."""

    def __init__(self, *waits: float) -> None:
        self.waits = list(waits)
        self.asked: list[tuple[str, int]] = []
        self.settled: list[tuple[int, int]] = []
        """Tokens and calls that were given back."""
        self.penalties: list[tuple[str, float]] = []

    async def reserve(self, endpoint: str, tokens: int) -> float:
        self.asked.append((endpoint, tokens))
        return self.waits.pop(0) if self.waits else 0.0

    async def settle(self, endpoint: str, tokens: int, calls: int = 0) -> None:
        self.settled.append((tokens, calls))

    async def penalise(self, endpoint: str, seconds: float) -> None:
        self.penalties.append((endpoint, seconds))


def config(
    base_url: str,
    form: ReplyFormat = ReplyFormat.JSON_SCHEMA,
    key_env: str | None = None,
    prices: dict[str, Price] | None = None,
    **limits: Any,
) -> LlmConfig:
    endpoint = Endpoint(
        base_url=base_url, api_key_env=key_env, reply_format=form, limits=Limits(**limits)
    )
    one, other = (
        ChatModel(model="m", endpoint="main"),
        ChatModel(model="m", endpoint="main", seed=2),
    )
    return LlmConfig(
        endpoints={"main": endpoint},
        annotator_a=one,
        annotator_b=other,
        evaluator=one,
        adjudicator=one,
        prices=prices or {},
    )


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


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def error_of(call: Awaitable[Reply]) -> LlmError:
    try:
        await call
    except LlmError as error:
        return error
    raise AssertionError("no error")


# A call that is answered


@awaited
async def test_reply_is_what_the_server_said() -> None:
    prices = {"m": Price(input=2.0, output=10.0)}
    usage = {"prompt_tokens": 1_000, "completion_tokens": 300}
    async with ScriptedServer(says("the text", usage=usage)) as server:
        async with Client(config(server.base_url, prices=prices), Notebook()) as client:
            reply = await ask(client)
    assert (reply.key, reply.text) == (request().key, "the text")
    assert (reply.response_model, reply.finish_reason) == ("m-scripted fp_1", "stop")
    assert (reply.prompt_tokens, reply.completion_tokens) == (1_000, 300)
    # 1,000 tokens at 2 a million and 300 at 10 a million
    assert reply.cost == pytest.approx(0.002 + 0.003)
    assert (reply.attempts, reply.cached) == (1, False)
    assert 0 < reply.seconds < PATIENCE


@awaited
async def test_what_a_server_leaves_out_is_zero_or_empty() -> None:
    bare = {"choices": [{"message": {"content": None, "refusal": "I will not."}}]}
    async with ScriptedServer(lambda _: Answer(json.dumps(bare).encode())) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            reply = await ask(client)
    assert (reply.text, reply.response_model, reply.finish_reason) == ("I will not.", "", "")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cost) == (0, 0, None)


@awaited
async def test_content_in_parts_is_joined() -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}, {"text": "b"}]
    choices = [{"message": {"content": parts}, "finish_reason": "stop"}]
    async with ScriptedServer(says("", choices=choices)) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            assert (await ask(client)).text == "ab"


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        (
            ReplyFormat.JSON_SCHEMA,
            {
                "type": "json_schema",
                "json_schema": {"name": "a_verdict", "schema": SCHEMA, "strict": True},
            },
        ),
        (ReplyFormat.JSON_OBJECT, {"type": "json_object"}),
        (ReplyFormat.TEXT, None),
    ],
)
@awaited
async def test_body_of_the_call(form: ReplyFormat, sent: object) -> None:
    async with ScriptedServer(says("x")) as server:
        async with Client(config(server.base_url, form), Notebook()) as client:
            await ask(client, "grün", schema=SCHEMA, salt="again")
    assert server.calls[0].body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Answer."},
            {"role": "user", "content": "grün"},
        ],
        "temperature": 0.5,
        "max_tokens": 30,
        "seed": 7,
    } | ({} if sent is None else {"response_format": sent})
    assert server.calls[0].headers["Content-Type"] == JSON


@awaited
async def test_no_seed_and_no_schema_send_nothing_of_the_kind() -> None:
    async with ScriptedServer(says("x")) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            await ask(client, seed=None)
    assert server.calls[0].body.keys() == {"model", "messages", "temperature", "max_tokens"}


# Failures that pass


def timeout_for(answer: Answer) -> float:
    """Short in real time only where the timeout is what is tested."""
    return 0.2 if answer.hangs else 30.0


FAILING_ONCE: dict[str, tuple[Answer, str]] = {
    "408": (failure(408, "slow"), "server_error"),
    "409": (failure(409, "locked"), "server_error"),
    "425": (failure(425, "early"), "server_error"),
    "429": (failure(429, "slow down"), "rate_limited"),
    "500": (failure(500, "oops"), "server_error"),
    "503": (failure(503, "busy"), "server_error"),
    "529": (failure(529, "overloaded"), "server_error"),
    "hang": (Answer(hangs=True), "timeout"),
    "cut": (Answer(b"{}", cut="before"), "connection"),
    "cut in the body": (Answer(b"{" + b" " * 999 + b"}", cut="body"), "connection"),
    "empty body": (Answer(b""), "malformed"),
    "HTML": (Answer(b"<html>proxy</html>", headers={"Content-Type": "text/html"}), "malformed"),
    "no choices": (Answer(b'{"choices": []}'), "malformed"),
    "error with 200": (Answer(b'{"error": {"message": "upstream"}}'), "malformed"),
    "half a JSON": (Answer(b'{"choices": [{"mess'), "malformed"),
    "no UTF-8": (Answer(b"\xff\xfe"), "malformed"),
}


@pytest.mark.parametrize(("answer", "outcome"), FAILING_ONCE.values(), ids=FAILING_ONCE.keys())
@awaited
async def test_passing_failure_is_tried_again(answer: Answer, outcome: str) -> None:
    clock, events = Clock(), list[CallEvent]()
    behave = in_turn(answer, says("at last"))
    async with ScriptedServer(behave) as server:
        llm = config(server.base_url, timeout=timeout_for(answer))
        client = Client(llm, Notebook(), on_call=events.append, timing=clock.timing)
        async with client:
            reply = await ask(client)
    assert (reply.text, reply.attempts, len(server.calls)) == ("at last", 2, 2)
    assert server.calls[0].hash == server.calls[1].hash
    assert [(e.outcome, e.retried) for e in events] == [(outcome, True), ("ok", False)]
    assert [event.reply for event in events] == [None, reply]


FAILING_FOR_EVER = {
    "503": (failure(503, "come back later"), "HTTP 503 Service Unavailable: come back later"),
    "429": (failure(429, "slow down", retry_after=0), "HTTP 429 Too Many Requests: slow down"),
    "599": (Answer(b"", 599), "HTTP 599"),
    "hang": (Answer(hangs=True), "no answer within 0.2 s"),
    "cut": (Answer(b"{}", cut="before"), "the connection failed: "),
    "HTML": (Answer(b"<p>a\nproxy</p>"), "no chat completion: <p>a proxy</p>"),
    "empty": (Answer(b""), "no chat completion: an empty body"),
    "error": (Answer(b'{"error": {"message": "upstream"}}'), "no chat completion: upstream"),
}


@pytest.mark.parametrize(
    ("answer", "words"), FAILING_FOR_EVER.values(), ids=FAILING_FOR_EVER.keys()
)
@awaited
async def test_failure_that_does_not_pass_ends_the_call(answer: Answer, words: str) -> None:
    async with ScriptedServer(lambda _: answer) as server:
        llm = config(server.base_url, timeout=timeout_for(answer), deadline=2)
        async with Client(llm, journal := Notebook(), timing=Clock(draw=0.5).timing) as client:
            error = await error_of(ask(client))
        assert type(error) is DeadlineError
        for part in ("main", server.base_url, "model m", "no answer in 3 attempts", words):
            assert part in str(error)
    assert (len(server.calls), journal.kept) == (3, [])


@awaited
async def test_nobody_there_is_a_failed_call() -> None:
    llm = config("http://127.0.0.1:9/v1", deadline=1)
    async with Client(llm, journal := Notebook(), timing=Clock(draw=0.5).timing) as client:
        error = await error_of(ask(client))
    assert type(error) is DeadlineError
    assert journal.ended == [False, False]
    assert "no answer in 2 attempts, the last: the connection failed" in str(error)


@awaited
async def test_pauses_double_with_full_jitter() -> None:
    clock = Clock(draw=0.5)
    async with ScriptedServer(lambda _: failure(500, "no")) as server:
        llm = config(server.base_url, deadline=100)
        async with Client(llm, Notebook(), timing=clock.timing) as client:
            await error_of(ask(client))
    # half of 1, 2, 4, ... seconds, of which 60 is the most
    assert clock.pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("header", ["retry-after", "date", "retry-after-ms", "x-ms-retry-after-ms"])
@awaited
async def test_retry_after_is_honoured(status: int, header: str) -> None:
    clock = Clock(draw=0.25)
    at = datetime.fromtimestamp(clock.time, UTC) + timedelta(seconds=7)
    value = "7000" if header.endswith("ms") else "7"
    headers = {header: value} if header != "date" else {"Retry-After": format_datetime(at, True)}
    behave = in_turn(replace(failure(status, "wait"), headers=headers), says("x"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url), Notebook(), timing=clock.timing) as client:
            await ask(client)
    # what the server asks for and a quarter of the first second of back-off
    assert clock.pauses == [7.25]


@awaited
async def test_nobody_sends_before_the_end_of_a_rate_limit() -> None:
    clock = Clock(draw=0.5)
    clock.runs.clear()
    behave = in_turn(failure(429, "wait", retry_after=7), says("x"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url), Notebook(), timing=clock.timing) as client:
            first = asyncio.ensure_future(ask(client, "first"))
            await until(lambda: clock.pauses)
            second = asyncio.ensure_future(ask(client, "second"))
            await until(lambda: len(clock.pauses) == 2)
            assert (clock.pauses, len(server.calls)) == ([7.5, 7], 1)
            clock.runs.set()
            assert {(await first).attempts, (await second).attempts} == {1, 2}


@awaited
async def test_rate_limit_of_hours_stops_the_endpoint() -> None:
    behave = in_turn(failure(429, "daily limit", retry_after=7_200), says("x"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url), Notebook(), timing=Clock().timing) as client:
            error = await error_of(ask(client))
    assert type(error) is EndpointError
    assert "daily limit; it asks to wait 7,200 s: resume after that" in str(error)


# Failures that do not pass


@pytest.mark.parametrize("status", [400, 413, 415, 418, 422])
@awaited
async def test_refused_call_fails_at_once(status: int) -> None:
    refusal = failure(status, "the text is too long", param="messages")
    async with ScriptedServer(in_turn(refusal, says("x"))) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            error = await error_of(ask(client))
            assert type(error) is CallError
            for part in ("main", "model m", f"HTTP {status}", "the text is too long"):
                assert part in str(error)
            assert (await ask(client, "another")).text == "x"
    assert len(server.calls) == 2


UNUSABLE = {
    "401": (failure(401, "bad key"), "api_key_env"),
    "403": (failure(403, "not for you"), "api_key_env"),
    "402": (failure(402, "no credit"), "add credit"),
    "quota": (failure(429, "You exceeded it", code="insufficient_quota"), "add credit"),
    "model": (failure(404, "The model `m` does not exist."), "a model that the endpoint serves"),
    "code": (failure(404, "no", code="model_not_found"), "a model that the endpoint serves"),
    "400": (failure(400, "m is not a valid model ID: no such model"), "a model that the endpoint"),
    "page": (Answer(b"<h1>Not Found</h1>", 404), "base_url"),
    "405": (Answer(b"", 405), "base_url"),
    "param": (failure(400, "Invalid schema", param="response_format"), "reply_format=json_object"),
    "words": (failure(422, "unknown field response_format"), "reply_format=text"),
    "max_tokens": (failure(400, "too large", param="max_tokens"), "configuration of the model"),
    "top_k": (failure(400, "no", param="top_k", code="unsupported_parameter"), "configuration of"),
}


@pytest.mark.parametrize(("answer", "advice"), UNUSABLE.values(), ids=UNUSABLE.keys())
@awaited
async def test_endpoint_that_would_refuse_every_call_is_left(answer: Answer, advice: str) -> None:
    async with ScriptedServer(lambda _: answer) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            error = await error_of(ask(client))
            assert type(error) is EndpointError
            assert advice in str(error)
            again = await error_of(ask(client, "another"))
            assert (type(again), str(again)) == (EndpointError, str(error))
    assert len(server.calls) == 1


@awaited
async def test_403_once_the_endpoint_has_answered_is_about_the_call() -> None:
    behave = in_turn(says("x"), failure(403, "blocked by the firewall"), says("y"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            await ask(client, "1")
            assert type(await error_of(ask(client, "2"))) is CallError
            assert (await ask(client, "3")).text == "y"


@awaited
async def test_silent_endpoint_is_left_after_some_calls() -> None:
    async with ScriptedServer(lambda _: failure(503, "busy")) as server:
        llm = config(server.base_url, deadline=1)
        async with Client(llm, Notebook(), timing=Clock(draw=0.5).timing) as client:
            errors = [await error_of(ask(client, str(i))) for i in range(SILENT_CALLS + 1)]
    kinds = [DeadlineError] * (SILENT_CALLS - 1) + [EndpointError] * 2
    assert [type(error) for error in errors] == kinds
    assert f"{SILENT_CALLS} calls in a row failed" in str(errors[-1])
    assert len(server.calls) == 2 * SILENT_CALLS


@awaited
async def test_an_answer_now_and_then_keeps_the_endpoint() -> None:
    fails = [failure(503, "busy")] * (SILENT_CALLS - 1)
    behave = in_turn(*fails, says("x"), *fails, says("y"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url, deadline=1e-9), Notebook()) as client:
            for i in range(2 * SILENT_CALLS - 1):
                if i != SILENT_CALLS - 1:
                    assert type(await error_of(ask(client, str(i)))) is DeadlineError
                else:
                    await ask(client, str(i))
            assert (await ask(client, "last")).text == "y"


@awaited
async def test_calls_that_back_off_learn_that_the_endpoint_is_left() -> None:
    clock = Clock()
    clock.runs.clear()
    behave = in_turn(failure(503, "busy"), failure(401, "expired"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url), Notebook(), timing=clock.timing) as client:
            waits = asyncio.ensure_future(ask(client, "1"))
            await until(lambda: clock.pauses)
            await error_of(ask(client, "2"))
            assert "expired" in str(await error_of(waits))
    assert len(server.calls) == 2


@awaited
async def test_the_same_refusal_of_many_calls_leaves_the_endpoint() -> None:
    behave = in_turn(says("x"), failure(400, "unknown field"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            await ask(client, "answered")
            errors = [await error_of(ask(client, str(i))) for i in range(REFUSED_CALLS)]
    assert [type(error) for error in errors[:-1]] == [CallError] * (REFUSED_CALLS - 1)
    assert type(errors[-1]) is EndpointError
    assert f"refused {REFUSED_CALLS} calls in a row: HTTP 400 " in str(errors[-1])


@awaited
async def test_refusals_in_other_words_or_with_answers_between_do_not() -> None:
    turns = [failure(400, f"{i} tokens are too many") for i in range(REFUSED_CALLS)]
    same = [failure(400, "blocked")] * (REFUSED_CALLS - 1)
    async with ScriptedServer(in_turn(*turns, says("x"), *same, says("y"), *same)) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            for i in range(len(turns) + 2 * len(same) + 2):
                if i in (len(turns), len(turns) + 1 + len(same)):
                    await ask(client, str(i))
                else:
                    assert type(await error_of(ask(client, str(i)))) is CallError


@awaited
async def test_half_a_surrogate_pair_is_refused_here() -> None:
    async with ScriptedServer() as server:
        async with Client(config(server.base_url), Notebook()) as client:
            error = await error_of(ask(client, "broken \ud83d text"))
    assert type(error) is CallError
    assert "surrogate" in str(error)
    assert server.calls == []


# Journal


@awaited
async def test_answered_call_is_kept_and_not_sent_again() -> None:
    journal = Notebook()
    async with ScriptedServer(in_turn(says("once"), says("twice"))) as server:
        async with Client(config(server.base_url), journal) as client:
            first, again = await ask(client), await ask(client)
        async with Client(config(server.base_url), journal) as client:
            later = await ask(client)
    assert len(server.calls) == 1
    assert journal.kept == [(request(), "description_hash", "classify-a")]
    assert (first.cached, again.cached, later.cached) == (False, True, True)
    assert replace(again, cached=False) == replace(later, cached=False) == first


@awaited
async def test_reply_is_returned_only_when_it_is_kept() -> None:
    journal = Notebook()
    journal.may_write.clear()
    async with ScriptedServer(says("x")) as server:
        async with Client(config(server.base_url), journal) as client:
            call = asyncio.ensure_future(ask(client))
            await until(lambda: server.calls and not server.in_flight)
            await asyncio.sleep(0.05)
            assert not call.done()
            journal.may_write.set()
            await call
    assert len(journal.kept) == 1


@awaited
async def test_no_more_answers_wait_for_the_journal_than_calls_may_be_in_flight() -> None:
    journal = Notebook()
    journal.may_write.clear()
    async with ScriptedServer(says("x")) as server:
        async with Client(config(server.base_url, concurrency=2), journal) as client:
            calls = [asyncio.ensure_future(ask(client, text)) for text in "abcd"]
            await until(lambda: len(server.calls) == 2 and not server.in_flight)
            await asyncio.sleep(0.05)
            assert len(server.calls) == 2
            journal.may_write.set()
            await asyncio.gather(*calls)
    assert len(server.calls) == len(journal.kept) == 4


@awaited
async def test_when_the_journal_fails_no_further_call_is_sent() -> None:
    class Full(Notebook):
        async def put(
            self,
            request: ChatRequest,
            reply: Reply,
            description_hash: str,
            role: str,
            claim: Claim,
        ) -> None:
            raise ArchiveError("the disk is full")

    async with ScriptedServer(says("x")) as server:
        async with Client(config(server.base_url, concurrency=1), Full()) as client:
            with pytest.raises(ArchiveError, match="the disk is full"):
                await ask(client)
            with pytest.raises(LlmError, match=r"could not be archived.*the disk is full"):
                await ask(client, "other")
    assert len(server.calls) == 1


# Equal calls in flight


@awaited
async def test_claim_that_came_before_a_long_suspension_is_asked_for_again() -> None:
    clock = Clock()

    class Suspended(Notebook):
        asked = 0

        async def claim(
            self, key: str, request: ChatRequest, description_hash: str, most: Reservation
        ) -> Claim | Reply | None:
            claim = await super().claim(key, request, description_hash, most)
            self.asked += 1
            if self.asked == 1:
                clock.time += 3600
            return claim

    async with ScriptedServer(says("x")) as server:
        llm = config(server.base_url)
        async with Client(llm, journal := Suspended(), timing=clock.timing) as client:
            await ask(client)
    assert (journal.asked, len(server.calls), journal.claimed) == (2, 1, {})


@awaited
async def test_equal_calls_in_flight_are_sent_once() -> None:
    async with ScriptedServer(says("x"), latency=0.05) as server:
        async with Client(config(server.base_url), journal := Notebook()) as client:
            replies = await asyncio.gather(*(ask(client) for _ in range(5)), ask(client, "other"))
    assert len(server.calls) == 2
    assert len(journal.kept) == 2
    assert [r.cached for r in replies] == [False, True, True, True, True, False]


@awaited
async def test_cancelled_call_frees_its_slot() -> None:
    behave = in_turn(Answer(hangs=True), says("x"))
    async with ScriptedServer(behave) as server:
        async with Client(config(server.base_url, concurrency=1), Notebook()) as client:
            first = asyncio.ensure_future(ask(client, "1"))
            await until(lambda: server.calls)
            first.cancel()
            await asyncio.wait([first])
            assert (await ask(client, "2")).text == "x"


# Concurrency and stopping


@awaited
async def test_a_call_that_backs_off_holds_no_slot() -> None:
    clock = Clock()
    clock.runs.clear()
    async with ScriptedServer(in_turn(failure(500, "no"), says("x"))) as server:
        llm = config(server.base_url, concurrency=1)
        async with Client(llm, Notebook(), timing=clock.timing) as client:
            waits = asyncio.ensure_future(ask(client, "1"))
            await until(lambda: clock.pauses)
            assert (await ask(client, "2")).attempts == 1
            clock.runs.set()
            assert (await waits).attempts == 2


@awaited
async def test_stop_finishes_what_is_in_flight_and_starts_nothing() -> None:
    clock = Clock()
    clock.runs.clear()
    behave = in_turn(says("kept"), failure(500, "no"), says("in flight"))
    async with ScriptedServer(behave, latency=0.05) as server:
        llm = config(server.base_url, concurrency=2)
        async with Client(llm, journal := Notebook(), timing=clock.timing) as client:
            await ask(client, "kept")
            backs_off = asyncio.ensure_future(ask(client, "backs off"))
            await until(lambda: clock.pauses)
            in_flight = [asyncio.ensure_future(ask(client, text)) for text in ("a", "b")]
            waits_for_slot = asyncio.ensure_future(ask(client, "c"))
            await until(lambda: server.in_flight == 2)
            client.stop()
            assert type(await error_of(backs_off)) is StoppedError
            assert type(await error_of(ask(client, "new"))) is StoppedError
            assert [(await call).text for call in in_flight] == ["in flight"] * 2
            assert type(await error_of(waits_for_slot)) is StoppedError
            assert (await ask(client, "kept")).cached
    assert len(server.calls) == 4
    assert len(journal.kept) == 3


# Limits a minute


@awaited
async def test_gate_is_not_asked_without_limits() -> None:
    limiter = CountingLimiter()
    behave = in_turn(failure(429, "wait", retry_after=1), says("x"))
    async with ScriptedServer(behave) as server:
        client = Client(config(server.base_url), Notebook(), limiter, timing=Clock().timing)
        async with client:
            await ask(client)
    assert (limiter.asked, limiter.settled, limiter.penalties) == ([], [], [])


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute"])
@awaited
async def test_limiter_is_asked_before_each_attempt_and_told_after_it(limit: str) -> None:
    limiter, clock = CountingLimiter(3.0, 4.0), Clock()
    usage = {"prompt_tokens": 11, "completion_tokens": 4}
    behave = in_turn(failure(429, "wait", retry_after=9), says("x", usage=usage))
    async with ScriptedServer(behave) as server:
        llm = config(server.base_url, **{limit: 5})
        async with Client(llm, Notebook(), limiter, timing=clock.timing) as client:
            await ask(client)
        length = int(server.calls[0].headers["Content-Length"])
    # told to wait twice, then granted; after the failed attempt granted at once
    assert clock.pauses == [3, 4, 9]
    most = -(-length // 3) + 30
    assert limiter.asked == [("main", most)] * 4
    assert limiter.settled == [(most - 15, 0)]
    assert limiter.penalties == [("main", 9)]


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 5}, {"completion_tokens": 5}])
@awaited
async def test_reply_without_whole_usage_gives_nothing_back(usage: dict[str, int]) -> None:
    limiter = CountingLimiter()
    async with ScriptedServer(says("x", usage=usage)) as server:
        llm = config(server.base_url, requests_per_minute=5)
        async with Client(llm, Notebook(), limiter) as client:
            await ask(client)
    assert (len(limiter.asked), limiter.settled) == (1, [])


@awaited
async def test_what_was_not_sent_is_given_back() -> None:
    limiter, journal = CountingLimiter(), Notebook()
    async with ScriptedServer(says("x"), latency=0.05) as server:
        llm = config(server.base_url, tokens_per_minute=5)
        async with Client(llm, journal, limiter) as client:
            await asyncio.gather(ask(client), ask(client))
    assert len(server.calls) == 1
    # Both asked for the same; one was sent, and gave back the rest of it.
    most = limiter.asked[0][1]
    used = journal.replies[request().key]
    rest = most - used.prompt_tokens - used.completion_tokens
    assert limiter.settled.count((most, 1)) == len(limiter.asked) - 1
    assert limiter.settled.count((rest, 0)) == 1


@awaited
async def test_stop_ends_waiting_for_a_permit() -> None:
    limiter, clock = CountingLimiter(60.0), Clock()
    clock.runs.clear()
    async with ScriptedServer(says("x")) as server:
        llm = config(server.base_url, requests_per_minute=1)
        async with Client(llm, Notebook(), limiter, timing=clock.timing) as client:
            calls = [asyncio.ensure_future(ask(client, text)) for text in ("1", "2")]
            await until(lambda: clock.pauses)
            client.stop()
            assert [type(await error_of(call)) for call in calls] == [StoppedError] * 2
    assert server.calls == []


# The key


@awaited
async def test_key_is_sent_and_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAYLAB_TEST_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    echo = f"Incorrect API key provided: {KEY} (Bearer:{KEY[:12]}...)."
    behave = in_turn(says("x"), failure(500, echo), failure(401, echo))
    events: list[CallEvent] = []
    async with ScriptedServer(behave, key=KEY) as server:
        llm = config(server.base_url, key_env="RAYLAB_TEST_KEY", deadline=1e-9)
        client = Client(llm, Notebook(), on_call=events.append)
        async with client:
            assert (await ask(client, "1")).text == "x"
            errors = [await error_of(ask(client, text)) for text in ("2", "3")]
            shown = [repr(client), repr(vars(client)), repr(events), caplog.text]
    for error in errors:
        assert "Incorrect API key provided: ***" in str(error)
        assert error.__cause__ is error.__context__ is None
        lines = traceback.TracebackException.from_exception(error, capture_locals=True)
        shown += [str(error), repr(error), "".join(lines.format())]
    for text in shown:
        assert KEY[:12] not in text


@awaited
async def test_key_that_a_server_mangles_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLAB_TEST_KEY", KEY)
    echo = f"no such user; header was <{KEY[3:]}>, {KEY[:15]}...{KEY[-4:]}"
    async with ScriptedServer(lambda _: failure(401, echo)) as server:
        llm = config(server.base_url, key_env="RAYLAB_TEST_KEY")
        async with Client(llm, Notebook()) as client:
            error = await error_of(ask(client))
    assert "no such user; header was *** ***" in str(error)


@pytest.mark.parametrize("value", [None, "", "  "])
def test_missing_key_names_its_variable(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("RAYLAB_TEST_KEY", raising=False)
    else:
        monkeypatch.setenv("RAYLAB_TEST_KEY", value)
    with pytest.raises(ConfigError, match=r"endpoint main .* variable RAYLAB_TEST_KEY"):
        Client(config("http://127.0.0.1:9/v1", key_env="RAYLAB_TEST_KEY"), Notebook())


def test_key_that_no_header_can_hold_is_refused_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLAB_TEST_KEY", "sk-geheim\nschlüssel")
    with pytest.raises(ConfigError, match="RAYLAB_TEST_KEY holds characters") as raised:
        Client(config("http://127.0.0.1:9/v1", key_env="RAYLAB_TEST_KEY"), Notebook())
    assert "geheim" not in str(raised.value)


@awaited
async def test_endpoint_without_a_key_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"Authorization: Bearer {KEY}")
    async with ScriptedServer(says("x")) as server:
        async with Client(config(server.base_url), Notebook()) as client:
            await ask(client)
    assert "Authorization" not in server.calls[0].headers


@awaited
async def test_configured_key_goes_before_those_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the SDK")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer of the SDK")
    monkeypatch.setenv("RAYLAB_TEST_KEY", f" {KEY}\n")
    async with ScriptedServer(says("x"), key=KEY) as server:
        llm = config(server.base_url, key_env="RAYLAB_TEST_KEY")
        async with Client(llm, Notebook()) as client:
            assert (await ask(client)).text == "x"


def test_endpoint_of_no_role_needs_no_key() -> None:
    llm = config("http://127.0.0.1:9/v1")
    spare = Endpoint(base_url="http://127.0.0.1:9/v1", api_key_env="RAYLAB_NO_SUCH_KEY")
    Client(llm.model_copy(update={"endpoints": {**llm.endpoints, "spare": spare}}), Notebook())


def test_embedded_endpoint_needs_the_embedded_model() -> None:
    llm = config("http://127.0.0.1:9/v1")
    embedded = {"main": Endpoint(base_url=None)}
    with pytest.raises(ConfigError, match="endpoint main has no base_url"):
        Client(llm.model_copy(update={"endpoints": embedded}), Notebook())
