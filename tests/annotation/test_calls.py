"""The archive as a journal: claims, answers, and what was paid."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from raylab.annotation.calls import ArchiveJournal, CallCache, LocalCalls, client_of_run, spent_by
from raylab.archive.attempts import ClaimRow
from raylab.archive.database import Clock
from raylab.archive.records import RunCost
from raylab.archive.store import Archive
from raylab.config.annotation import LlmConfig
from raylab.config.llm import Budget, ChatModel, Endpoint
from raylab.errors import BudgetError, DeadlineError, OwnerError
from raylab.llm.chat import ChatRequest, Claim, Message, Reply, Reservation
from raylab.llm.client import Client
from raylab.llm.rate_limits import Spend
from tests.annotation.chats import replied
from tests.archive.rows import NOON
from tests.llm.scripted_server import (
    Answer,
    Call,
    ScriptedServer,
    completion,
    server_process,
)

ROOT = Path(__file__).parents[2]
MOST = Reservation(60, 40, 0.5, 90.0)
REQUEST = ChatRequest("main", "http://host/v1", "m", (Message("user", "a system"),), seed=3)
SENDER = """
import asyncio, sys
from raylab.archive.store import Archive
from tests.annotation.test_calls import ask_all
location, run, base_url = sys.argv[1:]
with Archive.open(location) as archive, archive.run(run).own() as owner:
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(ask_all(archive, run, owner.token, base_url))
"""


class World:
    """An archive with two runs, and a clock that is moved by hand."""

    def __init__(self, path: Path) -> None:
        self.time = NOON
        self.archive = Archive.open(path, clock=Clock(now=lambda: self.time))
        for run in ("first", "second"):
            self.archive.start_run(run, {}, {})

    def own(self, run: str = "first") -> str:
        owner = self.archive.run(run).own()
        assert owner.take() is None
        return owner.token

    def journal(self, owner: str, run: str = "first") -> ArchiveJournal:
        return ArchiveJournal(self.archive, run, owner)

    def cost(self, run: str = "first") -> RunCost:
        return self.archive.run(run).cost()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "archive.db")
    with world.archive:
        yield world


def claimed(journal: ArchiveJournal | CallCache, request: ChatRequest = REQUEST):
    return asyncio.run(journal.claim(request.key, request, "hash", MOST))


def granted(journal: ArchiveJournal | CallCache, request: ChatRequest = REQUEST) -> Claim:
    claim = claimed(journal, request)
    assert isinstance(claim, Claim)
    return claim


def stored(journal: ArchiveJournal, claim: Claim, **reply: object) -> None:
    async def put() -> None:
        answer = replied("OPT=Lrn", key=REQUEST.key, **reply)
        await journal.put(REQUEST, answer, "hash", "classify-a", claim)

    asyncio.run(put())


def test_a_call_is_answered_to_all_runs_and_paid_by_the_one_that_sent_it(world: World) -> None:
    first, second = world.journal(world.own()), world.journal(world.own("second"), "second")
    stored(first, granted(first))
    found = asyncio.run(second.get(REQUEST.key, "hash"))
    assert found == replied("OPT=Lrn", key=REQUEST.key, cached=True)
    assert claimed(second) == found
    assert world.cost() == RunCost(100, 10, 0.25, 0)
    assert world.cost("second") == RunCost(0, 0, 0.0, 0)
    row = world.archive.call(REQUEST.key)
    assert row is not None and (row.run, row.role, row.seed) == ("first", "classify-a", 3)


def test_a_call_in_flight_is_claimed_by_nobody_else(world: World) -> None:
    token = world.own()
    first, second = world.journal(token), world.journal(world.own("second"), "second")
    claim = granted(first)
    assert claimed(world.journal(token)) is None
    assert claimed(second) is None
    assert isinstance(claimed(second, replace(REQUEST, seed=4)), Claim)
    asyncio.run(first.end(claim, paid=False))
    granted(second)
    assert world.cost() == RunCost(0, 0, 0.0, 0)


def test_a_claim_that_is_asked_for_again_is_granted_again(world: World) -> None:
    calls = world.archive.run("first").calls(world.own())
    row = ClaimRow("id", "key", "", "m", 1, 1, None, 9.0)
    assert calls.write([row]).refused == calls.write([row]).refused == {}
    assert calls.write([replace(row, id="other")]).refused == {"other": None}


def test_an_attempt_counts_as_much_as_it_may_cost_until_more_is_known(world: World) -> None:
    journal = world.journal(world.own())
    claim = granted(journal)
    assert world.cost() == RunCost(60, 40, 0.5, 0, uncertain=1)
    assert spent_by(world.archive.run("first")) == Spend(0, 0.0)
    asyncio.run(journal.end(claim, paid=True))
    assert spent_by(world.archive.run("first")) == Spend(100, 0.5)
    stored(journal, granted(journal))
    assert world.cost() == RunCost(160, 50, 0.75, 0, uncertain=1)


def test_an_answer_without_usage_keeps_its_reservation(world: World) -> None:
    journal = world.journal(world.own())
    stored(journal, granted(journal), prompt_tokens=0, completion_tokens=0, cost=0.0)
    assert world.cost() == RunCost(60, 40, 0.5, 0, uncertain=1)


def test_an_answer_that_comes_after_an_equal_one_is_paid_and_counted(world: World) -> None:
    slept = world.journal(world.own())
    late = granted(slept)
    world.time += timedelta(seconds=90)
    woken = world.journal(world.own("second"), "second")
    stored(woken, granted(woken))
    stored(slept, late, prompt_tokens=7, completion_tokens=8, cost=0.125)
    stored(slept, late, prompt_tokens=7, completion_tokens=8, cost=0.125)
    assert world.cost() == RunCost(7, 8, 0.125, 0)
    assert world.cost("second") == RunCost(100, 10, 0.25, 0)


def test_an_answer_that_comes_before_the_second_attempt_is_counted_once(world: World) -> None:
    slept = world.journal(world.own())
    late = granted(slept)
    world.time += timedelta(seconds=90)
    woken = world.journal(world.own("second"), "second")
    claim = granted(woken)
    stored(slept, late)
    assert world.cost() == RunCost(100, 10, 0.25, 0)
    stored(woken, claim)
    assert world.cost("second") == RunCost(100, 10, 0.25, 0)


def test_the_claims_of_a_process_that_started_again_are_void(world: World) -> None:
    token = world.own()

    def start(name: str) -> CallCache:
        return CallCache(LocalCalls(world.archive, "first", token, name), "first")

    died, other = start("annotator-0"), start("annotator-1")
    asyncio.run(died.load([]))
    granted(died)
    asyncio.run(other.load([]))
    assert claimed(other) is None
    again = start("annotator-0")
    asyncio.run(again.load([]))
    granted(again)
    assert world.cost() == RunCost(120, 80, 1.0, 0, uncertain=2)


def test_an_owner_that_lost_its_run_claims_nothing_and_still_stores_what_it_was_sent(
    world: World,
) -> None:
    slept = world.journal(world.own())
    claim = granted(slept)
    world.time += timedelta(seconds=60)
    world.own()
    with pytest.raises(OwnerError, match="run first was taken over by another process"):
        claimed(slept, replace(REQUEST, seed=4))
    stored(slept, claim)
    assert world.cost() == RunCost(100, 10, 0.25, 0)


# The client with an archive, against a server that counts


def models(base_url: str, budget: Budget | None = None, **limits: object) -> LlmConfig:
    endpoint = Endpoint.model_validate({"base_url": base_url, "limits": limits})
    one, other = (ChatModel(model="m", endpoint="main", seed=seed) for seed in (1, 2))
    roles = {"annotator_a": one, "annotator_b": other, "evaluator": one, "adjudicator": one}
    return LlmConfig(endpoints={"main": endpoint}, budget=budget or Budget(), **roles)


def asked(base_url: str, text: str) -> ChatRequest:
    messages = (Message("user", text),)
    return ChatRequest("main", base_url, "m", messages, {"max_tokens": 100}, seed=1)


async def ask_all(archive: Archive, run: str, owner: str, base_url: str) -> None:
    """Asks the same sixty times about twelve things, over two clients, as two actors would."""
    llm = models(base_url, concurrency=8)

    def client(number: int) -> Client:
        return Client(llm, CallCache(LocalCalls(archive, run, owner, str(number)), run))

    async with client(0) as one, client(1) as other:
        await asyncio.gather(
            *(
                (one, other)[number % 2].complete(asked(base_url, str(number % 12)), "hash", "r")
                for number in range(60)
            )
        )


def texts(calls: Iterator[Call] | list[Call]) -> Counter[str]:
    return Counter(call.body["messages"][-1]["content"] for call in calls)


def test_equal_calls_of_two_actors_are_sent_once(world: World) -> None:
    async def run() -> None:
        async with ScriptedServer(lambda call: completion(call, "x"), latency=0.02) as server:
            await ask_all(world.archive, "first", world.own(), server.base_url)
        assert texts(server.calls) == Counter({str(n): 1 for n in range(12)})

    asyncio.run(run())


def sender(*arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", SENDER, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)


def test_equal_calls_of_two_runs_in_two_processes_are_sent_once(
    world: World, tmp_path: Path
) -> None:
    log = tmp_path / "calls.jsonl"
    with server_process("--latency-ms", "20", "--log", str(log)) as base_url:
        with ExitStack() as stack:
            senders = [
                stack.enter_context(sender(world.archive.place, run, base_url))
                for run in ("first", "second")
            ]
            for process in senders:
                assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            for process in senders:
                assert process.stdin is not None
                process.stdin.close()
            assert [process.wait() for process in senders] == [0, 0]
    read = map(json.loads, log.read_text().splitlines())
    lines = [line for line in read if line["event"] == "received"]
    assert len(lines) == len({line["hash"] for line in lines}) == 12
    sums = [world.cost(run) for run in ("first", "second")]
    assert sum(cost.uncertain for cost in sums) == 0


def test_a_server_without_usage_does_not_get_the_budget_anew_in_each_session(world: World) -> None:
    async def session(server: ScriptedServer, number: int) -> int:
        llm = models(server.base_url, Budget(tokens=1_000), concurrency=1)
        token = world.own()
        sent = len(server.calls)
        async with client_of_run(llm, world.archive, "first", token) as client:
            with pytest.raises(BudgetError):
                for text in range(100):
                    request = asked(server.base_url, f"{number} {text}")
                    await client.complete(request, "hash", "r")
        world.archive.run("first").own(token=token).end()
        return len(server.calls) - sent

    async def run() -> None:
        async with ScriptedServer(lambda call: completion(call, "x", usage=None)) as server:
            sent = [await session(server, number) for number in range(3)]
        assert sent[0] > 0 and sent[1:] == [0, 0]
        cost = world.cost()
        assert cost.prompt_tokens + cost.completion_tokens <= 1_000
        assert cost.uncertain == sent[0]

    asyncio.run(run())


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1_000_000, "completion_tokens": 1},
        {"prompt_tokens": 1, "completion_tokens": 10**19},
        {"prompt_tokens": 1.5, "completion_tokens": 1},
        {"prompt_tokens": "12", "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 10**9, "completion_tokens": 1},
        ["twelve"],
        "a lot",
        12,
    ],
    ids=str,
)
def test_an_absurd_usage_is_counted_as_what_was_reserved_and_its_answer_kept(
    world: World, usage: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> list[Reply]:
        async with ScriptedServer(lambda call: completion(call, "x", usage=usage)) as server:
            llm = models(server.base_url, Budget(tokens=100_000))
            async with client_of_run(llm, world.archive, "first", world.own()) as client:
                return [
                    await client.complete(asked(server.base_url, text), "hash", "r")
                    for text in ("one", "two")
                ]

    replies = asyncio.run(run())
    assert [reply.text for reply in replies] == ["x", "x"]
    assert all(world.archive.call(reply.key) is not None for reply in replies)
    cost = world.cost()
    assert (cost.completion_tokens, cost.uncertain) == (200, 2) and cost.prompt_tokens > 0
    assert len([record for record in caplog.records if "usage" in record.message]) == 1


def test_an_answer_after_the_timeout_is_counted(world: World) -> None:
    async def run() -> None:
        async with ScriptedServer(lambda _: Answer(hangs=True)) as server:
            llm = models(server.base_url, Budget(tokens=100_000), timeout=0.1, deadline=1e-9)
            async with client_of_run(llm, world.archive, "first", world.own()) as client:
                with pytest.raises(DeadlineError, match="no answer within"):
                    await client.complete(asked(server.base_url, "x"), "hash", "r")

    asyncio.run(run())
    assert (world.cost().completion_tokens, world.cost().uncertain) == (100, 1)


def test_a_refused_attempt_and_a_server_that_is_not_there_cost_nothing(world: World) -> None:
    async def run() -> None:
        refused = Answer(b"{}", status=429)
        token = world.own()
        async with ScriptedServer(lambda _: refused) as server:
            for base_url in (server.base_url, "http://127.0.0.1:9/v1"):
                llm = models(base_url, Budget(tokens=100_000), deadline=1e-9)
                async with client_of_run(llm, world.archive, "first", token) as client:
                    with pytest.raises(DeadlineError, match="no answer in 1 attempts"):
                        await client.complete(asked(base_url, "x"), "hash", "r")

    asyncio.run(run())
    assert world.cost() == RunCost(0, 0, 0.0, 0)
