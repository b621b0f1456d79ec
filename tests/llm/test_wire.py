import json
import random
from typing import Any

import pytest

from raylab.config.llm import Lane, ReplyFormat
from raylab.errors import RaylabError
from raylab.llm.chat import ChatRequest, Message, Reply, Reservation
from raylab.llm.wire import (
    HIDDEN_TOKENS,
    SHOWN,
    AttemptOutcome,
    Failure,
    encode_request,
    most_tokens,
    read_completion,
    read_error,
    read_status,
)
from tests.fuzzing import try_altered
from tests.llm.scripted_server import Answer, Call, completion, failure

MOST = Reservation(100, 50, None)
# Sun, 09 Sep 2001 01:46:40 GMT
NOW = 1_000_000_000.0
PAUSES: dict[str, float | None] = {
    "0.5": 0.5,
    "-2": 0.0,
    "Sun, 09 Sep 2001 01:47:00 GMT": 20.0,
    "Sun, 09 Sep 2001 01:46:00 GMT": 0.0,
    "Sun, 09 Sep 2001 03:47:00 +0200": 20.0,
    "1e999": None,
    "nan": None,
    "tomorrow": None,
    "": None,
}


@pytest.mark.parametrize(("value", "seconds"), PAUSES.items(), ids=PAUSES)
def test_pause_that_a_server_asks_for(value: str, seconds: float | None) -> None:
    assert read_status((503, {"retry-after": value}, b""), NOW, False).pause == seconds


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "too long"}}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"object": "error", "message": "two\nlines"}, "two lines"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"error": {"code": 7}}, '{"error": {"code": 7}}'),
        ([1, 2], "[1, 2]"),
        ("x" * 10_000, '"' + "x" * (SHOWN - 1) + "…"),
    ],
)
def test_words_of_a_server_wherever_it_puts_them(body: object, words: str) -> None:
    assert read_error(json.dumps(body).encode())[0] == words


UNUSABLE = {
    "401": (failure(401, "bad key"), "api_key_env"),
    "403": (failure(403, "not for you"), "api_key_env"),
    "402": (failure(402, "no credit"), "add credit"),
    "quota": (failure(429, "You exceeded it", code="insufficient_quota"), "add credit"),
    "hours": (failure(429, "daily limit", retry_after=7_200), "asks to wait 7,200 s: resume"),
    "model": (failure(404, "The model `m` does not exist."), "a model that the endpoint serves"),
    "code": (failure(400, "no", code="model_not_found"), "a model that the endpoint serves"),
    "page": (Answer(b"<h1>Not Found</h1>", 404), "base_url"),
    "redirect": (Answer(b"", 307), "HTTP 307 Temporary Redirect; give"),
    "param": (failure(400, "Invalid schema", param="response_format"), "reply_format=json_object"),
    "words": (failure(422, "unknown field response_format"), "reply_format=text"),
    "max_tokens": (failure(400, "too large", param="max_tokens"), "configuration of the model"),
    "top_k": (failure(400, "no", param="top_k", code="unsupported_parameter"), "configuration of"),
}


@pytest.mark.parametrize(("answer", "advice"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_every_call_would_meet_names_a_way_out(answer: Answer, advice: str) -> None:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    result = read_status((answer.status, headers, answer.body), NOW, False)
    assert result.outcome is AttemptOutcome.UNUSABLE
    assert advice in result.message


FULL = "Resource Unavailable"
OTHERS: dict[str, tuple[Failure, str]] = {
    "too long": (read_status((413, {}, b"too long"), NOW, False), "refused"),
    "firewall": (read_status((403, {}, b"blocked"), NOW, True), "refused"),
    "early": (read_status((425, {}, b""), NOW, False), "server_error"),
    "overloaded": (read_status((529, {}, b""), NOW, False), "server_error"),
    "full at OpenAI": (read_status((429, {}, FULL.encode()), NOW, True, Lane.FLEX), "queue_full"),
    "full at Groq": (read_status((498, {}, b"capacity"), NOW, True, Lane.FLEX), "queue_full"),
    "no queue": (read_status((429, {}, FULL.encode()), NOW, True), "rate_limited"),
}


@pytest.mark.parametrize(("failure", "outcome"), OTHERS.values(), ids=OTHERS)
def test_what_one_call_meets(failure: Failure, outcome: str) -> None:
    assert failure.outcome == outcome


def test_what_a_request_sends_and_may_take() -> None:
    parameters = {"model": "other", "messages": [], "top_p": 0.5, "max_tokens": 50}
    schema = {"title": "opt evaluation!" + "x" * 80}
    request = ChatRequest("e", "u", "m", (Message("user", "hi"),), parameters, schema=schema)
    content = encode_request(request, ReplyFormat.JSON_SCHEMA)
    body = json.loads(content)
    # Servers take no other names.
    assert body.pop("response_format")["json_schema"]["name"] == "opt_evaluation_" + "x" * 49
    messages = [{"role": "user", "content": "hi"}]
    assert body == {"model": "m", "messages": messages, "top_p": 0.5, "max_tokens": 50}
    assert most_tokens(content, parameters) == (-(-len(content) // 3), 50)


def usage(prompt: object, completion: object, asked: object = None, **reply: int) -> Any:
    """A usage with its details; `reply` is of the completion, but for the total."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": reply.pop("total", None),
        "prompt_tokens_details": asked,
        "completion_tokens_details": reply,
    }


USAGES: dict[str, tuple[object, tuple[int, ...]]] = {
    "nothing": (None, (0, 0, 0, 0, 0)),
    "half": ({"prompt_tokens": 5}, (0, 0, 0, 0, 0)),
    "plain": (usage(10, 4), (10, 4, 0, 0, 0)),
    "details": (
        usage(10, 4, {"cached_tokens": 6, "cache_write_tokens": 1}, reasoning_tokens=3),
        (10, 4, 6, 1, 3),
    ),
    "reasoning beside": (usage(10, 4, reasoning_tokens=30, total=44), (10, 34, 0, 0, 30)),
    "reasoning within": (usage(10, 34, reasoning_tokens=30, total=44), (10, 34, 0, 0, 30)),
    "more cached than sent": (usage(10, 4, {"cached_tokens": 11}), (10, 4, 0, 0, 0)),
}


IMPOSSIBLE: list[object] = [
    usage(-1, 4),
    usage(10, 2**63),
    usage(10**300, 4),
    usage("10", 4),
    usage(True, 4),
    usage(10, 4, {"cached_tokens": -6}),
    usage(3 * 100 + HIDDEN_TOKENS + 1, 4),
    usage(10, 50 + HIDDEN_TOKENS + 1),
    "many",
]


@pytest.mark.parametrize(
    ("said", "tokens"), [*USAGES.values(), *((said, (0,) * 5) for said in IMPOSSIBLE)]
)
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
    "list": b"[" * 100_000,
    "object": b'{"a":' * 100_000,
    "field": b'{"choices": [{"message": {"content": "x"}}], "y": ' + b"[" * 100_000,
    "closed": b'{"error": {"message": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
def test_deep_answer_is_a_failed_attempt(body: bytes) -> None:
    result = read_completion(body, MOST, Lane.FLEX)
    assert isinstance(result, Failure)
    assert result.outcome is AttemptOutcome.MALFORMED
    assert len(read_status((400, {}, body), NOW, False).message) < 1000


def test_altered_answers_are_completions_or_failures() -> None:
    sample = completion(Call({"model": "m", "messages": []}, "0" * 64, 1), "here").body
    errors = [failure(429, "slow", retry_after=7).body, b'{"detail": [{"loc": ["body", 1]}]}']

    def read(content: bytes) -> None:
        assert isinstance(read_completion(content, MOST, Lane.FLEX), Reply | Failure)
        draw = random.Random(content)
        headers = {"retry-after": content[:40].decode("latin-1")}
        status = draw.choice((0, 99, 204, 302, 400, 401, 404, 429, 500, 599, 999))
        result = read_status((status, headers, content), 1e9, draw.random() < 0.5)
        assert len(result.message) < 1000

    try_altered([sample, *errors], read, RaylabError)
