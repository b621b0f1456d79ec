"""Speed of annotation, compared with a bare loop of the same calls."""

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from raylab.core.config.base import ClusterConfig
from raylab.core.on_ray.session import session
from raylab.core.runs.run import Run
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.jobs import AnnotateConfig, CasesConfig, LlmConfig
from raylab.label.input.cases import read_cases
from raylab.label.on_ray.driver import Pool
from raylab.label.pages.progress import AnnotationProgress
from raylab.label.protocol.protocol import annotate
from raylab.label.protocol.run import archive_location, open_annotation
from raylab.label.protocol.settings import protocol_settings
from raylab.label.protocol.worker import chunks_of
from raylab.llm.chat import ChatRequest, Reply
from raylab.llm.config import ChatModel, Endpoint, Limits
from raylab.together.config import BenchmarkConfig
from raylab.together.speed.chat_server import (
    ANNOTATORS,
    EVALUATOR,
    answer_of,
    chat_server,
    write_cases,
)
from raylab.together.speed.figures import benchmark, rate

WARM_UP_CASES = 64
CALLS_OF_A_CASE = 4


def benchmark_annotate(config: BenchmarkConfig) -> None:
    """Times annotation against a bare loop that makes the same calls, and writes `metrics.json`.

    Both call a chat server in its own process on this machine. Ray's actors run a few cases before
    the clock starts. Each round has new cases, so that the archive answers none.
    """
    conditions = (
        f"Annotation with {config.concurrency} calls in flight, {1000 * config.latency:g} ms a "
        f"call, on {os.cpu_count()} CPUs with the server"
    )
    with (
        benchmark(config, "calls/s", conditions) as compare,
        chat_server(config.latency) as url,
        session(ClusterConfig()),
        tempfile.TemporaryDirectory() as storage,
    ):
        compare(
            f"{config.cases:,} cases",
            lambda number: _calls_per_second(
                _annotation(config, storage, url, f"round-{number}"), config.cases
            ),
            lambda number: _bare_calls_per_second(
                config, _annotation(config, storage, url, f"bare-{number}")
            ),
        )


def _annotation(config: BenchmarkConfig, storage: str, url: str, name: str) -> AnnotateConfig:
    """Writes new cases into the storage; returns their annotation by the chat server at `url`."""
    path = Path(storage, f"{name}.jsonl")
    write_cases(path, config.cases + WARM_UP_CASES, name)
    *annotators, judge = (ChatModel(model=model) for model in (*ANNOTATORS, EVALUATOR))
    limits = Limits(concurrency=config.concurrency)
    return AnnotateConfig(
        storage=storage,
        name=name,
        archive=f"{storage}/{name}.db",
        cases=CasesConfig(path=str(path)),
        llm=LlmConfig(
            endpoints={"default": Endpoint(base_url=url, limits=limits)},
            annotators=tuple(annotators),
            evaluator=judge,
            adjudicator=judge,
        ),
    )


def _calls_per_second(config: AnnotateConfig, total: int) -> float:
    """Times the annotation of `total` cases by warm actors."""
    run, codebook = Run.open(config), choose_codebook(config)
    with ExitStack() as stack:
        location = archive_location(config.storage, config.archive)
        opened = stack.enter_context(open_annotation(config, codebook, run, location))
        annotation, cases = stack.enter_context(opened.own()), opened.cases()
        pool = stack.enter_context(Pool(annotation, total))
        warm_up = chunks_of(islice(cases, WARM_UP_CASES), pool.chunk)
        pool.run(warm_up, AnnotationProgress(WARM_UP_CASES))
        progress = AnnotationProgress(total)

        def send() -> int:
            pool.run(chunks_of(cases, pool.chunk), progress)
            return progress.tally.sent

        calls_per_second = rate(send)
        statuses = annotation.archived.counts()
    assert statuses == {"accepted": total + WARM_UP_CASES}
    assert progress.tally.sent == CALLS_OF_A_CASE * total
    return calls_per_second


def _bare_calls_per_second(config: BenchmarkConfig, annotation: AnnotateConfig) -> float:
    """Times the bare loop on the calls that the protocol makes for as many cases."""
    codebook, recorder = choose_codebook(annotation), _Recorder()
    settings = protocol_settings(annotation, "", codebook)

    async def record() -> None:
        cases = read_cases(str(annotation.cases.path), codebook)
        for case in islice(cases, config.cases):
            await annotate(case, recorder, settings)

    asyncio.run(record())
    return asyncio.run(_send_bare(recorder.requests, config.concurrency))


class _Recorder:
    """A chat that answers immediately like the server, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        self.requests.append(request)
        text = answer_of(tuple((request.schema or {})["properties"]), request.model)
        return Reply(request.key, text, "benchmark", "stop", 1000, 50, None, 0.0, 1)


async def _send_bare(requests: Sequence[ChatRequest], concurrency: int) -> float:
    """Returns the calls per second of one process with asyncio and the openai SDK."""
    slots = asyncio.Semaphore(concurrency)
    async with AsyncOpenAI(api_key="none", base_url=requests[0].base_url, max_retries=0) as sdk:

        async def call(request: ChatRequest) -> str | None:
            messages: Any = [{"role": m.role, "content": m.content} for m in request.messages]
            schema = {"name": "reply", "strict": True, "schema": request.schema}
            form: Any = {"type": "json_schema", "json_schema": schema}
            async with slots:
                completion = await sdk.chat.completions.create(
                    model=request.model,
                    messages=messages,
                    response_format=form,
                    seed=request.seed,
                    **request.parameters,
                )
            return completion.choices[0].message.content

        await call(requests[0])
        start = time.perf_counter()
        await asyncio.gather(*map(call, requests))
        return len(requests) / (time.perf_counter() - start)
