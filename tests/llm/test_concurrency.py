"""The number of calls in flight: its rule, and what it comes to against servers that refuse."""

import asyncio
import itertools

import pytest

from raylab.config.llm import Limits
from raylab.llm.client import Client
from raylab.llm.concurrency import PAUSE, Share, Slots
from tests.llm.scripted_server import Answer, Call, ScriptedServer, completion, failure
from tests.llm.test_client import Clock, Notebook, ask, awaited, config


def slots(limit: int | None = None, number: int = 0, count: int = 1) -> Slots:
    return Slots(Limits(concurrency=limit), Share(number, count))


def clean_rounds(held: Slots, count: int) -> None:
    for _ in range(count):
        for _ in range(held.allowed):
            held.answered()


def test_growth_is_by_a_twentieth_a_clean_round() -> None:
    held = slots()
    assert held.allowed == 20
    for _ in range(19):
        held.answered()
    assert held.allowed == 20
    held.answered()
    assert held.allowed == 21
    clean_rounds(held, 3)
    # 20 * 1.05 ** 4 = 24.3
    assert held.allowed == 24
    clean_rounds(held, 60)
    assert held.allowed == held.most == 100


def test_a_failure_only_stops_the_growth_of_its_round() -> None:
    held = slots()
    for _ in range(10):
        for _ in range(19):
            held.answered()
        held.failed()
    assert held.allowed == 20


def test_an_episode_of_refusals_counts_once() -> None:
    held = slots()
    clean_rounds(held, 60)
    # A hundred calls were sent at 5 and are refused at 7; those sent after that are the next one.
    assert [held.refused(sent=5, now=7) for _ in range(3)] == [True, False, False]
    assert held.allowed == 80
    assert held.refused(sent=22, now=23)
    assert held.allowed == 64
    for sent in range(100, 200, 2):
        held.refused(sent, sent + 1)
    assert held.allowed == 10


def test_a_configured_limit_is_where_it_starts_and_never_passed() -> None:
    held = slots(64)
    assert (held.allowed, held.most) == (64, 64)
    clean_rounds(held, 5)
    assert held.allowed == 64
    few = slots(4)
    few.refused(0, 1)
    assert few.allowed == few.most == 4


@pytest.mark.parametrize(
    ("whole", "parts"), [(7, [3, 2, 2]), (6, [2, 2, 2]), (2, [1, 1, 1]), (None, [7, 7, 6])]
)
def test_processes_share_the_calls_and_none_is_left_without(
    whole: int | None, parts: list[int]
) -> None:
    assert [slots(whole, number, 3).allowed for number in range(3)] == parts


@awaited
async def test_places_are_given_in_order_and_those_of_cancelled_calls_to_the_next() -> None:
    held, inside = slots(1), list[int]()

    async def use(number: int) -> None:
        async with held:
            inside.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(use(number)) for number in range(5)]
    await asyncio.sleep(0)
    # One is cancelled while it waits, one when its place is already given.
    tasks[1].cancel()
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert inside == [0, 3, 4]
    async with held:
        pass


@pytest.mark.parametrize("capacity", [12, 30, 75])
def test_it_finds_a_hidden_capacity(capacity: int) -> None:
    held, time, used = slots(), 0.0, list[int]()
    for _ in range(400):
        sent, fell = time, False
        time += 1
        for place in range(held.allowed):
            if place < capacity:
                held.answered()
            else:
                fell |= held.refused(sent, time)
        used.append(held.allowed)
        time += PAUSE if fell else 0.0
    settled = used[100:]
    assert min(settled) >= max(0.75 * capacity, 10)
    assert max(settled) <= 1.05 * capacity + 1
    # One refused round in about five, since 0.8 * 1.05 ** 5 is 1.02.
    falls = sum(now < before for before, now in itertools.pairwise(settled))
    assert falls <= len(settled) / 4


@awaited
async def test_calls_to_a_server_with_a_hidden_capacity_are_all_answered() -> None:
    clock, refused = Clock(), list[int]()

    def behave(call: Call) -> Answer:
        if server.in_flight > 13:
            refused.append(server.in_flight)
            return failure(429, "too many")
        return completion(call, "x")

    server = ScriptedServer(behave, latency=0.005)
    async with server:
        client = Client(config(server.base_url), Notebook(), timing=clock.timing)
        async with client:
            assert client.concurrency == 20
            replies = await asyncio.gather(*(ask(client, str(n)) for n in range(400)))
            assert 10 <= client.concurrency <= 14
    assert len(replies) == 400
    # 20 falls to 16 and to 12.8; after that it looks now and then whether there is more room.
    assert refused[0] == 14
    assert PAUSE in clock.pauses
    assert len(refused) < 60
