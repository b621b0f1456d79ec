"""The configuration of chat models and the endpoints that serve them."""

import re
from abc import abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from raylab.core.config.base import Scalar, Strict, Text
from raylab.core.printable import secret_in

SECRET_FIELD = re.compile(
    r"secret|passw|credential|authorization|bearer|cookie|(api|access|private)-?key"
    r"|(^|-)token$|^(auth|key)$"
)
"""Names of request fields that hold secrets, in lower case with `-` for `_`."""


class Price(Strict):
    """Price of a model's tokens, in one currency for all models."""

    input: NonNegativeFloat
    """Per million tokens of the request."""
    cached_input: NonNegativeFloat | None = None
    """Per million tokens of the request that the server had cached; null: the price of input."""
    cache_write: NonNegativeFloat | None = None
    """Per million tokens of the request that the server newly cached; null: the price of input."""
    output: NonNegativeFloat
    """Per million tokens of the reply, reasoning included."""
    batch: NonNegativeFloat = 0.5
    """Factor on all of these for an answer that comes in a batch."""


class Lane(StrEnum):
    """The way in which an endpoint serves calls."""

    STANDARD = "standard"
    FLEX = "flex"
    """Cheaper and slower: sent with `service_tier: flex`, and a full queue is waited for."""
    BATCH = "batch"
    """Half the price within a day: collected in files, which the server answers as a whole."""


class Limits(Strict):
    """Limits of the whole run at one endpoint."""

    concurrency: PositiveInt | None = None
    """Most calls in flight, with which the run starts; null starts with 20 and goes to 100 at most.
    HTTP 429 lowers the number, down to 10, and answers raise it again."""
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    """Tokens of requests and replies; a pending reply counts as `max_tokens`."""
    timeout: PositiveFloat | None = None
    """Seconds for one attempt; null is 120, and 900 in the lane `flex`."""
    deadline: PositiveFloat = 3600.0
    """Seconds for a call with all its attempts, from the first one; then its case stays open.

    Pauses between attempts grow, and a Retry-After header is honoured. Waiting for a full queue in
    the lane `flex` does not count."""


class ReplyFormat(StrEnum):
    """The way in which an endpoint is made to answer in the requested format."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    TEXT = "text"


class Endpoint(Strict):
    """A server of chat models."""

    base_url: str | None = None
    """Address of an OpenAI-compatible API, such as https://host/v1; null is the embedded model."""
    api_key_env: str | None = None
    """Environment variable that holds its key; null sends none."""
    reply_format: ReplyFormat = ReplyFormat.JSON_SCHEMA
    """Format that the server can enforce; with `text` only the prompt asks for it."""
    limits: Limits = Limits()

    @field_validator("base_url", mode="after")
    @classmethod
    def _address_is_plain(cls, base_url: str | None) -> str | None:
        if base_url is None:
            return None
        # Nothing that may be a key is shown.
        if secret_in(base_url) or any(mark in base_url for mark in "@?#"):
            raise ValueError("must carry no key, because it is archived: use api_key_env")
        parts = urlsplit(base_url)
        # An invalid port raises a ValueError itself.
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(f"given {base_url}, should start with http:// or https://")
        return base_url

    @field_validator("api_key_env", mode="after")
    @classmethod
    def _key_is_elsewhere(cls, variable: str | None) -> str | None:
        if variable is not None and not variable.isidentifier():
            raise ValueError(
                "should be the name of an environment variable that holds the key, not the key"
            )
        return variable


class ChatModel(Strict):
    """A model and its sampling."""

    model: Text
    """Name of the model at the endpoint."""
    endpoint: Text = "default"
    """One of `llm.endpoints`."""
    temperature: NonNegativeFloat | None = 0.0
    """Sampling temperature; null leaves it to the server."""
    max_tokens: PositiveInt | None = 1024
    """Longest reply; null sends none, for models that take another key in `extra`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = 1
    """Seed of the sampling; null sends none."""
    extra: dict[str, Scalar] = Field(default={})
    """Further fields of the request, such as reasoning_effort."""
    lane: Lane | None = None
    """How its calls are served; null: as `llm.lane` says."""

    @field_validator("extra", mode="after")
    @classmethod
    def _extra_is_public(cls, extra: dict[str, Scalar]) -> dict[str, Scalar]:
        for name, value in extra.items():
            is_bearer = isinstance(value, str) and value.lower().startswith("bearer ")
            if is_bearer or SECRET_FIELD.search(name.lower().replace("_", "-")):
                raise ValueError(
                    f"{name} is archived with the call, so it must be no key: name the variable "
                    "that holds the key in api_key_env of the endpoint"
                )
        if "service_tier" in extra:
            raise ValueError("service_tier is set by llm.lane, so that lanes share their answers")
        return extra

    @property
    def longest_reply(self) -> int | None:
        """Most tokens of a reply that the request allows; None if it names none."""
        caps = (self.extra.get("max_completion_tokens"), self.extra.get("max_tokens"))
        for cap in (*caps, self.max_tokens):
            if isinstance(cap, int):
                return cap
        return None


class Budget(Strict):
    """The most that a run may spend. Then it stops; a larger budget and resume=true continue it."""

    tokens: PositiveInt | None = None
    money: PositiveFloat | None = None
    """In the currency of `prices`."""

    @property
    def is_set(self) -> bool:
        """True if there is any limit."""
        return self.tokens is not None or self.money is not None


class Service(Strict):
    """The endpoints of some models, with their prices, lane and budget.

    A job's configuration inherits from it and names its models; the client knows no more than this.
    """

    endpoints: dict[Text, Endpoint] = Field(default={"default": Endpoint()}, min_length=1)
    lane: Lane = Lane.STANDARD
    """How the endpoints serve the calls; answers are shared between lanes."""
    after_batch: Lane = Lane.STANDARD
    """How calls go on that a batch left without an answer."""
    prices: dict[Text, Price] = Field(default={})
    """Prices by model name, outside batches; other models have the prices that the package
    genai-prices knows for the address of their endpoint, in US dollars."""
    budget: Budget = Budget()

    @property
    @abstractmethod
    def models(self) -> Mapping[str, ChatModel]:
        """The models that are asked, by the key that configures each."""

    @property
    def used_endpoints(self) -> dict[str, Endpoint]:
        """The endpoints of the models, by name."""
        return {chat.endpoint: self.endpoints[chat.endpoint] for chat in self.models.values()}

    @property
    def limits(self) -> dict[str, Limits]:
        """The limits of each endpoint."""
        return {name: endpoint.limits for name, endpoint in self.endpoints.items()}

    def lane_of(self, chat: ChatModel) -> Lane:
        """Returns how the calls to a model are served."""
        return chat.lane or self.lane

    @model_validator(mode="after")
    def _models_are_served(self) -> "Service":
        for key, chat in self.models.items():
            if chat.endpoint not in self.endpoints:
                names = ", ".join(self.endpoints)
                raise ValueError(f"{key}.endpoint {chat.endpoint} is none of endpoints: {names}")
            is_embedded = self.endpoints[chat.endpoint].base_url is None
            if is_embedded and self.lane_of(chat) is Lane.BATCH:
                raise ValueError(
                    f"lane=batch: {key} is the embedded model, which has no batches: give "
                    f"endpoints.{chat.endpoint}.base_url, or lane=standard"
                )
            if self.budget.is_set and chat.longest_reply is None:
                raise ValueError(
                    f"budget needs the longest reply of {key}: set {key}.max_tokens, or "
                    f"{key}.extra.max_completion_tokens"
                )
        return self
