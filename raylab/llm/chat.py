"""What is said to a chat model and what it answers, whoever serves it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]


@dataclass(frozen=True)
class Message:
    """One turn: `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """One call, told by content alone, so that an equal call has an equal key.

    Attributes:
        endpoint: name of the endpoint in the configuration.
        base_url: where it is; empty for the embedded model.
        model: model as the endpoint names it.
        messages: the turns.
        parameters: sampling parameters and extra body of the call, JSON values.
        seed: seed of the call; None leaves it to the server.
        schema: JSON schema that the reply should satisfy; None asks for free text.
        salt: sets the call apart from equal ones in the journal; it is not sent.
    """

    endpoint: str
    base_url: str
    model: str
    messages: tuple[Message, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    schema: Json | None = None
    salt: str = ""

    @property
    def key(self) -> str:
        """SHA-256 of all but the endpoint's local name."""
        content = dict(vars(self))
        del content["endpoint"]
        text = json.dumps(
            content, sort_keys=True, separators=(",", ":"), allow_nan=False, default=vars
        )
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Reply:
    """What came back, before anyone has read it.

    Attributes:
        key: key of the request.
        text: the message, as received.
        response_model: model and version that the server says it was.
        finish_reason: why the server stopped: stop, length, content_filter.
        prompt_tokens: tokens of the request, as billed; 0 where the server does not say.
        completion_tokens: tokens of the reply, as billed.
        cost: price by the configured table, in its currency; None for a model without a price.
        seconds: time from sending the successful attempt to the end of its answer.
        attempts: attempts made, the successful one included.
        cached: whether it came from the journal, so that nothing was sent or paid.
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


class Chat(Protocol):
    """Anything that answers a request."""

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        """Answer a request, from the journal if it was made before.

        Args:
            request: the call.
            description_hash: SHA-256 of the text that the call is about; the journal's key.
            role: what the call is for, such as `classify-a`; kept in the journal.

        Raises:
            CallError: no answer after all retries, or none possible.
            BudgetError: the budget is used up, and nothing was sent.
            StoppedError: the run is stopping, and nothing was sent.
        """
        ...


class Journal(Protocol):
    """Where completed calls are kept before anyone reads their replies."""

    async def get(self, key: str, description_hash: str) -> Reply | None:
        """The reply to an equal call made before."""
        ...

    async def put(
        self, request: ChatRequest, reply: Reply, description_hash: str, role: str
    ) -> None:
        """Keep a reply; durable when this returns."""
        ...
