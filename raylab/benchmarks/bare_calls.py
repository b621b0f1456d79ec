"""A bare loop of calls, which annotation is timed against."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from openai import AsyncOpenAI

from raylab.annotation.input.cases import Case
from raylab.annotation.protocol import annotate
from raylab.annotation.settings import protocol_settings
from raylab.benchmarks.chat_server import answer_of
from raylab.config.jobs import AnnotateConfig
from raylab.llm.chat import ChatRequest, Reply
from raylab.taxonomies import choose_codebook


def protocol_calls(cases: Iterable[Case], config: AnnotateConfig) -> list[ChatRequest]:
    """Returns every call that the protocol makes for these cases, given the server's answers."""
    recorder = _Recorder()
    settings = protocol_settings(config, "", choose_codebook(config.protocol))

    async def run() -> None:
        for case in cases:
            await annotate(case, recorder, settings)

    asyncio.run(run())
    return recorder.requests


class _Recorder:
    """A chat that answers immediately like the server, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        self.requests.append(request)
        text = answer_of(tuple((request.schema or {})["properties"]), request.model)
        return Reply(request.key, text, "benchmark", "stop", 1000, 50, None, 0.0, 1)


def bare_seconds(requests: Sequence[ChatRequest], concurrency: int) -> float:
    """Returns the seconds that one process takes for the calls, with asyncio and the openai SDK."""
    return asyncio.run(_bare_loop(requests, concurrency))


async def _bare_loop(requests: Sequence[ChatRequest], concurrency: int) -> float:
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
        since = time.perf_counter()
        await asyncio.gather(*map(call, requests))
        return time.perf_counter() - since
