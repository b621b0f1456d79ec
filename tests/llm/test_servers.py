"""Answers of servers on loopback: what is read, tried again and paid, and what a user reads."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from raylab.core.errors import CallError, DeadlineError, EndpointError, LlmError, TextError
from tests.llm.scripted_server import Answer, failure, in_turn
from tests.llm.test_client import Clock, Notebook, ask, awaited, error_of, serving

OBJECT = '{"rationale": "café", "label": "late"}'


def choice(message: Any, finish: str | None = "stop", **keys: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **keys}


def answer(body: object, code: str = "utf-8", **headers: str) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return Answer(text.encode(code), headers={k.replace("_", "-"): v for k, v in headers.items()})


def stream(*events: object) -> Answer:
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    body = "".join(f"data: {line}\n\n" for line in lines)
    return answer(f": ping\n\n{body}", Content_Type="text/event-stream")


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def limited(**headers: str) -> Answer:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(failure(429, "slow").body, 429, said)


def tool(*arguments: str) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "f", "arguments": a}} for a in arguments]
    return {"content": None, "tool_calls": calls}


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


def lost(first: Answer, words: str) -> Kind:
    """An answer that is paid, but holds none: two more attempts."""
    words = f"no answer in 3 attempts, the last: HTTP 200 with {words}"
    return Kind(first, error=DeadlineError, words=words, paid=(True,) * 3, pauses=(0,) * 2)


def ended(
    first: Answer, words: str, error: type[LlmError] = EndpointError, paid: bool = False
) -> Kind:
    """An answer that would come again: no further attempt."""
    return Kind(first, error=error, words=words, paid=(paid,))


def later(first: Answer, seconds: float) -> Kind:
    """A refusal that costs nothing and passes after so many seconds."""
    return Kind(first, paid=(False,), pauses=(seconds,))


def error(message: str, **keys: object) -> Answer:
    return answer({"error": {"message": message, **keys}})


RIGHT = answer(choice({"content": OBJECT}))
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
LONG = "This model's maximum context length is 4096 tokens. However, you requested 9000"
KEYS = "in the variable that api_key_env names"
KINDS: Mapping[str, Kind] = {
    # Read where it is clear
    "byte order mark": Kind(answer(choice({"content": OBJECT}), "utf-8-sig")),
    "UTF-16": Kind(answer(choice({"content": OBJECT}), "utf-16")),
    "Latin-1": Kind(
        answer(
            choice({"content": OBJECT}),
            "latin-1",
            Content_Type="application/json; charset=ISO-8859-1",
        )
    ),
    "gzip": Kind(Answer(gzip.compress(RIGHT.body), headers={"Content-Encoding": "gzip"})),
    "blanks before": Kind(answer("\n  \n" + RIGHT.body.decode())),
    "pieces": Kind(answer(choice({"content": [{"type": "text", "text": OBJECT}]}))),
    "stream": Kind(stream(piece(OBJECT[:9]), piece(OBJECT[9:]), "[DONE]"), finish=""),
    "stream with a reason": Kind(stream({"choices": []}, piece(OBJECT), piece("", "stop"))),
    "broken off after its end": Kind(Answer(RIGHT.body + b" " * 400, cut="body")),
    "thoughts alone": Kind(answer(choice({"content": None, "reasoning_content": OBJECT}))),
    "tool": Kind(answer(choice(tool(OBJECT), "tool_calls")), finish="tool_calls"),
    "two tools": Kind(answer(choice(tool(OBJECT, OBJECT), "tool_calls")), "", "tool_calls"),
    "open thoughts": Kind(
        answer(choice({"content": "", "reasoning": "So {x}, or"}, "length")), "", "length"
    ),
    "refusal": Kind(answer(choice({"content": None, "refusal": "I cannot."})), "I cannot."),
    "first choice without a message": Kind(
        answer({"choices": [{"message": None}, *choice({"content": OBJECT})["choices"]]})
    ),
    "filter": Kind(answer(choice(None, "content_filter")), "", "content_filter"),
    "filter in other words": Kind(answer(choice({}, "SAFETY")), "", "content_filter"),
    "cut off in other words": Kind(answer(choice({"content": "a"}, "MAX_TOKENS")), "a", "length"),
    "usage of 5,000 digits": Kind(
        answer(RIGHT.body.decode()[:-1] + f', "usage": {{"prompt_tokens": {"9" * 5000}}}}}')
    ),
    # Paid, and lost
    "empty": lost(Answer(), "an empty body"),
    "no choice": lost(answer({"choices": []}), "JSON without an answer"),
    "page": lost(
        answer("<html><title>Sign\nin</title>"), "a web page and no chat completion: Sign in"
    ),
    "prose": lost(answer("Sure!"), "a text that is no JSON"),
    "broken off": lost(Answer(RIGHT.body, cut="body"), "JSON that broke off"),
    "stream that ends": lost(stream(piece(OBJECT)), "a stream that broke off"),
    "error in a stream": lost(
        stream(piece("x"), {"error": {"message": "gone"}}), "an error and no chat completion: gone"
    ),
    "unknown error": lost(error("Provider returned error", code=502), "an error"),
    "error of a choice": lost(answer(choice({"content": "x"}, "error")), "JSON without an answer"),
    # Errors within HTTP 200
    "quota": ended(error("You exceeded it", code="insufficient_quota"), "add credit"),
    "quota in words": ended(error("You exceeded your current quota"), "add credit"),
    "key": ended(error("No auth credentials found", code=401), KEYS),
    "key in words": ended(answer({"error": "Incorrect API key provided"}), KEYS),
    "filter as error": ended(
        error("no", code="content_filter"), "a filter withheld", TextError, True
    ),
    "length as error": ended(error(LONG), "the text is too long", TextError),
    "limit": later(error("Rate limit", code=429), 15),
    # Refusals
    "HTTP 401": ended(failure(401, "bad key"), KEYS),
    "HTTP 429 for good": ended(failure(429, "", code="insufficient_quota"), "add credit"),
    "model": ended(
        failure(404, "The model `m` does not exist."), "a model that the endpoint serves"
    ),
    "schema": ended(
        failure(400, "Invalid schema", param="response_format"), "reply_format=json_object"
    ),
    "parameter": ended(
        failure(400, "no", param="top_k", code="unsupported_parameter"),
        "configuration of the model",
    ),
    "redirect": ended(
        Answer(b"", 307, {"Location": "https://h/v2?token=t"}),
        "HTTP 307 Temporary Redirect: to https://h/v2; give a model",
    ),
    "other": ended(failure(400, "no"), "HTTP 400 Bad Request: no", CallError),
    "filter by 400": ended(failure(400, "no", code="content_filter"), "a filter", TextError, True),
    "flagged": ended(failure(403, "Your input was flagged"), "a filter", TextError, True),
    "long by 400": ended(
        failure(400, LONG), f"the text is too long: HTTP 400 Bad Request: {LONG}", TextError
    ),
    "long by 413": ended(Answer(b"no", 413), "the text is too long: HTTP 413", TextError),
    # Pauses
    "seconds": later(limited(Retry_After="4"), 4),
    "date": later(limited(Date=DATE, Retry_After=DATE.replace(":00 ", ":04 ")), 4),
    "milliseconds": later(limited(retry_after_ms="4000", Retry_After="9"), 4),
    "reset": later(limited(x_ratelimit_reset_requests="1m4.5s"), 64.5),
    "reset of the limit that was reached": later(
        limited(
            x_ratelimit_reset_requests="8m",
            x_ratelimit_remaining_requests="5",
            x_ratelimit_reset_tokens="250ms",
            x_ratelimit_remaining_tokens="0",
        ),
        0.25,
    ),
    "no pause": later(limited(Retry_After="soon"), 15),
    "hours": ended(limited(x_ratelimit_reset_tokens="2h"), "it asks to wait 7,200 s: resume"),
    "overloaded": later(failure(529, "overloaded"), 0),
    "loading": later(failure(404, "model loading"), 0),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@awaited
async def test_an_answer_is_read_tried_again_or_the_end_of_its_call(kind: Kind) -> None:
    journal, clock = Notebook(), Clock()
    is_lost = kind.error is DeadlineError
    behave = in_turn(*[kind.answer] * (3 if is_lost else 1), RIGHT)
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
