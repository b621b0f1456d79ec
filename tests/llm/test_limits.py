"""How many calls at once, and how many a minute: the rules, and what they come to."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from raylab.llm.client import Client
from raylab.llm.config import ChatModel, Endpoint, Limits
from raylab.llm.limits import PAUSE, RateLimiter, Share, Slots, calls_at_once, limited_endpoints
from tests.llm.scripted_server import Answer, Call, ScriptedServer, completion, failure
from tests.llm.test_client import Clock, Notebook, ask, awaited, config


def slots(limit: int | None = None, number: int = 0, count: int = 1) -> Slots:
    return Slots(Limits(concurrency=limit), Share(number, count))


def answer(held: Slots, count: int) -> int:
    """Counts answers; the calls that may be in flight then."""
    for _ in range(count):
        held.count_answer()
    return held.capacity


def test_growth_is_by_a_twentieth_a_clean_round_and_an_episode_of_refusals_counts_once() -> None:
    held = slots()
    assert answer(held, 19) == 20
    held.count_failure()
    assert [answer(held, 19), answer(held, 1)] == [20, 21]
    # 20 * 1.05 ** 4 = 24.3
    assert answer(held, 21 + 22 + 23) == 24
    assert answer(held, 5_000) == held.most == 100
    # A hundred calls were sent at 5 and are refused at 7; those sent after that are the next one.
    assert [held.count_refusal(sent=5, now=7) for _ in range(3)] == [True, False, False]
    assert held.capacity == 80
    assert held.count_refusal(sent=22, now=23)
    assert held.capacity == 64
    for sent in range(100, 200, 2):
        held.count_refusal(sent, sent + 1)
    assert held.capacity == 10


@awaited
async def test_a_fall_takes_the_places_of_the_calls_that_end_next() -> None:
    held = slots(10)
    for _ in range(10):
        await held.acquire()
    held.count_refusal(0, 1)
    # Ten are the least; a limit below that is never passed, and falls to nothing less.
    assert (held.capacity, slots(4).capacity) == (10, 4)
    held = slots()
    for _ in range(20):
        await held.acquire()
    held.count_refusal(0, 1)
    for _ in range(4):
        held.release()
        assert held.locked()
    held.release()
    assert not held.locked()


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
        async with Client(config(server.base_url), Notebook(), timing=clock.timing) as client:
            assert client.concurrency == 20
            replies = await asyncio.gather(*(ask(client, str(n)) for n in range(400)))
    assert len(replies) == 400
    # A fall is followed by a pause; after it the client looks now and then for more room.
    assert refused[0] == 14
    assert PAUSE in clock.pauses
    assert len(refused) < 60


# Calls and tokens a minute

MINUTE = 60.0
ROUNDING = 1e-6
"""Seconds; the clock stands at 1,000 and more."""


@dataclass
class Minutes:
    """A limiter on a clock that the test holds, and what it let through."""

    calls: int | None = None
    tokens: int | None = None
    time: float = 1_000.0
    sent: list[list[float]] = field(default_factory=list[list[float]])
    """Time, tokens used and tokens reserved of each call."""

    def __post_init__(self) -> None:
        limits = Limits(requests_per_minute=self.calls, tokens_per_minute=self.tokens)
        self.limiter = RateLimiter({"main": limits, "other": limits}, lambda: self.time)

    def ask(self, tokens: int = 0) -> float:
        wait = self.limiter.reserve("main", tokens)
        if wait == 0:
            self.sent.append([self.time, tokens, tokens])
        return wait

    def settle(self, share: float) -> None:
        for call in self.sent:
            if call[1] == call[2]:
                call[1] = int(call[2] * share)
                self.limiter.settle("main", int(call[2] - call[1]))
                return


def test_what_was_not_used_is_given_back() -> None:
    held = Minutes(calls=1, tokens=100)
    assert held.ask(100) == 0
    held.limiter.settle("main", 100, 1)
    assert held.ask(50) == 0
    assert held.ask() == 60
    held.time += 60
    # Without bursts: a long pause saves nothing up.
    held.time += 600
    assert (held.ask(50), held.ask(50)) == (0, 60)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 400)),
        st.tuples(st.just("settle"), st.floats(0.0, 1.0)),
        st.tuples(st.just("pass"), st.floats(0.0, 30.0)),
    ),
    max_size=150,
)


# Three calls within a minute, as each second `ask` is granted; drawn steps seldom have as many.
@example(40, 400, [("ask", 400)] * 5)
@settings(max_examples=300)
@given(st.integers(1, 40), st.integers(400, 1_500), STEPS)
def test_no_minute_passes_a_limit(calls: int, tokens: int, steps: list[tuple[str, float]]) -> None:
    held = Minutes(calls, tokens)
    for what, amount in steps:
        match what:
            case "ask":
                held.time += held.ask(int(amount))
            case "settle":
                held.settle(amount)
            case _:
                held.time += amount
    for last, *_ in held.sent:
        minute = [call for call in held.sent if last - MINUTE + ROUNDING < call[0] <= last]
        assert len(minute) <= calls
        # All but the newest of the minute.
        assert sum(used for _, used, _ in minute[:-1]) <= tokens


def test_only_endpoints_in_use_with_limits_a_minute_are_limited() -> None:
    endpoints = {"main": Endpoint(), "other": Endpoint(limits=Limits(tokens_per_minute=9))}
    llm = config("http://h/v1").model_copy(update={"endpoints": endpoints})
    assert limited_endpoints(llm) == set()
    other = ChatModel(model="m", endpoint="other")
    assert limited_endpoints(llm.model_copy(update={"annotators": (other,)})) == {"other"}
    assert calls_at_once(llm) == (20, 100)
    # Processes share the calls in flight, and each has one at least.
    assert [slots(7, number, 3).capacity for number in range(3)] == [3, 2, 2]
    assert [slots(2, number, 3).capacity for number in range(3)] == [1, 1, 1]
