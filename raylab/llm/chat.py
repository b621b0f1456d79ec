"""Requests to chat models, their replies, and the journal of both."""

import hashlib
import json
import operator
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from raylab.core.errors import BudgetError
from raylab.llm.config import Lane, Price


@dataclass(frozen=True)
class Message:
    """One turn: `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """One call. Requests of equal content have equal keys.

    Attributes:
        endpoint: name of the endpoint in the configuration.
        base_url: address of the endpoint; empty for the embedded model.
        parameters: sampling parameters and extra fields of the body, as JSON values.
        seed: seed of the call; None sends none.
        schema: JSON schema of the reply; None asks for free text.
        salt: text that gives an equal request another key; it is not sent.
        lane: how it is served, which is no part of its key.
    """

    endpoint: str
    base_url: str
    model: str
    messages: tuple[Message, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    schema: dict[str, Any] | None = None
    salt: str = ""
    lane: Lane = Lane.STANDARD

    @property
    def key(self) -> str:
        """The SHA-256 of all but the endpoint's local name and the lane, in hexadecimal."""
        content = dict(vars(self))
        del content["endpoint"], content["lane"]
        text = json.dumps(
            content, sort_keys=True, separators=(",", ":"), allow_nan=False, default=vars
        )
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Reply:
    """The unread answer to a request.

    Attributes:
        text: the message as received.
        response_model: model and version as the server names them.
        finish_reason: stop, length or content_filter, as the server says.
        prompt_tokens: tokens of the request as billed; 0 if the server does not say.
        completion_tokens: tokens of the reply as billed, with reasoning; 0 likewise.
        cost: price in the currency of `llm.prices`; None for a model without a price.
        seconds: time from sending the last attempt to the end of its answer.
        attempts: attempts made, the successful one included.
        cached: True if it came from the journal and cost nothing.
        cached_prompt_tokens: tokens of the request that the server had cached.
        reasoning_tokens: tokens of the reply that are reasoning.
        lane: lane in which the call was answered.
        written_prompt_tokens: tokens of the request that the server newly cached.
    """

    key: str
    text: str
    response_model: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float
    attempts: int
    cached: bool = False
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0
    lane: Lane = Lane.STANDARD
    written_prompt_tokens: int = 0


class Chat(Protocol):
    """An answerer of requests."""

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        """Answers a request, from the journal if an equal one was answered before.

        Args:
            description_hash: SHA-256 of the description that the call is about.
            role: purpose of the call, such as `classify-a`; kept in the journal.

        Raises:
            CallError, EndpointError: the endpoint refused the call, or would answer none.
            DeadlineError: no attempt was answered in time.
            BudgetError, StoppedError: the budget is used up, or the run stops; nothing was sent.
        """
        ...


@dataclass(frozen=True)
class Cost:
    """The cost of attempts at calls, or the most that they may cost.

    Attributes:
        money: price of the attempts that have one.
    """

    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of requests and replies."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: "Cost") -> "Cost":
        rest = Cost(*map(operator.sub, vars(self).values(), vars(other).values()))
        # Without attempts, only rounding errors of prices are left.
        return rest if rest.attempts else Cost()


FREE = Cost()
"""The cost of no attempt."""


@dataclass(frozen=True)
class Claim:
    """The exclusive right to send one attempt at a call.

    Attributes:
        most: the most that the attempt may cost.
    """

    id: str
    key: str
    most: Cost


@dataclass(frozen=True)
class BatchCall:
    """A call in a batch, with all that its row in the journal says."""

    claim: Claim
    description_hash: str
    role: str
    model: str
    seed: int | None
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class CallBatch:
    """A batch of calls on its way, as the journal has it.

    Attributes:
        id: its own id, journalled before anything is sent.
        base_url: address of the endpoint.
        created: time at which it was journalled, UTC.
        calls: its calls, to one model, in the order of the lines of its file.
        price: the price of that model; None without one.
        file: the server's id of that file, journalled before the batch is created from it.
        server_id: the server's id of the batch.
        is_abandoned: True if the process that would submit it is dead.
    """

    id: str
    base_url: str
    created: datetime
    calls: tuple[BatchCall, ...]
    price: Price | None
    file: str | None = None
    server_id: str | None = None
    is_abandoned: bool = False


Refusal = Reply | str | BudgetError | None
"""The reason why a claim was not granted now: the reply, if the call was answered in the meantime;
the id of the batch that it is in; the error, if the rest of the budget is too small; None while an
equal call is in flight elsewhere, or calls in flight hold the rest of the budget."""


class Journal(Protocol):
    """A journal of answered calls, written before a reply is read, and of attempts in flight."""

    async def get(self, key: str, description_hash: str) -> Reply | None:
        """Returns the reply to an equal request; None if there was none."""
        ...

    async def claim(self, key: str, most: Cost) -> Claim | Reply | str | None:
        """Claims one attempt at a call, which may cost `most`, before it is sent.

        Returns why there is no claim as `Refusal` says, but raises BudgetError. Raises OwnerError
        if another process works on the run by now.
        """
        ...

    def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str, claim: Claim
    ) -> Awaitable[object]:
        """Queues a reply, which ends its claim; awaiting the result waits for the disk.

        A claim requested later is granted after the reply is durable.
        """
        ...

    async def end(self, claim: Claim, paid: bool) -> None:
        """Ends the claim of an attempt without an answer; `paid` if it may be billed."""
        ...

    async def open_batch(self, batch: CallBatch) -> Mapping[str, Refusal]:
        """Claims the calls of a batch, and journals it with those that are granted.

        Their claims end with the batch alone, whatever becomes of this process. Returns the refused
        calls by key; raises OwnerError as `claim` does.
        """
        ...

    async def find_batch(self, id: str) -> CallBatch | None:
        """Returns a batch of any run as it stands; None if it has ended."""
        ...

    async def note_batch(self, batch: CallBatch, file: str, server_id: str | None = None) -> bool:
        """Journals the server's ids of a batch; returns False if it has ended, or has others."""
        ...

    async def end_batch(self, batch: CallBatch, ends: Mapping[str, Reply | bool]) -> None:
        """Ends a batch and its claims at once, unless it has ended or is not as given any more.

        By the key of each call, `ends` has its reply, or without one whether it may be billed.
        """
        ...
