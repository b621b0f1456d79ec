"""The limiter on a clock that the test holds."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylab.config.annotation import LlmConfig
from raylab.config.llm import ChatModel, Endpoint, Limits
from raylab.llm.rate_limits import (
    LocalRateLimiter,
    RateLimiter,
    limited_endpoints,
)

MINUTE = 60.0
ROUNDING = 1e-9
"""Seconds; the clock stands at 1,000 and more."""


class Clock:
    def __init__(self) -> None:
        self.time = 1_000.0

    def __call__(self) -> float:
        return self.time


def limiter(
    clock: Clock,
    calls: int | None = None,
    tokens: int | None = None,
) -> RateLimiter:
    limits = Limits(requests_per_minute=calls, tokens_per_minute=tokens, timeout=100.0)
    return RateLimiter({"main": limits}, clock)


def granted(limiter: RateLimiter, tokens: int = 0) -> int:
    permit = limiter.reserve("main", tokens)
    assert permit.granted
    assert permit.wait == 0
    return permit.number


def refused(limiter: RateLimiter, tokens: int = 0) -> float:
    permit = limiter.reserve("main", tokens)
    assert not permit.granted
    assert permit.wait > 0
    return permit.wait


# Rates


def test_no_limit_lets_everything_through() -> None:
    held = limiter(Clock())
    assert len({granted(held, 10**9) for _ in range(1_000)}) == 1_000


def test_calls_are_spread_over_the_minute() -> None:
    clock = Clock()
    held = limiter(clock, calls=60)
    # a burst is a tenth of the minute's limit: 6 calls in 6 seconds
    for _ in range(6):
        granted(held)
    assert refused(held) == 6
    clock.time += 5.9
    assert refused(held) == pytest.approx(0.1)
    clock.time += 0.1
    for _ in range(6):
        granted(held)
    assert refused(held) == 6


@pytest.mark.parametrize(("limit", "gap"), [(1, 60.0), (4, 15.0), (9, 60 / 9), (15, 4.0)])
def test_few_calls_a_minute_come_one_by_one(limit: int, gap: float) -> None:
    clock = Clock()
    held = limiter(clock, calls=limit)
    for _ in range(3 * limit):
        granted(held)
        assert refused(held) == pytest.approx(gap)
        clock.time += gap


def test_tokens_wait_until_enough_of_them_are_a_minute_old() -> None:
    clock = Clock()
    held = limiter(clock, tokens=1_000)
    granted(held, 60)
    # below 100 tokens in 6 seconds another call is let through, whatever its size
    granted(held, 540)
    assert refused(held, 300) == 6
    clock.time += 6
    granted(held, 300)
    # 900 are used; 150 fit when the first 60 are a minute old, and 600 when the 540 are too
    clock.time += 6
    assert refused(held, 150) == 48
    assert refused(held, 600) == 48
    # 720 only when the 300 are as well, which were used 6 seconds later
    assert refused(held, 720) == 54


def test_settled_call_counts_what_it_used() -> None:
    clock = Clock()
    held = limiter(clock, tokens=1_000)
    number = granted(held, 900)
    clock.time += 10
    assert refused(held, 500) == 50
    held.settle(number, 499)
    granted(held, 500)
    # 999 are used: the 499 leave the minute 50 seconds from here, the 500 another 10 later
    assert refused(held, 2) == 50
    clock.time += 50
    granted(held, 500)
    assert refused(held, 1) == 10


def test_failed_attempt_stays_counted_in_the_minute() -> None:
    clock = Clock()
    held = limiter(clock, tokens=1_000)
    granted(held, 900)
    clock.time += 10
    assert refused(held, 500) == 50


def test_settling_after_the_minute_changes_nothing() -> None:
    clock = Clock()
    held = limiter(clock, tokens=1_000)
    number = granted(held, 900)
    clock.time += 60
    granted(held, 1_000)
    held.settle(number, 0)
    clock.time += 6
    assert refused(held, 1) == 54


def test_call_larger_than_a_minute_is_sent_alone() -> None:
    clock = Clock()
    held = limiter(clock, tokens=1_000)
    granted(held, 5)
    assert refused(held, 5_000) == 60
    clock.time += 60
    granted(held, 5_000)
    assert refused(held, 1) == 60


def test_penalty_stops_everyone_for_its_time() -> None:
    clock = Clock()
    held = limiter(clock)
    held.penalise("main", 9)
    held.penalise("main", 4)
    assert refused(held) == 9
    clock.time += 9
    granted(held)


def test_endpoints_are_independent() -> None:
    clock = Clock()
    limits = Limits(requests_per_minute=1)
    held = RateLimiter({"one": limits, "two": limits}, clock)
    held.penalise("one", 9)
    assert not held.reserve("one", 0).granted
    assert held.reserve("two", 0).granted


def test_a_permit_that_is_given_back_counts_nowhere() -> None:
    held = limiter(Clock(), calls=1, tokens=5)
    for _ in range(3):
        held.cancel(granted(held, 1_000))
    granted(held, 1_000)
    assert refused(held, 1) > 0


def test_a_late_settlement_after_a_restart_frees_nothing_of_a_stranger() -> None:
    late = granted(limiter(Clock(), tokens=100), 100)
    restarted = limiter(Clock(), tokens=100)
    granted(restarted, 100)
    restarted.settle(late, 0)
    assert refused(restarted, 100) > 0


# Against an independent count


@dataclass
class Sent:
    """A call that a permit let through; what it is known to use changes once."""

    at: float
    tokens: int
    number: int
    settled: bool = False


@dataclass
class World:
    """Processes that ask, wait or go on, settle or die."""

    clock: Clock
    held: RateLimiter
    sent: list[Sent] = field(default_factory=list[Sent])

    def ask(self, tokens: int) -> None:
        permit = self.held.reserve("main", tokens)
        if permit.granted:
            self.sent.append(Sent(self.clock.time, tokens, permit.number))
        else:
            self.clock.time += permit.wait

    def settle(self, share: float) -> None:
        for call in self.sent:
            if not call.settled:
                call.settled = True
                call.tokens = int(call.tokens * share)
                self.held.settle(call.number, call.tokens)
                return

    def minutes(self) -> list[list[Sent]]:
        """The calls of every minute that ends with a call."""
        return [
            [call for call in self.sent if last.at - MINUTE + ROUNDING < call.at <= last.at]
            for last in self.sent
        ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 400)),
        st.tuples(st.just("ask"), st.integers(1, 40)),
        st.tuples(st.just("settle"), st.floats(0.0, 1.0)),
        st.tuples(st.just("pass"), st.floats(0.0, 30.0)),
    ),
    max_size=150,
)


@settings(max_examples=300)
@given(st.integers(1, 40), st.integers(400, 1_500), STEPS)
def test_no_minute_passes_a_limit(calls: int, tokens: int, steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    world = World(clock, limiter(clock, calls, tokens))
    for what, amount in steps:
        match what:
            case "ask":
                world.ask(int(amount))
            case "settle":
                world.settle(amount)
            case _:
                clock.time += amount
        if world.sent and what == "ask":
            assert sum(call.tokens for call in world.minutes()[-1]) <= tokens
    for minute in world.minutes():
        assert len(minute) <= calls
        assert sum(call.tokens for call in minute) <= tokens


@settings(max_examples=200)
@given(
    st.integers(1, 40),
    st.integers(1, 1_500),
    st.lists(st.integers(1, 2_000), min_size=1, max_size=60),
)
def test_who_waits_as_told_is_soon_let_through(calls: int, tokens: int, sizes: list[int]) -> None:
    clock = Clock()
    held = limiter(clock, calls, tokens)
    for size in sizes:
        asked = clock.time
        permit = held.reserve("main", size)
        while not permit.granted:
            assert 0 < permit.wait <= MINUTE + ROUNDING
            clock.time += permit.wait + ROUNDING
            permit = held.reserve("main", size)
        assert clock.time - asked <= MINUTE + 10 * ROUNDING


def test_throughput_of_saturated_limits() -> None:
    """All of a limit is used when calls never stop coming."""
    clock = Clock()
    held = limiter(clock, calls=90, tokens=30_000)
    sent = 0
    while clock.time < 1_000 + 10 * MINUTE:
        permit = held.reserve("main", 300)
        sent += permit.granted
        clock.time += permit.wait
    # 90 calls of 300 tokens are 27,000 tokens: calls are what limits
    assert sent == 900


def test_local_gate_is_the_governor() -> None:
    held = limiter(Clock(), calls=1)

    async def use() -> None:
        limiter = LocalRateLimiter(held)
        permit = await limiter.reserve("main", 60)
        await limiter.settle(permit.number, 50)
        await limiter.penalise("main", 5)
        assert not (await limiter.reserve("main", 10)).granted

    asyncio.run(use())


# Configuration


def models(**endpoints: Limits) -> LlmConfig:
    """Two annotators at endpoint `main`, the other two roles at `judge`."""
    a, b = (ChatModel(model="m", endpoint="main", seed=seed) for seed in (1, 2))
    other = ChatModel(model="m", endpoint="judge")
    return LlmConfig(
        endpoints={name: Endpoint(limits=limits) for name, limits in endpoints.items()},
        annotator_a=a,
        annotator_b=b,
        evaluator=other,
        adjudicator=other,
    )


def test_only_limits_a_minute_need_permits() -> None:
    free, rated = Limits(), Limits(tokens_per_minute=9)
    assert limited_endpoints(models(main=free, judge=free)) == set()
    assert limited_endpoints(models(main=free, judge=rated, unused=rated)) == {"judge"}
