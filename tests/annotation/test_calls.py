"""The archive as a journal: claims, answers, and what was paid."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from raylab.annotation.calls import (
    ArchiveWriter,
    CallJournal,
)
from raylab.archive.ledger import Ownership
from raylab.archive.records import Cost, RunCost
from raylab.archive.store import Archive
from raylab.config.annotation import LlmConfig
from raylab.config.llm import Budget, ChatModel, Endpoint, Lane
from raylab.errors import BudgetError, OwnerError
from raylab.llm.chat import ChatRequest, Claim, Message, Reply, Reservation
from raylab.llm.client import Client
from tests.annotation.chats import replied
from tests.annotation.local import client_of_run, local_archive
from tests.archive.rows import execute
from tests.llm.scripted_server import (
    ScriptedServer,
    completion,
    server_process,
)

ROOT = Path(__file__).parents[2]
MOST = Reservation(60, 40, 0.5)
REQUEST = ChatRequest("main", "http://host/v1", "m", (Message("user", "a system"),), seed=3)
ANSWER = replied(
    "OPT=Lrn", key=REQUEST.key, cached_prompt_tokens=7, reasoning_tokens=6, lane=Lane.FLEX
)
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
    """An archive with two runs."""

    def __init__(self, path: Path) -> None:
        self.archive = Archive.open(path)
        self._owners: list[Ownership] = []
        for run in ("first", "second"):
            self.archive.start_run(run, {}, {})

    def own(self) -> str:
        owner = self.archive.run("first").own()
        assert owner.take()
        self._owners.append(owner)
        return owner.token

    def leave(self) -> None:
        self._owners.pop().end()

    def journal(self, budget: Budget | None = None) -> CallJournal:
        """The journal of a new owner of the first run."""
        budget = budget or Budget()
        writer = ArchiveWriter(self.archive, "first", self.own(), budget)
        return CallJournal(local_archive(writer), "first", budget)

    def cost(self, run: str = "first") -> RunCost:
        return self.archive.run(run).cost()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "archive.db")
    with world.archive:
        yield world


def claimed(journal: CallJournal, request: ChatRequest = REQUEST) -> Claim | Reply | None:
    return asyncio.run(journal.claim(request.key, request, "hash", MOST))


def stored(journal: CallJournal, claim: Claim | Reply | None) -> None:
    async def put() -> None:
        assert isinstance(claim, Claim)
        await journal.put(REQUEST, ANSWER, "hash", "classify-a", claim)

    asyncio.run(put())


def test_an_answer_is_known_to_the_claim_of_an_equal_call(world: World) -> None:
    journal, known = world.journal(), replace(ANSWER, cached=True)
    stored(journal, claimed(journal))
    assert claimed(journal) == known

    async def look_up() -> list[Reply | None]:
        looked = [await journal.get(REQUEST.key, "hash")]
        keys = await journal.load(["hash"])
        looked.append(await journal.get(REQUEST.key, "hash"))
        journal.drop(keys)
        return [*looked, await journal.get(REQUEST.key, "hash")]

    # Those about the cases that are under way are held.
    assert asyncio.run(look_up()) == [None, known, None]
    assert (journal.take_count(), journal.take_count()) == (2, 0)
    (row,) = world.archive.calls_of(["hash"])
    assert (row.key, row.role, row.seed, row.lane) == (REQUEST.key, "classify-a", 3, "flex")


def test_claims_of_a_run_with_another_owner_are_refused(world: World) -> None:
    journal = world.journal()
    claim = claimed(journal)
    execute(world.archive.place, "UPDATE runs SET owner = 'another'", "DELETE FROM calls")
    with pytest.raises(OwnerError, match="run first was taken over by another process"):
        claimed(journal, replace(REQUEST, seed=4))
    # Nobody else sends the call, so its answer is kept.
    stored(journal, claim)
    assert [row.key for row in world.archive.calls_of(["hash"])] == [REQUEST.key]


def test_a_claim_that_is_given_up_leaves_its_call_to_others(world: World) -> None:
    journal = world.journal()

    async def claim_twice() -> Claim | Reply | None:
        given_up = asyncio.create_task(journal.claim(REQUEST.key, REQUEST, "hash", MOST))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        return await journal.claim(REQUEST.key, REQUEST, "hash", MOST)

    assert isinstance(asyncio.run(claim_twice()), Claim)
    assert world.cost() == RunCost(Cost(), Cost.of_attempt(60, 40, 0.5))


def test_a_claim_beyond_the_budget_says_what_is_billed_what_may_be_and_the_way_out(
    world: World,
) -> None:
    with pytest.raises(BudgetError, match=r"of 99 \(tokens\) 0 are .* may take 100; .*\.tokens"):
        claimed(world.journal(Budget(tokens=99)))
    world.leave()
    journal = world.journal(Budget(money=0.9))
    stored(journal, claimed(journal))
    lost = claimed(journal, replace(REQUEST, seed=4))
    assert isinstance(lost, Claim)
    asyncio.run(journal.end(lost, paid=True))
    # One answer of 0.25, and one attempt of at most 0.5 that nobody heard of.
    told = r"of 0\.9 \(money\) 0\.25 are billed, 0\.5 may have been .* may take 0\.5; .*\.money"
    with pytest.raises(BudgetError, match=told):
        claimed(journal, replace(REQUEST, seed=5))


# The client with an archive, against a server that counts


def models(base_url: str, budget: Budget | None = None, **limits: object) -> LlmConfig:
    endpoint = Endpoint.model_validate({"base_url": base_url, "limits": limits})
    evaluator = ChatModel(model="m", endpoint="main")
    return LlmConfig(endpoints={"main": endpoint}, evaluator=evaluator, budget=budget or Budget())


def asked(base_url: str, text: str) -> ChatRequest:
    messages = (Message("user", text),)
    return ChatRequest("main", base_url, "m", messages, {"max_tokens": 100}, seed=1)


async def ask_all(archive: Archive, run: str, owner: str, base_url: str) -> None:
    """Asks the same sixty times about twelve things, over two clients, as two actors would."""
    llm = models(base_url, concurrency=8)

    writer = ArchiveWriter(archive, run, owner, llm.budget)

    def client(number: int) -> Client:
        return Client(llm, CallJournal(local_archive(writer, str(number)), run, llm.budget))

    async with client(0) as one, client(1) as other:
        await asyncio.gather(
            *(
                (one, other)[number % 2].complete(asked(base_url, str(number % 12)), "hash", "r")
                for number in range(60)
            )
        )


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
    assert all(cost.uncertain == Cost() for cost in sums)
    assert sum(cost.billed.attempts for cost in sums) == 12


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": -1_000_000, "completion_tokens": 1}])
def test_a_server_without_a_usage_to_trust_gets_no_budget_anew_in_each_session(
    world: World, usage: dict[str, int] | None
) -> None:
    async def session(server: ScriptedServer, number: int) -> int:
        llm = models(server.base_url, Budget(tokens=1_000), concurrency=1)
        token = world.own()
        sent = len(server.calls)
        async with client_of_run(llm, world.archive, "first", token) as client:
            with pytest.raises(BudgetError):
                for text in range(100):
                    request = asked(server.base_url, f"{number} {text}")
                    await client.complete(request, "hash", "r")
        world.leave()
        return len(server.calls) - sent

    async def run() -> None:
        async with ScriptedServer(lambda call: completion(call, "x", usage=usage)) as server:
            sent = [await session(server, number) for number in range(3)]
        assert sent[0] > 0 and sent[1:] == [0, 0]
        cost = world.cost()
        assert cost.uncertain.tokens <= 1_000 and cost.billed == Cost()
        assert cost.uncertain.attempts == sent[0]

    asyncio.run(run())
