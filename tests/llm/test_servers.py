"""Answers of servers on loopback: what is read, tried again and paid, and what a user reads."""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from raylab.core.errors import CallError, DeadlineError, EndpointError, LlmError, TextError
from raylab.llm.client import Client
from raylab.llm.connection import MAX_ANSWER, MAX_ERROR
from tests.llm.scripted_server import Answer, ScriptedServer, failure, in_turn
from tests.llm.test_client import Clock, Notebook, ask, awaited, config, error_of, serving
from tests.memory import MIB, memory

OBJECT = '{"rationale": "café", "label": "late"}'
RIGHT = {"content": OBJECT}


def answer(body: object, code: str = "utf-8", **headers: str) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return Answer(text.encode(code), headers={k.replace("_", "-"): v for k, v in headers.items()})


def choice(message: Any = RIGHT, finish: str | None = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def stream(*events: object) -> Answer:
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    return answer(": ping\n\n" + "".join(f"data: {line}\n\n" for line in lines))


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def error(message: str, **keys: object) -> Answer:
    return answer({"error": {"message": message, **keys}})


def tool(*arguments: str) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "f", "arguments": a}} for a in arguments]
    return choice({"content": None, "tool_calls": calls}, "tool_calls")


@dataclass(frozen=True)
class Kind:
    """What the first answers of a server lead to; each that follows is right.

    Attributes:
        text: The text of the reply.
        error: The kind of error instead, whose message has `words`.
        paid: For each attempt without an answer, whether it counts as perhaps billed.
        pauses: Seconds that the server asked for; without jitter.
    """

    answer: Answer
    text: str = OBJECT
    finish: str = "stop"
    error: type[LlmError] | None = None
    words: str = ""
    paid: tuple[bool, ...] = ()
    pauses: tuple[float, ...] = ()


def read(body: object, text: str = OBJECT, finish: str = "stop") -> Kind:
    """A body that is read."""
    return Kind(body if isinstance(body, Answer) else answer(body), text, finish)


def lost(body: object, words: str) -> Kind:
    """An answer that is paid, but holds none: two more attempts."""
    first, words = read(body).answer, f"no answer in 3 attempts, the last: HTTP 200 with {words}"
    return Kind(first, error=DeadlineError, words=words, paid=(True,) * 3, pauses=(0,) * 2)


def ended(first: Answer, words: str, kind: type[LlmError] = EndpointError) -> Kind:
    """An answer that would come again: no further attempt. A filter may have cost something."""
    return Kind(first, error=kind, words=words, paid=(words == FILTER,))


def later(seconds: float, first: Answer | None = None, **headers: str) -> Kind:
    """A refusal that costs nothing and passes after so many seconds."""
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    first = first or Answer(failure(429, "slow").body, 429, said)
    return Kind(first, paid=(False,), pauses=(seconds,))


WHOLE, LATIN = json.dumps(choice()), "application/json; charset=ISO-8859-1"
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
CONTEXT = "This model's maximum context length is 4096 tokens. However, you requested 9000"
FILTER, LONG = "a filter withheld the text: HTTP ", "the text is too long: HTTP "
KEY, CREDIT = "in the variable that api_key_env names", "no credit is left: add credit"
UNANSWERED = {"choices": [], "prompt_filter_results": [{"hate": {"filtered": True}}]}
MOVED = Answer(b"", 307, {"Location": "https://h/v2?token=t"})
KINDS: Mapping[str, Kind] = {
    # Read where it is clear
    "byte order mark": read(answer(choice(), "utf-8-sig")),
    "UTF-16": read(answer(choice(), "utf-16")),
    "Latin-1": read(answer(choice(), "latin-1", Content_Type=LATIN)),
    "gzip": read(Answer(gzip.compress(WHOLE.encode()), headers={"Content-Encoding": "gzip"})),
    "blanks before": read(f"\n  \n{WHOLE}"),
    "pieces": read(choice({"content": [{"type": "text", "text": OBJECT}]})),
    "stream": read(stream(piece(OBJECT[:9]), piece(OBJECT[9:]), "[DONE]"), finish=""),
    "stream with a reason": read(stream({"choices": []}, piece(OBJECT), piece("", "stop"))),
    "broken off after its end": read(Answer(f"{WHOLE}{' ' * 400}".encode(), cut="body")),
    "thoughts alone": read(choice({"content": "\n", "reasoning_content": OBJECT})),
    "open thoughts": read(choice({"reasoning": "So {x}, or"}, "length"), "", "length"),
    "tool": read(tool(OBJECT), finish="tool_calls"),
    "two tools": read(tool(OBJECT, OBJECT), "", "tool_calls"),
    "refusal": read(choice({"content": None, "refusal": "I cannot."}), "I cannot."),
    "first choice is empty": read({"choices": [{"message": None}, *choice()["choices"]]}),
    "filter": read(choice(None, "content_filter"), "", "content_filter"),
    "filter in other words": read(choice({}, "SAFETY"), "", "content_filter"),
    "cut off in other words": read(choice({"content": "a"}, "MAX_TOKENS"), "a", "length"),
    "usage of 5,000 digits": read(f'{WHOLE[:-1]}, "usage": {{"prompt_tokens": {"9" * 5000}}}}}'),
    # Paid, and lost
    "empty": lost("", "an empty body"),
    "no choice": lost({"choices": []}, "JSON without an answer"),
    "page": lost("<html><title>Sign\nin</title>", "a web page and no chat completion: Sign in"),
    "prose": lost("Sure!", "a text that is no JSON"),
    "broken off": lost(Answer(WHOLE.encode(), cut="body"), "JSON that broke off"),
    "stream that ends": lost(stream(piece(OBJECT)), "a stream that broke off"),
    "error in a stream": lost(stream(piece("x"), {"error": {"message": "gone"}}), "an error"),
    "unknown error": lost(error("Provider returned error", code=502), "an error"),
    "error of a choice": lost(choice({"content": "x"}, "error"), "JSON without an answer"),
    # Errors within HTTP 200
    "quota": ended(error("You exceeded it", code="insufficient_quota"), CREDIT),
    "quota in words": ended(error("You exceeded your current quota"), CREDIT),
    "key": ended(error("No auth credentials found", code=401), KEY),
    "key in words": ended(answer({"error": "Incorrect API key provided"}), KEY),
    "filter as error": ended(error("no", code="content_filter"), FILTER, TextError),
    "filter of the prompt": ended(answer(UNANSWERED), FILTER, TextError),
    "length as error": ended(error(CONTEXT), LONG, TextError),
    "limit as error": later(15, error("Rate limit", code=429)),
    # Refusals
    "HTTP 401": ended(failure(401, "bad key"), KEY),
    "HTTP 429 for good": ended(failure(429, "", code="insufficient_quota"), CREDIT),
    "bill": ended(failure(400, "no", code="billing_hard_limit_reached"), CREDIT),
    "model": ended(
        failure(404, "The model `m` does not exist."), "a model that the endpoint serves"
    ),
    "schema": ended(failure(400, "no", param="response_format"), "reply_format=json_object"),
    "parameter": ended(failure(400, "no", code="unsupported_value"), "configuration of the model"),
    "redirect": ended(MOVED, "HTTP 307 Temporary Redirect: to https://h/v2; if that is right"),
    "other": ended(failure(400, "no"), "HTTP 400 Bad Request: no", CallError),
    "filter by 400": ended(failure(400, "no", code="content_filter"), FILTER, TextError),
    "flagged": ended(failure(403, "Your input was flagged"), FILTER, TextError),
    "long by 400": ended(failure(400, CONTEXT), f"{LONG}400 Bad Request: {CONTEXT}", TextError),
    "long by 413": ended(Answer(b"no", 413), LONG, TextError),
    # Pauses
    "seconds": later(4, Retry_After="4"),
    "less than none": later(0, Retry_After="-2"),
    "date": later(4, Date=DATE, Retry_After=DATE.replace(":00 ", ":04 ")),
    "milliseconds": later(4, retry_after_ms="4000", Retry_After="9"),
    "reset": later(64.5, x_ratelimit_reset_requests="1m4.5s"),
    "reset of the limit that was reached": later(
        0.25,
        x_ratelimit_reset_requests="8m",
        x_ratelimit_reset_tokens="250ms",
        x_ratelimit_remaining_tokens="0",
    ),
    "no pause": later(15, Retry_After="soon"),
    "endless": later(15, Retry_After="1e999"),
    "hours": ended(failure(429, "", retry_after=7200), "it asks to wait 7,200 s: resume"),
    "overloaded": later(0, failure(529, "overloaded")),
    "loading": later(0, failure(404, "model loading")),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@awaited
async def test_an_answer_is_read_tried_again_or_the_end_of_its_call(kind: Kind) -> None:
    journal, clock = Notebook(), Clock()
    is_lost = kind.error is DeadlineError
    behave = in_turn(*[kind.answer] * (3 if is_lost else 1), answer(choice()))
    async with serving(behave, journal, clock) as (server, client):
        if kind.error is None:
            reply = await ask(client)
            assert (reply.text, reply.finish_reason) == (kind.text, kind.finish)
            assert reply.attempts == len(server.calls) == 1 + len(kind.paid)
        else:
            failed = await error_of(ask(client))
            assert type(failed) is kind.error and kind.words in str(failed)
            assert (journal.kept, len(server.calls)) == ([], len(kind.paid))
    assert tuple(journal.ended) == kind.paid
    assert tuple(clock.pauses) == kind.pauses


# Answers made to fill memory

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
    async with server, Client(config(server.base_url, timeout=600), Notebook()) as client:
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
    packed_answer, journal = Answer(packed, headers={"Content-Encoding": "gzip"}), Notebook()
    async with serving(lambda _: packed_answer, journal) as (server, client):
        with memory(100 * MIB):
            error = await error_of(ask(client))
    assert TOO_LONG in str(error)
    # It was paid, so it is not bought again.
    assert (len(server.calls), journal.kept) == (1, [])
