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
    assert read_status(503, {"retry-after": value}, b"", NOW, False).pause == seconds


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
    result = read_status(answer.status, headers, answer.body, NOW, False)
    assert result.outcome is AttemptOutcome.UNUSABLE
    assert advice in result.message


@pytest.mark.parametrize("status", [400, 413, 415, 418, 422])
def test_refusal_of_one_call(status: int) -> None:
    result = read_status(status, {}, failure(status, "no", param="messages").body, NOW, False)
    assert result.outcome is AttemptOutcome.REFUSED


def test_403_of_an_endpoint_that_has_answered_is_about_the_call() -> None:
    assert read_status(403, {}, b"", NOW, True).outcome is AttemptOutcome.REFUSED


@pytest.mark.parametrize("status", [408, 409, 425, 500, 503, 529, 599])
def test_failures_that_pass(status: int) -> None:
    assert read_status(status, {}, b"", NOW, False).outcome is AttemptOutcome.SERVER_ERROR


FULL = (
    failure(429, "Resource Unavailable", code="resource_unavailable"),
    failure(498, "capacity", code="capacity_exceeded"),
)


@pytest.mark.parametrize("full", FULL, ids=["OpenAI", "Groq"])
def test_the_standard_lane_knows_no_full_queue(full: Answer) -> None:
    outcomes = [read_status(full.status, {}, full.body, NOW, True, lane).outcome for lane in Lane]
    assert (outcomes[0] is AttemptOutcome.QUEUE_FULL, outcomes[1]) == (False, "queue_full")


def test_most_tokens_is_a_third_of_the_bytes_and_the_longest_reply() -> None:
    assert most_tokens(b"x" * 100, {"max_tokens": 50}) == (34, 50)
    assert most_tokens(b"x", {"max_tokens": 5, "max_completion_tokens": 9}) == (1, 9)


def test_parameters_do_not_replace_what_the_request_says() -> None:
    parameters = {"model": "other", "messages": [], "top_p": 0.5}
    request = ChatRequest("e", "u", "m", (Message("user", "hi"),), parameters)
    assert json.loads(encode_request(request, ReplyFormat.TEXT)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "top_p": 0.5,
    }


def test_name_of_a_schema_is_one_that_servers_take() -> None:
    request = ChatRequest("e", "u", "m", (), schema={"title": "opt evaluation!" + "x" * 80})
    body = json.loads(encode_request(request, ReplyFormat.JSON_SCHEMA))
    assert body["response_format"]["json_schema"]["name"] == "opt_evaluation_" + "x" * 49


def usage(prompt: object, completion: object, asked: object = None, **reply: int) -> Any:
    """A usage with its details; `reply` is of the completion, but for the total."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": reply.pop("total", None),
        "prompt_tokens_details": asked,
        "completion_tokens_details": reply,
    }


def counts(said: object) -> tuple[int, ...]:
    body = {"choices": [{"message": {"content": "x"}}], "usage": said}
    reply = read_completion(json.dumps(body).encode(), MOST, Lane.STANDARD)
    assert isinstance(reply, Reply)
    cached, written = reply.cached_prompt_tokens, reply.written_prompt_tokens
    reasoning = reply.reasoning_tokens
    return reply.prompt_tokens, reply.completion_tokens, cached, written, reasoning


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


@pytest.mark.parametrize(("said", "tokens"), USAGES.values(), ids=USAGES)
def test_tokens_of_a_usage(said: object, tokens: tuple[int, ...]) -> None:
    assert counts(said) == tokens


@pytest.mark.parametrize(
    "said",
    [
        usage(-1, 4),
        usage(10, 2**63),
        usage(10**300, 4),
        usage("10", 4),
        usage(True, 4),
        usage(10, 4, {"cached_tokens": -6}),
        usage(3 * 100 + HIDDEN_TOKENS + 1, 4),
        usage(10, 50 + HIDDEN_TOKENS + 1),
        "many",
    ],
)
def test_usage_that_cannot_be_true_counts_as_not_said(said: object) -> None:
    assert counts(said) == (0, 0, 0, 0, 0)


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
    assert len(read_status(400, {}, body, NOW, False).message) < 1000


def test_altered_answers_are_completions_or_failures() -> None:
    sample = completion(Call({"model": "m", "messages": []}, "0" * 64, 1), "here").body
    errors = [failure(429, "slow", retry_after=7).body, b'{"detail": [{"loc": ["body", 1]}]}']

    def read(content: bytes) -> None:
        assert isinstance(read_completion(content, MOST, Lane.FLEX), Reply | Failure)
        draw = random.Random(content)
        headers = {"retry-after": content[:40].decode("latin-1")}
        status = draw.choice((0, 99, 204, 302, 400, 401, 404, 429, 500, 599, 999))
        result = read_status(status, headers, content, 1e9, draw.random() < 0.5)
        assert len(result.message) < 1000

    try_altered([sample, *errors], read, RaylabError)
