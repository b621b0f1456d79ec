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
from raylab.label.archive.ledger import Ownership
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
STEPS: Sequence[tuple[type, str, int]] = (
    (BatchApi, "upload", 1),
    (RunWriter, "note_batch", 1),
    (BatchApi, "create", 1),
    (RunWriter, "note_batch", 2),
    (AsyncBatches, "retrieve", 1),
    (RunWriter, "end_batch", 1),
    (Ownership, "end", 1),
)
"""Calls, each the nth of a method, between which archive or server change once."""


def server(**options: Any) -> AbstractContextManager[str]:
    arguments = itertools.chain(*((f"--{key}", json.dumps(own)) for key, own in options.items()))
    return server_process(*arguments, module="tests.llm.batch_server")


def die_before(owner: type, name: str, times: int) -> None:
    """Makes this process kill itself before the nth call of a method."""
    method, calls = getattr(owner, name), itertools.count(1)

    # The archive's client asks for methods by their names.
    @functools.wraps(method)
    def call(*values: Any) -> Any:
        if next(calls) == times:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*values)

    setattr(owner, name, call)


async def ask(location: str, run: str, url: str, texts: Sequence[str]) -> list[Reply]:
    endpoint = {"base_url": url, "limits": {"deadline": 60}}
    llm = LlmConfig.model_validate(
        {
            "endpoints": {"main": endpoint},
            "evaluator": {"model": "m", "endpoint": "main"},
            "prices": {"m": {"input": 2.0, "output": 10.0}},
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
                die_before(*step)
            texts = [f"text {number}" for number in range(CALLS + extra)]
            code = int(len(asyncio.run(ask(location, run, url, texts))) != len(texts))
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


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[1]}-{step[2]}")
def test_a_process_killed_before_a_step_pays_nothing_twice(
    step: tuple[type, str, int], location: str
) -> None:
    with server() as url:
        assert end(start(location, "first", url, *step)) == -signal.SIGKILL
        # The same run and another one with more calls go on at once.
        others = start(location, "first", url), start(location, "second", url, extra=1)
        assert [end(child) for child in others] == [0, 0]
        check(location, url, ["first", "second"], CALLS + 1)


def test_a_request_that_outlives_its_process_makes_no_second_batch(location: str) -> None:
    # The file is deleted before its calls are free, so the late request meets no file.
    with server(faults={"create": ["before"]}) as url:
        assert end(start(location, "first", url, BatchApi, "find", 1)) == -signal.SIGKILL
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
        assert end(start(location, "first", url, RunWriter, "note_batch", 2)) == -signal.SIGKILL
        both = start(location, "second", url), start(location, "first", url)
        assert [end(child) for child in both] == [0, 0]
        check(location, url, ["first", "second"])
