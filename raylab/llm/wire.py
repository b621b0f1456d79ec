"""The wire format of OpenAI-compatible endpoints: requests, completions and failures."""

import email.utils
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeGuard, cast

import msgspec

from raylab.config.llm import Lane, ReplyFormat
from raylab.llm.chat import ChatRequest, TokenCounts

LONGEST_PAUSE = 600.0
"""Longest Retry-After in seconds that a run waits for; a longer one stops the run."""
SHOWN = 400
"""Longest quotation of a server in a message, in characters."""
BYTES_PER_TOKEN = 3
"""Lower than with most tokenizers (about 4 in English, 3 in code), for a high estimate."""
HIDDEN_TOKENS = 200_000
"""Most tokens that a server is believed to add to a request or a reply, about a long context."""

UNKNOWN_MODEL = re.compile(
    r"\bmodel\b.{0,80}\b(not found|not exist|not available|not a valid)"
    r"|\b(invalid|unknown|no such) model\b",
    re.IGNORECASE | re.DOTALL,
)
CONFIGURED = ("max_tokens", "max_completion_tokens", "temperature", "seed")
FORMAT_WORDS = ("response_format", "json_schema")


class AttemptOutcome(StrEnum):
    """The result of one attempt."""

    OK = "ok"
    RATE_LIMITED = "rate_limited"
    QUEUE_FULL = "queue_full"
    """No room in the lane `flex`."""
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    MALFORMED = "malformed"
    """HTTP 200 without a chat completion."""
    OVERSIZED = "oversized"
    """HTTP 200 with more than is read of any answer; another attempt would be paid too."""
    REFUSED = "refused"
    """This call would be refused again."""
    UNUSABLE = "unusable"
    """Every call would be refused: wrong key, model, address or format, or no credit left."""


@dataclass(frozen=True)
class Completion:
    """The used parts of a chat completion.

    Attributes:
        text: the message, or the refusal of a model.
        response_model: model and version that the server names; empty if it names none.
        finish_reason: stop, length, content_filter; empty if not said.
        tokens: as billed; 0 if not said.
        service_tier: name of the lane that the server says it used; empty if not said.
        usage_problem: the reason why the server's usage cannot be true; empty if it can.
    """

    text: str
    response_model: str
    finish_reason: str
    tokens: TokenCounts
    service_tier: str = ""
    usage_problem: str = ""


@dataclass(frozen=True)
class Failure:
    """An attempt without an answer.

    Attributes:
        outcome: result of the attempt; never OK.
        message: the problem, in the server's words where it sent any.
        pause: seconds that the server asks to wait; None if it does not.
    """

    outcome: AttemptOutcome
    message: str
    pause: float | None = None
    was_sent: bool = True
    """False if no connection was made."""

    @property
    def billed(self) -> bool:
        """True if the server may count the attempt, although its answer was lost or unusable."""
        return self.was_sent and self.outcome in (
            AttemptOutcome.TIMEOUT,
            AttemptOutcome.CONNECTION,
            AttemptOutcome.MALFORMED,
            AttemptOutcome.OVERSIZED,
        )

    @property
    def passing(self) -> bool:
        """True if another attempt may be answered."""
        return self.outcome not in (
            AttemptOutcome.OVERSIZED,
            AttemptOutcome.REFUSED,
            AttemptOutcome.UNUSABLE,
        )


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None
    system_fingerprint: str | None = None
    usage: Any = None
    service_tier: Any = None


_BODY = msgspec.json.Decoder(_Body)


def encode_request(request: ChatRequest, form: ReplyFormat, lane: Lane = Lane.STANDARD) -> bytes:
    """Returns the body of the call.

    Raises:
        UnicodeEncodeError: A message holds half of a surrogate pair, which JSON cannot encode.
    """
    body: dict[str, Any] = {
        **request.parameters,
        "model": request.model,
        "messages": request.messages,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if lane is not Lane.STANDARD:
        body["service_tier"] = lane.value
    if request.schema is not None and form is ReplyFormat.JSON_SCHEMA:
        name = re.sub(r"[^A-Za-z0-9_-]", "_", str(request.schema.get("title", "reply")))[:64]
        wanted = {"name": name, "schema": request.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    elif request.schema is not None and form is ReplyFormat.JSON_OBJECT:
        body["response_format"] = {"type": "json_object"}
    return msgspec.json.encode(body)


def most_tokens(content: bytes, parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Returns a high estimate of the tokens of a request, and of its reply.

    A model behind an endpoint has no tokenizer here. Scripts that take more than a token for three
    bytes are balanced by replies, which rarely fill max_tokens.
    """
    limits = (parameters.get("max_tokens"), parameters.get("max_completion_tokens"))
    reply = max((limit for limit in limits if isinstance(limit, int)), default=0)
    return math.ceil(len(content) / BYTES_PER_TOKEN), reply


def read_completion(content: bytes) -> Completion | Failure:
    """Returns the completion in the body of an answer with HTTP 200."""
    try:
        body = _BODY.decode(content)
        choice = body.choices[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError, RecursionError):
        said = server_words(content) or "an empty body"
        return Failure(AttemptOutcome.MALFORMED, f"HTTP 200 that holds no chat completion: {said}")
    message = choice.message
    tokens, problem = _read_usage(body.usage)
    text = message.content
    if isinstance(text, list):
        text = "".join(part.text or "" for part in text)
    return Completion(
        text=text or message.refusal or "",
        response_model=" ".join(filter(None, (body.model, body.system_fingerprint))),
        finish_reason=choice.finish_reason or "",
        tokens=tokens,
        service_tier=body.service_tier if isinstance(body.service_tier, str) else "",
        usage_problem=problem,
    )


def _read_usage(usage: Any) -> tuple[TokenCounts, str]:
    """Returns the tokens of a call, 0 unless request and reply are said, and what is wrong.

    Some servers count reasoning beside the completion and not in it, which the total shows.
    """
    if usage is None:
        return TokenCounts(), ""
    said = cast(dict[str, Any], usage) if isinstance(usage, dict) else {}
    prompt, reply = said.get("prompt_tokens"), said.get("completion_tokens")
    if said and None in (prompt, reply):
        return TokenCounts(), ""
    if not (_is_count(prompt) and _is_count(reply)):
        shown = msgspec.json.encode(usage).decode()[:SHOWN]
        return TokenCounts(), f"usage {shown} holds no numbers of tokens"
    prompt, reply = int(prompt), int(reply)
    reasoning = _detail(said, "completion_tokens_details", "reasoning_tokens")
    if reasoning and said.get("total_tokens") == prompt + reply + reasoning:
        reply += reasoning
    cached = _detail(said, "prompt_tokens_details", "cached_tokens")
    written = _detail(said, "prompt_tokens_details", "cache_write_tokens")
    if cached + written > prompt:
        # What cannot be true makes nothing cheaper.
        cached = written = 0
    return TokenCounts(prompt, reply, cached, written, min(reasoning, reply)), ""


def _detail(usage: dict[str, Any], group: str, name: str) -> int:
    """Returns a number of tokens from the details of a usage; 0 if it is not said."""
    details = usage.get(group)
    value = cast(dict[str, Any], details).get(name) if isinstance(details, dict) else None
    return int(value) if _is_count(value) else 0


def _is_count(value: Any) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < 2**53 and value == int(value)


def unbelievable(completion: Completion, request_bytes: int, longest_reply: int) -> str:
    """Returns why a usage cannot be that of this call; empty if it can.

    A token has at least one byte, and a reply no more tokens than were asked for, apart from what
    a server may add: hidden prompts and reasoning.

    Args:
        completion: the answer.
        request_bytes: length of the body that was sent.
        longest_reply: `max_tokens` of the request; 0 if it has none.
    """
    most = (request_bytes + HIDDEN_TOKENS, longest_reply + HIDDEN_TOKENS)
    said = (completion.tokens.prompt, completion.tokens.completion)
    if said[0] <= most[0] and said[1] <= most[1]:
        return ""
    return f"usage of {said[0]:,} and {said[1]:,} tokens, where {most[0]:,} and {most[1]:,} can be"


def read_status(
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    now: float,
    answered: bool,
    lane: Lane = Lane.STANDARD,
) -> Failure:
    """Returns the failure that a status other than 200 means.

    Args:
        status: HTTP status.
        headers: headers of the answer; look-ups must ignore case.
        content: its body.
        now: seconds since the epoch.
        answered: True if the endpoint answered a call before: then a 403 concerns this call (for
            example by a firewall) and not the key.
        lane: in which the call was sent.
    """
    words = server_words(content)
    try:
        name = HTTPStatus(status).phrase
    except ValueError:
        name = ""
    message = f"HTTP {status} {name}".rstrip() + (f": {words}" if words else "")
    pause = retry_after(headers, now)
    if pause is not None and pause > LONGEST_PAUSE and _passes(status):
        return Failure(
            AttemptOutcome.UNUSABLE,
            f"{message}; it asks to wait {pause:,.0f} s: resume after that",
            pause,
        )
    code = _error_field(content, "code")
    if lane is Lane.FLEX and _is_full(status, words, code):
        return Failure(AttemptOutcome.QUEUE_FULL, message, pause)
    if status == HTTPStatus.TOO_MANY_REQUESTS and code != "insufficient_quota":
        return Failure(AttemptOutcome.RATE_LIMITED, message, pause)
    if _passes(status) and code != "insufficient_quota":
        return Failure(AttemptOutcome.SERVER_ERROR, message, pause)
    advice = _advice(status, words, code, _error_field(content, "param"))
    if advice is not None and not (status == HTTPStatus.FORBIDDEN and answered):
        return Failure(AttemptOutcome.UNUSABLE, message + advice)
    return Failure(AttemptOutcome.REFUSED, message)


def _is_full(status: int, words: str, code: str) -> bool:
    """Returns True if a queue is full: 429 Resource Unavailable of OpenAI, 498 of Groq."""
    said = f"{code} {words}".lower().replace("_", " ")
    return status == 498 or (status == 429 and "resource unavailable" in said)


def _passes(status: int) -> bool:
    return status in (408, 409, 425, 429) or status >= 500


def _advice(status: int, words: str, code: str, param: str) -> str | None:
    """Returns advice if every call would be refused; None if only this one is."""
    if status in (402, 429):
        return "; no credit is left: add credit, then resume"
    if status in (401, 403):
        return "; give a key that the endpoint takes in the variable that api_key_env names"
    if code == "model_not_found" or (status in (400, 404) and UNKNOWN_MODEL.search(words)):
        return "; give a model that the endpoint serves"
    if 300 <= status < 400:
        return "; base_url should be the address that it redirects to"
    if status in (404, 405):
        return "; base_url should be the part before /chat/completions, often ending in /v1"
    names_format = param.startswith(FORMAT_WORDS) or any(word in words for word in FORMAT_WORDS)
    if status in (400, 422) and names_format:
        return "; set reply_format=json_object or reply_format=text for this endpoint"
    if param in CONFIGURED or code in ("unsupported_parameter", "unsupported_value"):
        return "; change this in the configuration of the model"
    return None


def server_words(content: bytes) -> str:
    """Returns the message of an error body, or else the start of the body, on one line."""
    text = _error_field(content, "message") or content[: 4 * SHOWN].decode(errors="replace")
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def _error_field(content: bytes, field: str) -> str:
    """Returns a field of the error from any of its usual places; empty if absent."""
    try:
        body = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    if not isinstance(body, dict):
        return ""
    outer = cast(dict[str, object], body)
    error = outer.get("error", outer)
    if isinstance(error, str):
        return error if field == "message" else ""
    value = cast(dict[str, object], error).get(field) if isinstance(error, dict) else None
    if value is None and field == "message":
        value = outer.get("detail")
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Returns the seconds that the server asks to wait, 0 or more; None if it does not ask.

    Args:
        headers: `retry-after-ms`, `x-ms-retry-after-ms`, or `retry-after` with seconds or a date.
        now: seconds since the epoch.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("x-ms-retry-after-ms", 1e-3), ("retry-after", 1)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(date.timestamp() - now, 0.0)
