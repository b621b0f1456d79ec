"""The archive as a journal: claims, answers, and what was paid."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raylab.core.errors import BudgetError, OwnerError
from raylab.label.archive.ledger import Ownership
from raylab.label.archive.records import RunCost
from raylab.label.archive.store import Archive
from raylab.label.config.jobs import LlmConfig
from raylab.label.protocol.calls import CallJournal, RunWriter
from raylab.llm.chat import ChatRequest, Claim, Cost, Message, Reply
from raylab.llm.config import Budget, ChatModel, Endpoint, Lane
from tests.label.archive.rows import execute
from tests.label.protocol.chats import replied
from tests.label.protocol.local import client_of_run, local_archive
from tests.llm.scripted_server import ScriptedServer, completion

MOST = Cost(1, 60, 40, 0.5)
REQUEST = ChatRequest("main", "http://host/v1", "m", (Message("user", "a system"),), seed=3)
ANSWER = replied(
    "OPT=Lrn", key=REQUEST.key, cached_prompt_tokens=7, reasoning_tokens=6, lane=Lane.FLEX
)


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
        writer = RunWriter(self.archive.place, "first", self.own(), budget)
        return CallJournal(local_archive(writer), "first", budget)

    def cost(self, run: str = "first") -> RunCost:
        return self.archive.run(run).cost()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "archive.db")
    with world.archive:
        yield world


def claimed(journal: CallJournal, request: ChatRequest = REQUEST) -> Claim | Reply | str | None:
    return asyncio.run(journal.claim(request.key, MOST))


def stored(journal: CallJournal, claim: Claim | Reply | str | None) -> None:
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
    assert (row.reply, row.role, row.seed) == (known, "classify-a", 3)


def test_claims_of_a_run_with_another_owner_are_refused(world: World) -> None:
    journal = world.journal()
    claim = claimed(journal)
    execute(world.archive.place, "UPDATE runs SET owner = 'another'", "DELETE FROM calls")
    with pytest.raises(OwnerError, match="run first was taken over by another process"):
        claimed(journal, replace(REQUEST, seed=4))
    # Nobody else sends the call, so its answer is kept.
    stored(journal, claim)
    assert [row.reply.key for row in world.archive.calls_of(["hash"])] == [REQUEST.key]


def test_a_claim_that_is_given_up_leaves_its_call_to_others(world: World) -> None:
    journal = world.journal()

    async def claim_twice() -> Claim | Reply | str | None:
        given_up = asyncio.create_task(journal.claim(REQUEST.key, MOST))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        return await journal.claim(REQUEST.key, MOST)

    assert isinstance(asyncio.run(claim_twice()), Claim)
    assert world.cost() == RunCost(Cost(), Cost(1, 60, 40, 0.5))


def test_a_claim_beyond_the_budget_says_what_is_billed_what_may_be_and_the_way_out(
    world: World,
) -> None:
    with pytest.raises(BudgetError, match=r"of 99 \(tokens\) .* 0 are .* take 100; .*\.tokens"):
        claimed(world.journal(Budget(tokens=99)))
    world.leave()
    journal = world.journal(Budget(money=0.9))
    stored(journal, claimed(journal))
    lost = claimed(journal, replace(REQUEST, seed=4))
    assert isinstance(lost, Claim)
    asyncio.run(journal.end(lost, paid=True))
    # One answer of 0.25, and one attempt of at most 0.5 that nobody heard of.
    told = r"of 0\.9 \(money\) .* 0\.25 are billed, 0\.5 may have .* take 0\.5; .*\.money"
    with pytest.raises(BudgetError, match=told):
        claimed(journal, replace(REQUEST, seed=5))


def models(base_url: str, budget: Budget | None = None, **limits: object) -> LlmConfig:
    endpoint = Endpoint.model_validate({"base_url": base_url, "limits": limits})
    evaluator = ChatModel(model="m", endpoint="main")
    return LlmConfig(endpoints={"main": endpoint}, evaluator=evaluator, budget=budget or Budget())


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
                    turns = (Message("user", f"{number} {text}"),)
                    parameters = {"max_tokens": 100}
                    request = ChatRequest("main", server.base_url, "m", turns, parameters)
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
