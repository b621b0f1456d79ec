"""Processes killed at each step of a batch, and two at once: every call is paid once."""

import asyncio
import functools
import itertools
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.error import HTTPError

import pytest
from openai.resources.batches import AsyncBatches

from raylab.core.errors import RaylabError
from raylab.label.archive.store import Archive
from raylab.label.config.jobs import LlmConfig
from raylab.label.protocol.calls import CallJournal, RunWriter
from raylab.llm import batches
from raylab.llm.batches import BatchApi
from raylab.llm.chat import ChatRequest, Message, Reply
from raylab.llm.client import Client
from raylab.llm.config import Lane
from raylab.llm.connection import Timing
from tests.label.protocol.local import local_archive
from tests.llm.scripted_server import server_process

CALLS = 4
PRICE = {"m": {"input": 2.0, "output": 10.0}}
STEPS: Sequence[tuple[type, str, int]] = (
    (RunWriter, "open_batch", 1),
    (BatchApi, "upload", 1),
    (RunWriter, "note_batch", 1),
    (BatchApi, "create", 1),
    (RunWriter, "note_batch", 2),
    (AsyncBatches, "retrieve", 1),
    (BatchApi, "read", 1),
    (RunWriter, "end_batch", 1),
)


def server(**options: Any) -> AbstractContextManager[str]:
    arguments = itertools.chain(*((f"--{key}", json.dumps(own)) for key, own in options.items()))
    return server_process(*arguments, module="tests.llm.batch_server")


def die(owner: type, name: str, times: int, when: str) -> None:
    """Makes this process kill itself before or after the nth call of a method."""
    real, count = getattr(owner, name), itertools.count(1)

    def strike(now: str, number: int) -> None:
        if (number, now) == (times, when):
            os.kill(os.getpid(), signal.SIGKILL)

    if owner is RunWriter:

        @functools.wraps(real)
        def work(*given: Any) -> Any:
            number = next(count)
            strike("before", number)
            result = real(*given)
            strike("after", number)
            return result

        setattr(owner, name, work)
        return

    async def wait(*given: Any) -> Any:
        number = next(count)
        strike("before", number)
        result = await real(*given)
        strike("after", number)
        return result

    setattr(owner, name, wait)


async def ask(location: str, run: str, url: str, texts: Sequence[str]) -> list[Reply]:
    endpoint = {"base_url": url, "limits": {"deadline": 60}}
    llm = LlmConfig.model_validate(
        {
            "endpoints": {"main": endpoint},
            "evaluator": {"model": "m", "endpoint": "main"},
            "prices": PRICE,
            "lane": "batch",
        }
    )

    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds / 100)

    with Archive.open(location) as archive, archive.run(run).own() as owner:
        writer = local_archive(RunWriter(location, run, owner.token, llm.budget), "annotator-0")
        journal = CallJournal(writer, run, llm.budget)
        async with Client(llm, journal, timing=Timing(sleep=nap)) as client:
            await journal.load(["h"])
            requests = [
                ChatRequest(
                    "main", url, "m", (Message("user", text),), {"max_tokens": 30}, lane=Lane.BATCH
                )
                for text in texts
            ]
            calls = [client.complete(request, "h", "role") for request in requests]
            return await asyncio.gather(*calls)


def start(location: str, run: str, url: str, *step: Any, extra: int = 0) -> int:
    """Starts a process that asks; returns its id."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(60)
        try:
            if step:
                die(*step)
            replies = asyncio.run(
                ask(location, run, url, [f"text {n}" for n in range(CALLS + extra)])
            )
            code = 0 if len(replies) == CALLS + extra else 1
        except RaylabError as error:
            sys.stderr.write(f"{error}\n")
        finally:
            os._exit(code)
    return child


def end(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check(location: str, url: str, runs: Sequence[str], calls: int = CALLS) -> None:
    """Each call was billed once, and the archive says what the server's ledger says."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/ledger") as answer:
        ledger = json.load(answer)
    assert sorted(ledger["billed"].values()) == [1] * calls and ledger["other"] == 0
    with Archive.open(location) as archive:
        costs = [archive.run(run).cost() for run in runs]
        assert not any(cost.uncertain.attempts for cost in costs)
        tokens = ledger["tokens"]
        for kind in ("prompt_tokens", "completion_tokens"):
            assert sum(getattr(cost.billed, kind) for cost in costs) == tokens[kind]
        money = (tokens["prompt_tokens"] * 2 + tokens["completion_tokens"] * 10) / 2e6
        assert sum(cost.billed.money for cost in costs) == pytest.approx(money)
        assert len(archive.calls_of(["h"])) == calls


@pytest.fixture
def location(archive_url: str) -> str:
    with Archive.open(archive_url) as archive:
        for run in ("first", "second"):
            archive.start_run(run, {}, {})
    return archive_url


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[1]}-{step[2]}")
def test_a_process_killed_at_a_step_pays_nothing_twice(
    step: tuple[type, str, int], when: str, location: str
) -> None:
    with server() as url:
        assert end(start(location, "first", url, *step, when)) == -signal.SIGKILL
        # The same run and another one with more calls go on at once.
        others = start(location, "first", url), start(location, "second", url, extra=1)
        assert [end(child) for child in others] == [0, 0]
        check(location, url, ["first", "second"], CALLS + 1)


def test_a_request_on_its_way_at_the_death_of_its_process_makes_no_second_batch(
    location: str,
) -> None:
    # The file is deleted before its calls are free, so the late request meets no file.
    with server(faults={"create": ["before"]}) as url:
        assert end(start(location, "first", url, BatchApi, "find", 1, "before")) == -signal.SIGKILL
        assert end(start(location, "first", url)) == 0
        check(location, url, ["first"])
        late = json.dumps({"input_file_id": "file-0", "endpoint": "", "completion_window": ""})
        with pytest.raises(HTTPError, match="400"):
            urllib.request.urlopen(f"{url}/batches", late.encode())
        check(location, url, ["first"])


def test_two_processes_that_find_a_dead_batch_end_it_once(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "FIRST_POLL", 1.0)
    with server(faults={"create": ["lost", "lost"], "list": ["500"]}) as url:
        step = (RunWriter, "note_batch", 2, "before")
        assert end(start(location, "first", url, *step)) == -signal.SIGKILL
        both = start(location, "second", url), start(location, "first", url)
        assert [end(child) for child in both] == [0, 0]
        check(location, url, ["first", "second"])
