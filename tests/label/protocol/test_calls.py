"""The archive as a journal: claims, answers, and what was paid."""

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from raylab.core.errors import BudgetError, OwnerError
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


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """An archive with a run."""
    with Archive.open(tmp_path / "archive.db") as archive:
        archive.start_run("first", {}, {})
        yield archive


@contextmanager
def journal_of(archive: Archive, budget: Budget | None = None) -> Generator[CallJournal]:
    """The journal of an owner of the run."""
    budget = budget or Budget()
    with archive.run("first").own() as owner:
        writer = RunWriter(archive.place, "first", owner.token, budget)
        yield CallJournal(local_archive(writer), "first", budget)


def claimed(journal: CallJournal, request: ChatRequest = REQUEST) -> Claim | Reply | str | None:
    return asyncio.run(journal.claim(request.key, MOST))


def stored(journal: CallJournal, claim: Claim | Reply | str | None) -> None:
    async def put() -> None:
        assert isinstance(claim, Claim)
        await journal.put(REQUEST, ANSWER, "hash", "classify-a", claim)

    asyncio.run(put())


def test_an_answer_is_known_to_the_claim_of_an_equal_call(archive: Archive) -> None:
    with journal_of(archive) as journal:
        archived = replace(ANSWER, cached=True)
        stored(journal, claimed(journal))
        assert claimed(journal) == archived

        async def look_up() -> list[Reply | None]:
            looked = [await journal.get(REQUEST.key, "hash")]
            keys = await journal.load(["hash"])
            looked.append(await journal.get(REQUEST.key, "hash"))
            journal.drop(keys)
            return [*looked, await journal.get(REQUEST.key, "hash")]

        # Those about the cases that are under way are held.
        assert asyncio.run(look_up()) == [None, archived, None]
        assert (journal.take_count(), journal.take_count()) == (2, 0)
    (row,) = archive.calls_of(["hash"])
    assert (row.reply, row.role, row.seed) == (archived, "classify-a", 3)


def test_claims_of_a_run_with_another_owner_are_refused(archive: Archive) -> None:
    with journal_of(archive) as journal:
        claim = claimed(journal)
        execute(archive.place, "UPDATE runs SET owner = 'another'", "DELETE FROM calls")
        with pytest.raises(OwnerError, match="run first was taken over by another process"):
            claimed(journal, replace(REQUEST, seed=4))
        # Nobody else sends the call, so its answer is kept.
        stored(journal, claim)
    assert [row.reply.key for row in archive.calls_of(["hash"])] == [REQUEST.key]


def test_a_claim_that_is_given_up_leaves_its_call_to_others(archive: Archive) -> None:
    with journal_of(archive) as journal:

        async def claim_twice() -> Claim | Reply | str | None:
            given_up = asyncio.create_task(journal.claim(REQUEST.key, MOST))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait([given_up])
            return await journal.claim(REQUEST.key, MOST)

        assert isinstance(asyncio.run(claim_twice()), Claim)
        assert archive.run("first").cost() == RunCost(Cost(), Cost(1, 60, 40, 0.5))


def test_a_claim_beyond_the_budget_says_what_is_billed_what_may_be_and_the_way_out(
    archive: Archive,
) -> None:
    message = r"of 99 \(tokens\) .* 0 are .* take 100; .*\.tokens"
    with (
        journal_of(archive, Budget(tokens=99)) as journal,
        pytest.raises(BudgetError, match=message),
    ):
        claimed(journal)
    with journal_of(archive, Budget(money=0.9)) as journal:
        stored(journal, claimed(journal))
        lost = claimed(journal, replace(REQUEST, seed=4))
        assert isinstance(lost, Claim)
        asyncio.run(journal.end(lost, paid=True))
        # One answer of 0.25, and one attempt of at most 0.5 that nobody heard of.
        message = r"of 0\.9 \(money\) .* 0\.25 are billed, 0\.5 may have .* take 0\.5; .*\.money"
        with pytest.raises(BudgetError, match=message):
            claimed(journal, replace(REQUEST, seed=5))


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": -1_000_000, "completion_tokens": 1}])
def test_a_server_without_a_usage_to_trust_gets_no_budget_anew_in_each_session(
    archive: Archive, usage: dict[str, int] | None
) -> None:
    async def session(server: ScriptedServer, number: int) -> int:
        endpoint = {"base_url": server.base_url, "limits": {"concurrency": 1}}
        llm = LlmConfig(
            endpoints={"main": Endpoint.model_validate(endpoint)},
            evaluator=ChatModel(model="m", endpoint="main"),
            budget=Budget(tokens=1_000),
        )
        sent = len(server.calls)
        with archive.run("first").own() as owner:
            async with client_of_run(llm, archive, "first", owner.token) as client:
                with pytest.raises(BudgetError):
                    for text in range(100):
                        turns = (Message("user", f"{number} {text}"),)
                        parameters = {"max_tokens": 100}
                        request = ChatRequest("main", server.base_url, "m", turns, parameters)
                        await client.complete(request, "hash", "r")
        return len(server.calls) - sent

    async def run() -> None:
        async with ScriptedServer(lambda call: completion(call, "x", usage=usage)) as server:
            sent = [await session(server, number) for number in range(3)]
        assert sent[0] > 0 and sent[1:] == [0, 0]
        cost = archive.run("first").cost()
        assert cost.uncertain.tokens <= 1_000 and cost.billed == Cost()
        assert cost.uncertain.attempts == sent[0]

    asyncio.run(run())
