"""The wire format of OpenAI-compatible endpoints: requests, completions and failures."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http.client import responses
from typing import Annotated, Any, cast

import msgspec

from raylab.llm.chat import ChatRequest, Cost, Reply
from raylab.llm.config import Lane, ReplyFormat

MAX_PAUSE = 600.0
"""Longest Retry-After in seconds that a run waits for; a longer one stops the run."""
SHOWN = 400
"""Longest quotation of a server in a message, in characters."""
BYTES_PER_TOKEN = 3
"""Lower than with most tokenizers (about 4 in English, 3 in code), for a high estimate."""
HIDDEN_TOKENS = 200_000
"""Most tokens that a server can plausibly add to a request or a reply: about a long context."""

CONFIGURED = ("max_tokens", "max_completion_tokens", "temperature", "seed")

HttpResponse = tuple[int, Mapping[str, str], bytes]
"""Status, headers (look-ups ignore case) and decompressed body."""


class AttemptOutcome(StrEnum):
    """The way in which an attempt failed."""

    RATE_LIMITED = "rate_limited"
    QUEUE_FULL = "queue_full"
    """No room in the lane `flex`."""
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    MALFORMED = "malformed"
    """HTTP 200 without a chat completion."""
    OVERSIZED = "oversized"
    """HTTP 200 with a body beyond the limit; another attempt would be paid too."""
    REFUSED = "refused"
    """This call would be refused again."""
    UNUSABLE = "unusable"
    """Every call would be refused: wrong key, model, address or format, or no credit left."""


BILLABLE = {AttemptOutcome(name) for name in ("timeout", "connection", "malformed", "oversized")}
FINAL = {AttemptOutcome.OVERSIZED, AttemptOutcome.REFUSED, AttemptOutcome.UNUSABLE}


@dataclass(frozen=True)
class Failure:
    """An attempt without an answer.

    Attributes:
        message: the problem, in the server's words if it sent any.
        pause: seconds that the server asks to wait; None if it does not ask.
        was_sent: False if no connection was made.
    """

    outcome: AttemptOutcome
    message: str
    pause: float | None = None
    was_sent: bool = True

    @property
    def may_be_billed(self) -> bool:
        """True if the server may bill the attempt, although its answer was lost or unusable."""
        return self.was_sent and self.outcome in BILLABLE


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        """The content, or its pieces in a row, or else the words of a refusal."""
        pieces = self.content if isinstance(self.content, list) else [{"text": self.content}]
        return "".join(str(piece.get("text") or "") for piece in pieces) or self.refusal or ""


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    model: str | None = None
    system_fingerprint: str | None = None
    usage: Any = None
    service_tier: Any = None


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None

    @property
    def cache_counts(self) -> tuple[int, int]:
        """Tokens of the request that were cached, and newly cached."""
        details = self.prompt_tokens_details or _Details()
        cached, written = details.cached_tokens or 0, details.cache_write_tokens or 0
        # An impossible number makes nothing cheaper.
        return (cached, written) if cached + written <= self.prompt_tokens else (0, 0)

    @property
    def reply_counts(self) -> tuple[int, int]:
        """Tokens of the reply, and those of them that are reasoning."""
        completion = self.completion_tokens
        reasoning = (self.completion_tokens_details or _Details()).reasoning_tokens or 0
        if self.total_tokens == self.prompt_tokens + completion + reasoning:
            # Some servers count reasoning beside the completion and not in it.
            completion += reasoning
        return completion, min(reasoning, completion)


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
        schema = {"name": name, "schema": request.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif request.schema is not None and form is ReplyFormat.JSON_OBJECT:
        body["response_format"] = {"type": "json_object"}
    return msgspec.json.encode(body)


def most_tokens(content: bytes, parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Returns a high estimate of the tokens of a request and of its reply.

    A model behind an endpoint has no tokenizer here. Scripts that take more than a token for three
    bytes are balanced by replies, which rarely fill max_tokens.
    """
    limits = (parameters.get("max_tokens"), parameters.get("max_completion_tokens"))
    reply = max((limit for limit in limits if isinstance(limit, int)), default=0)
    return math.ceil(len(content) / BYTES_PER_TOKEN), reply


def read_completion(content: bytes, most: Cost, lane: Lane) -> Reply | Failure:
    """Returns the reply in the body of an answer with HTTP 200, without key, cost and time.

    Args:
        most: The most that the call may take; a usage beyond it is not believed.
    """
    try:
        body = _BODY.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        words = read_error(content)[0] or "an empty body"
        return Failure(AttemptOutcome.MALFORMED, f"HTTP 200 that holds no chat completion: {words}")
    # A server may answer in another lane than requested, and bills that one.
    is_asked = lane is Lane.STANDARD or body.service_tier in (None, "", lane)
    return Reply(
        key="",
        text=body.choices[0].message.text,
        response_model=" ".join(filter(None, (body.model, body.system_fingerprint))),
        finish_reason=body.choices[0].finish_reason or "",
        cost=None,
        seconds=0.0,
        attempts=0,
        lane=lane if is_asked else Lane.STANDARD,
        **_read_usage(body.usage, most),
    )


def _read_usage(usage: Any, most: Cost) -> Mapping[str, Any]:
    """Returns the numbers of tokens of a reply; 0 if the usage is impossible or lacks a number.

    A token has at least one byte, and a reply has at most as many tokens as requested, not counting
    the hidden prompts and reasoning that a server may add.
    """
    unknown = {"prompt_tokens": 0, "completion_tokens": 0}
    try:
        said = msgspec.convert(usage, _Usage)
    except msgspec.ValidationError:
        return unknown
    (completion, reasoning), (cached, written) = said.reply_counts, said.cache_counts
    longest = BYTES_PER_TOKEN * most.prompt_tokens + HIDDEN_TOKENS
    if said.prompt_tokens > longest or completion > most.completion_tokens + HIDDEN_TOKENS:
        return unknown
    return {
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": completion,
        "cached_prompt_tokens": cached,
        "reasoning_tokens": reasoning,
        "written_prompt_tokens": written,
    }


def read_status(response: HttpResponse, has_answered: bool, lane: Lane = Lane.STANDARD) -> Failure:
    """Returns the failure that a status other than 2xx means.

    Args:
        has_answered: True if the endpoint answered an earlier call: then a 403 comes from a
            firewall, and not from the key.
    """
    status, headers, content = response
    words, code, param = read_error(content)
    line = f"HTTP {status} {responses.get(status, '')}".rstrip()
    message = f"{line}: {words}" if words else line
    # The seconds that the server asks to wait; it may also give a date, which is not read.
    pause = None
    with suppress(ValueError):
        seconds = float(headers.get("retry-after", ""))
        pause = max(seconds, 0.0) if math.isfinite(seconds) else None
    outcome = _find_passing(status, words, code, lane)
    if outcome is not None:
        if pause is None or pause <= MAX_PAUSE:
            return Failure(outcome, message, pause)
        advice = f"{message}; it asks to wait {pause:,.0f} s: resume after that"
        return Failure(AttemptOutcome.UNUSABLE, advice, pause)
    advice = _advise(status, words, code, param)
    if advice is None or (status == 403 and has_answered):
        return Failure(AttemptOutcome.REFUSED, message)
    return Failure(AttemptOutcome.UNUSABLE, f"{message}; {advice}")


def _find_passing(status: int, words: str, code: str, lane: Lane) -> AttemptOutcome | None:
    """Returns the outcome of a failure that may pass; None if another attempt would fail too."""
    # A queue is full: 498 of Groq, and 429 of OpenAI with these words.
    full = "resource unavailable" in f"{code} {words}".lower().replace("_", " ")
    if lane is Lane.FLEX and (status == 498 or (status == 429 and full)):
        return AttemptOutcome.QUEUE_FULL
    if code == "insufficient_quota":
        return None
    if status == 429:
        return AttemptOutcome.RATE_LIMITED
    return AttemptOutcome.SERVER_ERROR if status in (408, 409, 425) or status >= 500 else None


def _advise(status: int, words: str, code: str, param: str) -> str | None:
    """Returns advice if every call would be refused; None if only this one is."""
    if status in (402, 429):
        return "no credit is left: add credit, then resume"
    if status in (401, 403):
        return "give a key that the endpoint takes in the variable that api_key_env names"
    if status in (404, 405) or status < 400 or code == "model_not_found":
        return (
            "give a model that the endpoint serves, and in base_url the part of its address before "
            "/chat/completions, often ending in /v1"
        )
    if status in (400, 422) and re.search("response_format|json_schema", f"{param} {words}"):
        return "set reply_format=json_object or reply_format=text for this endpoint"
    if param in CONFIGURED or code in ("unsupported_parameter", "unsupported_value"):
        return "change this in the configuration of the model"
    return None


def read_error(content: bytes) -> tuple[str, str, str]:
    """Returns the message on one line, the code and the parameter of an error body, or empty texts.

    Without a message, the start of the body is the message.
    """
    body: Any = None
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        body = msgspec.json.decode(content)
    error = (cast(dict[str, Any], body).get("error") or body) if isinstance(body, dict) else None
    fields = cast(dict[str, Any], error) if isinstance(error, dict) else {"message": error}
    message = fields.get("message") or fields.get("detail")
    text = message if isinstance(message, str) else content[: 4 * SHOWN].decode(errors="replace")
    line = " ".join(text.split())
    code, param = (str(fields.get(name) or "") for name in ("code", "param"))
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…", code, param
