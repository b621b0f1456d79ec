import json
import random
from typing import Any

import pytest

from raylab.core.errors import RaylabError
from raylab.llm.chat import Cost, Reply
from raylab.llm.config import Lane
from raylab.llm.wire import (
    HIDDEN_TOKENS,
    SHOWN,
    AttemptOutcome,
    Failure,
    read_completion,
    read_error,
    read_status,
)
from tests.fuzzing import try_altered
from tests.llm.scripted_server import Answer, Call, completion, failure

MOST = Cost(1, 100, 50)
PAUSES: dict[str, float | None] = {"0.5": 0.5, "-2": 0.0, "1e999": None, "tomorrow": None}


@pytest.mark.parametrize(("value", "seconds"), PAUSES.items(), ids=PAUSES)
def test_pause_that_a_server_asks_for(value: str, seconds: float | None) -> None:
    assert read_status((503, {"retry-after": value}, b""), False).pause == seconds


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"object": "error", "message": "two\nlines"}, "two lines"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"error": {"code": 7}}, '{"error": {"code": 7}}'),
        ("x" * 10_000, '"' + "x" * (SHOWN - 1) + "…"),
    ],
)
def test_words_of_a_server_wherever_it_puts_them(body: object, words: str) -> None:
    assert read_error(json.dumps(body).encode())[0] == words


UNUSABLE = {
    "401": (failure(401, "bad key"), "api_key_env"),
    "quota": (failure(429, "You exceeded it", code="insufficient_quota"), "add credit"),
    "hours": (failure(429, "daily limit", retry_after=7_200), "asks to wait 7,200 s: resume"),
    "model": (failure(404, "The model `m` does not exist."), "a model that the endpoint serves"),
    "redirect": (Answer(b"", 307), "HTTP 307 Temporary Redirect; give"),
    "param": (failure(400, "Invalid schema", param="response_format"), "reply_format=json_object"),
    "top_k": (failure(400, "no", param="top_k", code="unsupported_parameter"), "configuration of"),
}


@pytest.mark.parametrize(("answer", "advice"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_every_call_would_meet_names_a_way_out(answer: Answer, advice: str) -> None:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    result = read_status((answer.status, headers, answer.body), False)
    assert result.outcome is AttemptOutcome.UNUSABLE
    assert advice in result.message


FULL = "Resource Unavailable"
OTHERS: dict[str, tuple[Failure, str]] = {
    "too long": (read_status((413, {}, b"too long"), False), "refused"),
    "firewall": (read_status((403, {}, b"blocked"), True), "refused"),
    "early": (read_status((425, {}, b""), False), "server_error"),
    "full at OpenAI": (read_status((429, {}, FULL.encode()), True, Lane.FLEX), "queue_full"),
    "full at Groq": (read_status((498, {}, b"capacity"), True, Lane.FLEX), "queue_full"),
    "no queue": (read_status((429, {}, FULL.encode()), True), "rate_limited"),
}


@pytest.mark.parametrize(("failure", "outcome"), OTHERS.values(), ids=OTHERS)
def test_what_one_call_meets(failure: Failure, outcome: str) -> None:
    assert failure.outcome == outcome


def usage(prompt: object, completion: object, asked: object = None, **reply: int) -> Any:
    """A usage with its details; `reply` is of the completion, but for the total."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": reply.pop("total", None),
        "prompt_tokens_details": asked,
        "completion_tokens_details": reply,
    }


NONE = (0, 0, 0, 0, 0)
USAGES: list[tuple[object, tuple[int, ...]]] = [
    (
        usage(10, 4, {"cached_tokens": 6, "cache_write_tokens": 1}, reasoning_tokens=3),
        (10, 4, 6, 1, 3),
    ),
    # Reasoning beside the completion, and within it.
    (usage(10, 4, reasoning_tokens=30, total=44), (10, 34, 0, 0, 30)),
    (usage(10, 34, reasoning_tokens=30, total=44), (10, 34, 0, 0, 30)),
    # More was cached than sent.
    (usage(10, 4, {"cached_tokens": 11}), (10, 4, 0, 0, 0)),
    (None, NONE),
    ({"prompt_tokens": 5}, NONE),
    (usage(10, 4, {"cached_tokens": -6}), NONE),
    (usage(3 * 100 + HIDDEN_TOKENS + 1, 4), NONE),
    (usage(10, 50 + HIDDEN_TOKENS + 1), NONE),
]


@pytest.mark.parametrize(("said", "tokens"), USAGES)
def test_tokens_of_a_usage_and_none_where_it_cannot_be_true(
    said: object, tokens: tuple[int, ...]
) -> None:
    body = {"choices": [{"message": {"content": "x"}}], "usage": said}
    reply = read_completion(json.dumps(body).encode(), MOST, Lane.STANDARD)
    assert isinstance(reply, Reply)
    cached, written = reply.cached_prompt_tokens, reply.written_prompt_tokens
    counts = (reply.prompt_tokens, reply.completion_tokens, cached, written, reply.reasoning_tokens)
    assert counts == tokens


DEEP = {
    "object": b'{"a":' * 100_000,
    "field": b'{"choices": [{"message": {"content": "x"}}], "y": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
def test_deep_answer_is_a_failed_attempt(body: bytes) -> None:
    result = read_completion(body, MOST, Lane.FLEX)
    assert isinstance(result, Failure)
    assert result.outcome is AttemptOutcome.MALFORMED
    assert len(read_status((400, {}, body), False).message) < 1000


def test_altered_answers_are_completions_or_failures() -> None:
    sample = completion(Call({"model": "m", "messages": []}, "0" * 64, 1), "here").body
    errors = [failure(429, "slow", retry_after=7).body, b'{"detail": [{"loc": ["body", 1]}]}']

    def read(content: bytes) -> None:
        assert isinstance(read_completion(content, MOST, Lane.FLEX), Reply | Failure)
        draw = random.Random(content)
        headers = {"retry-after": content[:40].decode("latin-1")}
        status = draw.choice((0, 99, 204, 302, 400, 401, 404, 429, 500, 599, 999))
        result = read_status((status, headers, content), draw.random() < 0.5)
        assert len(result.message) < 1000

    try_altered([sample, *errors], read, RaylabError)
