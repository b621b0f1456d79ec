import json

import pytest

from raylab.config.llm import ReplyFormat
from raylab.llm.chat import ChatRequest, Message, TokenCounts
from raylab.llm.redaction import scrub
from raylab.llm.wire import (
    SHOWN,
    Completion,
    encode_request,
    most_tokens,
    read_completion,
    retry_after,
    server_words,
)


def counts(
    prompt: int, completion: int, asked: object = None, reply: object = None
) -> dict[str, object]:
    """A usage with its details."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": asked,
        "completion_tokens_details": reply,
    }


# Sun, 09 Sep 2001 01:46:40 GMT
NOW = 1_000_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-2"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Sun, 09 Sep 2001 01:47:00 GMT"}, 20.0),
        ({"retry-after": "Sun, 09 Sep 2001 01:46:00 GMT"}, 0.0),
        ({"retry-after": "Sun, 09 Sep 2001 03:47:00 +0200"}, 20.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "too long"}}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"message": "too long"}, "too long"),
        ({"object": "error", "message": "two\nlines"}, "two lines"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body", "n"]}]}, '[{"loc":["body","n"]}]'),
        ({"error": {"code": 7}}, '{"error": {"code": 7}}'),
        ({"error": None}, '{"error": null}'),
        ([1, 2], "[1, 2]"),
    ],
)
def test_words_of_a_server_wherever_it_puts_them(body: object, words: str) -> None:
    assert server_words(json.dumps(body).encode()) == words


def test_long_words_are_cut() -> None:
    assert server_words(b"x" * 10_000) == "x" * SHOWN + "…"
    assert server_words(b"") == ""


KEY = "sk-0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("nothing here", "nothing here"),
        (f"key {KEY} is wrong", "key *** is wrong"),
        (f"key={KEY},\nuser=me", "***\nuser=me"),
        (f"key {KEY[:8]}...", "key ***"),
        (f"key {KEY[5:14]} has", "key *** has"),
        # seven characters in common are not enough to tell
        (f"key {KEY[:7]}*** has", f"key {KEY[:7]}*** has"),
    ],
)
def test_scrub(text: str, scrubbed: str) -> None:
    assert scrub(text, KEY) == scrubbed


def test_scrub_of_short_and_absent_keys() -> None:
    assert scrub("my abc key", "abc") == "my *** key"
    assert scrub("my key", "") == "my key"


def test_most_tokens_is_a_third_of_the_bytes_and_the_longest_reply() -> None:
    assert most_tokens(b"x" * 100, {"max_tokens": 50}) == (34, 50)
    assert most_tokens(b"x", {"max_tokens": 5, "max_completion_tokens": 9}) == (1, 9)
    assert most_tokens(b"", {}) == (0, 0)


def test_parameters_do_not_replace_what_the_request_says() -> None:
    parameters = {"model": "other", "messages": [], "top_p": 0.5}
    request = ChatRequest("e", "u", "m", (Message("user", "hi"),), parameters)
    assert json.loads(encode_request(request, ReplyFormat.TEXT)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "top_p": 0.5,
    }


@pytest.mark.parametrize(
    ("title", "name"),
    [("opt evaluation!", "opt_evaluation_"), ("x" * 80, "x" * 64), (None, "reply")],
)
def test_name_of_a_schema_is_one_that_servers_take(title: str | None, name: str) -> None:
    schema = {"type": "object"} | ({} if title is None else {"title": title})
    request = ChatRequest("e", "u", "m", (), schema=schema)
    body = json.loads(encode_request(request, ReplyFormat.JSON_SCHEMA))
    assert body["response_format"]["json_schema"]["name"] == name


USAGES: dict[str, tuple[object, TokenCounts]] = {
    "nothing": (None, TokenCounts()),
    "half": ({"prompt_tokens": 5}, TokenCounts()),
    "plain": (counts(10, 4), TokenCounts(10, 4)),
    "details": (
        counts(10, 4, {"cached_tokens": 6, "cache_write_tokens": 1}, {"reasoning_tokens": 3}),
        TokenCounts(10, 4, 6, 1, 3),
    ),
    "reasoning beside the completion": (
        {**counts(10, 4, reply={"reasoning_tokens": 30}), "total_tokens": 44},
        TokenCounts(10, 34, 0, 0, 30),
    ),
    "reasoning within": (
        {**counts(10, 34, reply={"reasoning_tokens": 30}), "total_tokens": 44},
        TokenCounts(10, 34, 0, 0, 30),
    ),
    "more cached than sent": (counts(10, 4, {"cached_tokens": 11}), TokenCounts(10, 4)),
    "no details": (counts(10, 4, "none", [1]), TokenCounts(10, 4)),
    "no numbers": (
        counts(10, 4, {"cached_tokens": -6}, {"reasoning_tokens": True}),
        TokenCounts(10, 4),
    ),
}


@pytest.mark.parametrize(("usage", "tokens"), USAGES.values(), ids=USAGES)
def test_tokens_of_a_usage(usage: object, tokens: TokenCounts) -> None:
    body = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    result = read_completion(json.dumps(body).encode())
    assert isinstance(result, Completion)
    assert (result.tokens, result.usage_problem) == (tokens, "")
