"""What calls cost, by hand or by the package's own calculation, and the lane that costs less."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from genai_prices import Usage, calc_price

from raylab.core.errors import ConfigError
from raylab.llm.chat import Reply
from raylab.llm.config import ChatModel, Lane, Price
from raylab.llm.prices import Prices, tokens_cost
from raylab.llm.wire import Failure
from tests.llm.scripted_server import failure, in_turn
from tests.llm.test_client import Clock, Notebook, ask, awaited, config, request, says, serving

OPENAI = "https://api.openai.com/v1"
COUNTS = (5_000, 700, 3_000)
"""Tokens of a request, its reply, and those of the request that were cached."""


def test_each_kind_of_token_has_its_price() -> None:
    price = Price(input=2.0, cached_input=0.5, cache_write=2.5, output=8.0)
    tokens = (Lane.STANDARD, 10_000, 1_000, 4_000, 2_000)
    # 4,000 plain at 2, 4,000 cached at 0.5, 2,000 written at 2.5 and 1,000 of the reply at 8
    assert tokens_cost(price, *tokens) == pytest.approx((8_000 + 2_000 + 5_000 + 8_000) / 1e6)
    # What is held for a call is the dearest that it may become: all of the request newly cached.
    prices = Prices(config(OPENAI, prices={"m": price}))
    most = prices.most("main", "m", Lane.STANDARD, 10_000, 1_000)
    assert most == pytest.approx((25_000 + 8_000) / 1e6)
    # Prices that are not given are that of the input: 10,000 at 2 and 1,000 at 8.
    assert tokens_cost(Price(input=2.0, output=8.0), *tokens) == pytest.approx(0.028)


def cost_of(prices: Prices, model: str, lane: Lane) -> float | None:
    return tokens_cost(prices.find("main", model, lane), lane, *COUNTS)


@pytest.mark.parametrize("lane", [Lane.STANDARD, Lane.FLEX])
def test_packaged_prices_are_those_of_the_package_and_own_prices_win(lane: Lane) -> None:
    expected = calc_price(
        Usage(input_tokens=5_000, cache_read_tokens=3_000, output_tokens=700),
        "gpt-5",
        provider_id="openai",
        genai_request_timestamp=datetime.now(UTC),
        price_context={"service_tier": lane.value},
    )
    assert cost_of(Prices(config(OPENAI, model="gpt-5")), "gpt-5", lane) == pytest.approx(
        float(expected.total_price)
    )
    own = Prices(config(OPENAI, model="gpt-5", prices={"gpt-5": Price(input=1.0, output=1.0)}))
    assert cost_of(own, "gpt-5", lane) == pytest.approx(5_700 / 1e6)


def test_a_batch_costs_half_of_the_standard_price_or_what_one_says() -> None:
    packaged = Prices(config(OPENAI, model="gpt-5"))
    standard = cost_of(packaged, "gpt-5", Lane.STANDARD)
    assert standard is not None
    assert cost_of(packaged, "gpt-5", Lane.BATCH) == pytest.approx(standard / 2)
    # A provider that names no lower price may ask the whole.
    groq = "https://api.groq.com/openai/v1"
    model = "llama-3.3-70b-versatile"
    other = Prices(config(groq, model=model))
    costs = {cost_of(other, model, lane) for lane in (Lane.STANDARD, Lane.BATCH)}
    assert len(costs) == 1 and None not in costs
    own = Prices(config(OPENAI, prices={"m": Price(input=1.0, output=1.0, batch=0.4)}))
    assert cost_of(own, "m", Lane.BATCH) == pytest.approx(0.4 * 5_700 / 1e6)
    assert own.most("main", "m", Lane.BATCH, 10, 10) == pytest.approx(0.4 * 20 / 1e6)


def test_a_model_that_nobody_knows_has_no_price() -> None:
    for model, base_url in (("no-such", OPENAI), ("gpt-5", "http://127.0.0.1:9/v1")):
        prices = Prices(config(base_url, model=model))
        assert cost_of(prices, model, Lane.STANDARD) is None
        assert list(prices.find_unpriced()) == [f"{model} at endpoint main"]
        with pytest.raises(ConfigError, match=rf"needs a price of evaluator's {model}"):
            Prices(config(base_url, model=model, budget={"money": 1}))


def test_the_cap_on_replies_that_a_budget_needs_may_stand_in_extra() -> None:
    uncapped = ChatModel(model="m", endpoint="main", max_tokens=None)
    capped = uncapped.model_copy(update={"extra": {"max_completion_tokens": 50}})
    assert (uncapped.longest_reply, capped.longest_reply) == (None, 50)


@awaited
async def test_flex_is_asked_for_and_shares_answers_with_the_standard_lane() -> None:
    journal, flex = Notebook(), says("x", service_tier="flex")
    async with serving(flex, journal) as (asked, client):
        first = await ask(client, lane=Lane.FLEX)
    async with serving(flex, journal) as (server, client):
        again, other = await ask(client), await ask(client, "other")
    assert [call.body.get("service_tier") for call in asked.calls + server.calls] == ["flex", None]
    assert (first.lane, other.lane) == (Lane.FLEX, Lane.STANDARD)
    assert again == replace(first, cached=True) and first.key == request().key
    flexible = request(lane=Lane.FLEX)
    assert journal.kept[0] == (flexible, "description_hash", "classify-a")


@awaited
async def test_a_full_queue_is_waited_for_beyond_the_deadline() -> None:
    clock, results = Clock(draw=0.5), list[Reply | Failure]()
    full = failure(429, "Resource Unavailable", code="resource_unavailable")
    behave = in_turn(*[full] * 30, says("x", service_tier="default"))
    settings = {"on_attempt": results.append, "deadline": 60}
    async with serving(behave, clock=clock, **settings) as (_, client):
        reply = await ask(client, lane=Lane.FLEX)
    assert (reply.attempts, sum(clock.pauses) > 600) == (31, True)
    assert {getattr(result, "outcome", "ok") for result in results} == {"queue_full", "ok"}
    # The lane is the one that the server used.
    assert reply.lane is Lane.STANDARD
