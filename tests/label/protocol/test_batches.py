"""Calls in batches, against a server with faults: paid once, priced as billed, and never lost."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from raylab.core.errors import CallError, EndpointError, LlmError, StoppedError
from raylab.label.archive.records import RunCost
from raylab.label.archive.store import Archive
from raylab.label.config.jobs import LlmConfig
from raylab.label.protocol.calls import CallJournal, RunWriter
from raylab.llm.chat import ChatRequest, Cost, Message, Reply
from raylab.llm.client import Client
from raylab.llm.config import Lane
from tests.label.archive.rows import execute
from tests.label.protocol.local import local_archive
from tests.llm.batch_server import BatchServer
from tests.llm.scripted_server import Answer, Call, completion, failure
from tests.llm.test_client import Clock, awaited

PRICE = {"m": {"input": 2.0, "output": 10.0}}
CALLS = 6


def says(call: Call) -> Answer:
    """An answer of 40 and 10 tokens, or an error to a text that is bad."""
    if "refuse" in call.text:
        return failure(400, "this text is refused", param="messages")
    if "busy" in call.text and call.attempt == 1:
        return failure(500, "not now")
    usage = {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
    return completion(call, f"about {call.text}", usage=usage)


class Run:
    """A run in an archive, by one process at a time, at a server."""

    def __init__(self, path: Path, server: BatchServer, **settings: Any) -> None:
        self.server = server
        self.archive = Archive.open(path)
        self.archive.start_run("run", {}, {})
        self.settings = settings
        self.clock = Clock()
        self.results: list[object] = []

    def config(self, **changes: Any) -> LlmConfig:
        endpoint = {"base_url": self.server.base_url, "limits": {"deadline": 600}}
        evaluator = {"model": "m", "endpoint": "main"}
        whole = {"endpoints": {"main": endpoint}, "evaluator": evaluator, "prices": PRICE}
        return LlmConfig.model_validate({**whole, "lane": "batch", **self.settings, **changes})

    def request(self, text: str, lane: Lane = Lane.BATCH) -> ChatRequest:
        url, parameters = self.server.base_url, {"max_tokens": 30}
        message = (Message("user", text),)
        return ChatRequest("main", url, "m", message, parameters, 7, lane=lane)

    async def ask(
        self, texts: Sequence[str] = [f"text {n}" for n in range(CALLS)], **changes: Any
    ) -> list[Reply | BaseException]:
        """Starts a process of the run and asks about texts at once."""
        llm = self.config(**changes)
        with self.archive.run("run").own() as owner:
            writer = local_archive(RunWriter(self.archive.place, "run", owner.token, llm.budget))
            journal = CallJournal(writer, "run", llm.budget)
            client = Client(llm, journal, on_attempt=self.results.append, timing=self.clock.timing)
            async with client:
                await journal.load(["h"])
                calls = [client.complete(self.request(t, llm.lane), "h", "role") for t in texts]
                return await asyncio.gather(*calls, return_exceptions=True)

    @property
    def cost(self) -> RunCost:
        return self.archive.run("run").cost()

    def open_batches(self) -> int:
        return execute(self.archive.place, "SELECT count(*) FROM batches")[0][0]


def texts_of(replies: Sequence[object]) -> list[str]:
    assert all(isinstance(reply, Reply) for reply in replies), replies
    return [reply.text for reply in replies if isinstance(reply, Reply)]


ALL = [f"about text {n}" for n in range(CALLS)]
BILLED = Cost(CALLS, 40 * CALLS, 10 * CALLS, CALLS * (40 * 2 + 10 * 10) / 2 / 1e6)


def equals(cost: Cost, expected: Cost) -> bool:
    return vars(cost) == pytest.approx(vars(expected))


@awaited
async def test_a_batch_answers_all_at_half_the_price(tmp_path: Path) -> None:
    async with BatchServer(says) as server:
        run = Run(tmp_path / "a.db", server)
        replies = await run.ask()
        assert texts_of(replies) == ALL and len(server.batches) == 1
        assert {reply.lane for reply in replies if isinstance(reply, Reply)} == {Lane.BATCH}
        assert equals(run.cost.billed, BILLED) and run.cost.uncertain == Cost()
        assert run.open_batches() == 0
        # The body of a line is that of a live call.
        live = await run.ask(lane="standard")
        assert texts_of(live) == ALL and server.requests["create"] == 1
        (body,) = {repr(sorted(call.body)) for call in server.calls}
        assert "service_tier" not in body
        assert len(server.calls) == CALLS


FAULTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "nothing": {},
    "upload lost": {"upload": ["before", "lost", "500"]},
    "created and not acknowledged": {"create": ["lost"]},
    "not created": {"create": ["before"]},
    "created, said to have failed": {"create": ["torn"]},
    "no room yet": {"create": ["429", "429"]},
    "list late and torn": {"create": ["lost"], "list": ["500", "torn"]},
    "poll torn": {"retrieve": ["torn", "500", "before", "429"]},
    "forgotten for a moment": {"retrieve": ["404", "404"]},
    "file of answers torn": {"read": ["torn", "before", "500"]},
}


@pytest.mark.parametrize("fault", FAULTS)
@awaited
async def test_a_fault_of_the_server_costs_nothing(fault: str, tmp_path: Path) -> None:
    async with BatchServer(says, FAULTS[fault]) as server:
        run = Run(tmp_path / "a.db", server)
        assert texts_of(await run.ask()) == ALL
        assert set(server.billed.values()) == {1}
        assert equals(run.cost.billed, BILLED) and run.cost.uncertain == Cost()
        assert run.open_batches() == 0


@awaited
async def test_a_half_answered_batch_goes_on_live_and_each_call_has_its_price(
    tmp_path: Path,
) -> None:
    for number, end in enumerate(("expired", "cancelled")):
        async with BatchServer(says, ends=[end]) as server:
            run = Run(tmp_path / f"{number}.db", server)
            replies = await run.ask()
            assert texts_of(replies) == ALL
            lanes = Counter(reply.lane for reply in replies if isinstance(reply, Reply))
            assert lanes == {Lane.BATCH: 3, Lane.STANDARD: 3}
            assert run.cost.billed.money == pytest.approx((3 * 90 + 3 * 180) / 1e6)
            assert run.cost.uncertain == Cost()


@awaited
async def test_what_a_batch_leaves_may_go_on_in_another_batch(tmp_path: Path) -> None:
    async with BatchServer(says, ends=["expired"]) as server:
        run = Run(tmp_path / "a.db", server, after_batch="batch")
        assert texts_of(await run.ask()) == ALL
        assert len(server.batches) == 2 and equals(run.cost.billed, BILLED)


@awaited
async def test_one_bad_call_ends_no_other(tmp_path: Path) -> None:
    asked = ["text 0", "please refuse", "text 2", "busy now"]
    async with BatchServer(says) as server:
        run = Run(tmp_path / "a.db", server)
        first, bad, third, late = await run.ask(asked)
        assert texts_of([first, third]) == ["about text 0", "about text 2"]
        assert isinstance(bad, CallError) and "this text is refused" in str(bad)
        # A failure that may pass is tried again at once.
        assert isinstance(late, Reply) and late.lane is Lane.STANDARD
        assert run.cost.billed.money == pytest.approx((2 * 90 + 180) / 1e6)
    async with BatchServer(says, ends=["failed 2"]) as server:
        run = Run(tmp_path / "b.db", server)
        first, bad, third = await run.ask(["text 0", "text 1", "text 2"])
        assert texts_of([first, third]) == ["about text 0", "about text 2"]
        assert isinstance(bad, CallError) and "this line is bad" in str(bad)
        assert len(server.batches) == 2 and run.cost.uncertain == Cost()


@awaited
async def test_a_batch_that_fails_whole_ends_the_run_unless_there_is_no_room(
    tmp_path: Path,
) -> None:
    async with BatchServer(says, ends=["failed"]) as server:
        run = Run(tmp_path / "a.db", server)
        replies = await run.ask()
        assert all(isinstance(each, EndpointError) for each in replies)
        assert "this line is bad" in str(replies[0]) and run.cost == RunCost(Cost(), Cost())
    async with BatchServer(says, ends=["failed limit"]) as server:
        run = Run(tmp_path / "b.db", server)
        assert texts_of(await run.ask()) == ALL
        assert len(server.batches) == 2 and equals(run.cost.billed, BILLED)


@pytest.mark.parametrize("end", ["forgotten", "no file"])
@awaited
async def test_answers_that_the_server_lost_count_as_perhaps_billed(
    end: str, tmp_path: Path
) -> None:
    async with BatchServer(says, ends=[end]) as server:
        run = Run(tmp_path / "a.db", server)
        assert texts_of(await run.ask()) == ALL
        assert run.cost.uncertain.attempts == CALLS
        # A message of 90 bytes or so counts as a third as many tokens, and 30 of the reply.
        assert run.cost.uncertain.money >= BILLED.money
        assert run.cost.billed.money == pytest.approx(CALLS * 180 / 1e6)


@pytest.mark.parametrize("end", ["twice", "uncounted"])
@awaited
async def test_answers_count_once_however_they_are_listed(end: str, tmp_path: Path) -> None:
    async with BatchServer(says, ends=[end]) as server:
        run = Run(tmp_path / "a.db", server)
        assert texts_of(await run.ask()) == ALL
        assert equals(run.cost.billed, BILLED) and run.cost.uncertain == Cost()


@awaited
async def test_a_server_without_batches_is_named_with_the_way_out(tmp_path: Path) -> None:
    async with BatchServer(says, takes_batches=False) as server:
        run = Run(tmp_path / "a.db", server)
        replies = await run.ask()
        assert all(isinstance(each, EndpointError) for each in replies)
        assert "takes no batches" in str(replies[0]) and "llm.lane=flex" in str(replies[0])
        assert run.cost == RunCost(Cost(), Cost()) and run.open_batches() == 0


@awaited
async def test_a_stopped_run_leaves_its_batch_and_a_live_one_waits_for_it(tmp_path: Path) -> None:
    async with BatchServer(says, polls=10**9) as server:
        run = Run(tmp_path / "a.db", server)
        llm = run.config()
        with ExitStack() as stack:
            owner = stack.enter_context(run.archive.run("run").own())
            writer = local_archive(RunWriter(run.archive.place, "run", owner.token, llm.budget))
            journal = CallJournal(writer, "run", llm.budget)
            client = Client(llm, journal, timing=run.clock.timing)
            async with client:
                calls = [
                    client.complete(run.request(f"text {n}"), "h", "role") for n in range(CALLS)
                ]
                waiting = asyncio.gather(*calls, return_exceptions=True)
                while not client.batches:
                    await asyncio.sleep(0.01)
                client.stop()
                assert all(isinstance(each, StoppedError) for each in await waiting)
        # What is in flight is held, and does not become uncertain for nothing.
        assert run.open_batches() == 1 and run.cost.uncertain.attempts == CALLS
        server.polls = 0
        more = [f"text {n}" for n in range(CALLS + 1)]
        assert len(texts_of(await run.ask(more, lane="standard"))) == CALLS + 1
        # Six at half the price, and the new one at the whole.
        assert run.cost.billed.money == pytest.approx((CALLS * 90 + 180) / 1e6)
        assert run.cost.uncertain == Cost() and set(server.billed.values()) == {1}


@awaited
async def test_a_budget_counts_a_batch_at_its_price(tmp_path: Path) -> None:
    async with BatchServer(says) as server:
        # A call may cost 43 and 30 tokens: 386 a million live, 193 in a batch.
        run = Run(tmp_path / "a.db", server, budget={"money": 3.9e-4})
        replies = await run.ask(["text 0", "text 1", "text 2", "text 3"])
        assert sum(isinstance(reply, Reply) for reply in replies) >= 3
        assert run.cost.billed.money <= 3.9e-4
        errors = [each for each in replies if not isinstance(each, Reply)]
        assert all(isinstance(each, LlmError) for each in errors)
