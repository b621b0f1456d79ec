"""Prices per million tokens, from the configuration or the package genai-prices.

The package's prices are those of its release; nothing is fetched.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

from genai_prices.data import providers
from genai_prices.data_snapshot import DataSnapshot
from genai_prices.types import TieredPrices

from raylab.core.errors import ConfigError
from raylab.llm.chat import Reply
from raylab.llm.config import Lane, Price, Service

TOKENS_PER_PRICE = 1_000_000
PACKAGED = DataSnapshot(providers, from_auto_update=False)
HALF_IN_BATCHES = {"openai", "azure", "anthropic", "google", "mistral", "together"}
"""Providers whose batches cost half, as their price lists say; the package has no such prices."""


class Prices:
    """The prices of the models in use, at their endpoints.

    A configured price holds in every lane, times its factor in batches. A packaged price is that of
    the lane in which a call was answered, or of the standard lane if the package has no other; in
    batches it is half of that with the providers of `HALF_IN_BATCHES`.

    Raises:
        ConfigError: The budget is in money, and a model has no price.
    """

    def __init__(self, llm: Service) -> None:
        self._prices: dict[tuple[str, str, Lane], Price | None] = {
            (chat.endpoint, chat.model, lane): llm.prices.get(chat.model)
            or _find_packaged(llm.endpoints[chat.endpoint].base_url, chat.model, lane)
            for chat in llm.models.values()
            for lane in Lane
        }
        self._billed = {name for name, place in llm.endpoints.items() if place.base_url is not None}
        if llm.budget.money is None:
            return
        for key, chat in llm.models.items():
            if self._prices[chat.endpoint, chat.model, Lane.STANDARD] is None:
                raise ConfigError(
                    f"llm.budget.money needs a price of {key}'s {chat.model}, which is not known: "
                    f"'llm.prices={{{chat.model}:{{input:...,output:...}}}}' per million tokens, "
                    "or llm.budget.tokens"
                )

    def find(self, endpoint: str, model: str, lane: Lane) -> Price | None:
        """Returns the price of calls in a lane; None for a model without one."""
        return self._prices.get((endpoint, model, lane))

    def most(self, endpoint: str, model: str, lane: Lane, prompt: int, completion: int) -> float:
        """Returns the highest price of a call, none of it cached before; 0 for one without."""
        price = self.find(endpoint, model, lane)
        costs = (tokens_cost(price, lane, prompt, completion, 0, new) for new in (0, prompt))
        return max(cost or 0.0 for cost in costs)

    def find_unpriced(self) -> Iterator[str]:
        """Yields the models without a price that are not the embedded one, with their endpoints."""
        for (endpoint, model, lane), price in self._prices.items():
            if lane is Lane.STANDARD and price is None and endpoint in self._billed:
                yield f"{model} at endpoint {endpoint}"


def reply_cost(price: Price | None, reply: Reply) -> float | None:
    """Returns what a reply costs in its lane; None without a price."""
    cached, written = reply.cached_prompt_tokens, reply.written_prompt_tokens
    tokens = reply.prompt_tokens, reply.completion_tokens, cached, written
    return tokens_cost(price, reply.lane, *tokens)


def tokens_cost(
    price: Price | None, lane: Lane, prompt: int, completion: int, cached: int = 0, written: int = 0
) -> float | None:
    """Returns the price of calls by their tokens; None without a price.

    Of the `prompt` tokens, `cached` were cached before, and `written` were newly cached.
    """
    if price is None:
        return None
    total = (prompt - cached - written) * price.input + completion * price.output
    total += cached * (price.input if price.cached_input is None else price.cached_input)
    total += written * (price.input if price.cache_write is None else price.cache_write)
    return total * (price.batch if lane is Lane.BATCH else 1.0) / TOKENS_PER_PRICE


def _find_packaged(base_url: str | None, model: str, lane: Lane) -> Price | None:
    """Returns the packaged price of a model at an address; None if there is none."""
    if base_url is None:
        return None
    try:
        provider, info = PACKAGED.find_provider_model(model, None, None, base_url)
    except LookupError:
        return None
    tier = Lane.STANDARD if lane is Lane.BATCH else lane
    packaged = info.get_prices(datetime.now(UTC), {"service_tier": tier.value})
    request, reply = _rate(packaged.input_mtok), _rate(packaged.output_mtok)
    if request is None or reply is None:
        return None
    cached, written = _rate(packaged.cache_read_mtok), _rate(packaged.cache_write_mtok)
    batch = 0.5 if provider.id in HALF_IN_BATCHES else 1.0
    return Price(input=request, cached_input=cached, cache_write=written, output=reply, batch=batch)


def _rate(price: Decimal | TieredPrices | None) -> float | None:
    """Returns a price of the package; if it grows with the request, that of short requests."""
    if price is None:
        return None
    return float(price.base if isinstance(price, TieredPrices) else price)
