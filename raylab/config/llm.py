"""The configuration of chat models and the endpoints that serve them."""

from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from raylab.config.base import Scalar, Strict, Text
from raylab.urls import secret_in


class Price(Strict):
    """Price of a model's tokens, in one currency for all models."""

    input: NonNegativeFloat
    """Per million tokens of the request."""
    output: NonNegativeFloat
    """Per million tokens of the reply."""


class Limits(Strict):
    """Limits of the whole run at one endpoint."""

    concurrency: PositiveInt = 32
    """Calls in flight."""
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    """Tokens of requests and replies; a pending reply counts as `max_tokens`."""
    timeout: PositiveFloat = 120.0
    """Seconds for one attempt."""
    deadline: PositiveFloat = 3600.0
    """Seconds for a call with all its attempts, from the first one; then its case stays open.

    Pauses between attempts grow, and a Retry-After header is honoured."""


class ReplyFormat(StrEnum):
    """The way an endpoint is made to answer in the requested format."""

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
    """Format that the server can enforce; `text` only asks for it in the prompt."""
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _address_is_plain(self) -> "Endpoint":
        if self.base_url is None:
            return self
        # Nothing that may be a key is shown.
        if secret_in(self.base_url) or any(mark in self.base_url for mark in "@?#"):
            raise ValueError("base_url must carry no key, because it is archived: use api_key_env")
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url {self.base_url} should start with http:// or https://")
        return self

    @model_validator(mode="after")
    def _key_is_elsewhere(self) -> "Endpoint":
        if self.api_key_env is not None and not self.api_key_env.isidentifier():
            raise ValueError(
                "api_key_env should be the name of an environment variable that holds the key, "
                "not the key"
            )
        return self


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


class Budget(Strict):
    """The most a run may spend. Then it stops; a larger budget and resume=true continue it."""

    tokens: PositiveInt | None = None
    money: PositiveFloat | None = None
    """In the currency of `prices`."""
