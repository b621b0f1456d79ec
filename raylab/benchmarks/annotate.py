"""What annotation is timed against: a chat server of fixed latency, and a bare loop of calls.

`python -m raylab.benchmarks.annotate LATENCY` serves until its standard input is closed, and
prints its address.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from openai import AsyncOpenAI

from raylab.annotation.cases import Case
from raylab.annotation.protocol import annotate
from raylab.annotation.settings import protocol_settings
from raylab.config.annotation import Prompt
from raylab.config.jobs import AnnotateConfig
from raylab.llm.chat import ChatRequest, Reply
from raylab.opt.prompts import prompt_set
from raylab.taxonomies import choose_codebook

CODE = "OPT=Lrn; Rep=param; Obj=loss; Data=batch; Time=step; Human=low"
ANSWERS: dict[str, Any] = {"opt": CODE, "issues": [], "score": 95, "verdict": "PASS"}
TEXTS = {
    "rationale": "Parameters of a fixed model follow the gradient of a loss.",
    "summary": "The code names the mechanism.",
}
"""By the keys of the replies: both annotators agree, each in words of its own, and the evaluator is
content, so that a case makes four calls."""
ANNOTATORS = ("benchmark-a", "benchmark-b")
EVALUATOR = "benchmark-judge"
DESCRIPTION = (
    "System {number} fits the weights of a regression by stochastic gradient descent on shuffled "
    "mini-batches; workers compute gradients in parallel and a server averages them. "
)
REPEATS = 4
"""Of the sentence: about 600 characters, a short paragraph."""


def write_cases(path: Path, count: int, salt: str) -> None:
    """Write a JSONL file of so many cases; another salt makes other descriptions."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            description = DESCRIPTION.format(number=f"{salt}-{number}") * REPEATS
            file.write(json.dumps({"id": str(number), "description": description}) + "\n")


def protocol_calls(cases: Iterable[Case], config: AnnotateConfig) -> list[ChatRequest]:
    """Every call that the protocol makes of these cases, where the server answers as it does."""
    recorder = _Recorder()
    settings = protocol_settings(config, "", choose_codebook(config.protocol))

    async def run() -> None:
        for case in cases:
            await annotate(case, recorder, settings)

    asyncio.run(run())
    return recorder.requests


class _Recorder:
    """A chat that answers at once, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        self.requests.append(request)
        text = _answer(tuple((request.schema or {})["properties"]), request.model)
        return Reply(request.key, text, "benchmark", "stop", 1000, 50, None, 0.0, 1)


@contextmanager
def chat_server(latency: float) -> Generator[str]:
    """The server in a process of its own, while in use; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "raylab.benchmarks.annotate", str(latency)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def bare_seconds(requests: Sequence[ChatRequest], concurrency: int) -> float:
    """Seconds in which one process makes calls with asyncio and the openai SDK, and no more."""
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


async def _serve(latency: float) -> None:
    prompts = prompt_set(Prompt.MAXIMAL)
    bodies = {
        f'"{model}"'.encode(): _completion(prompt.keys, model)
        for model, prompt in {
            ANNOTATORS[0]: prompts.classify,
            ANNOTATORS[1]: prompts.classify,
            EVALUATOR: prompts.evaluate,
        }.items()
    }

    async def complete(request: web.Request) -> web.Response:
        content = await request.read()
        body = next(body for model, body in bodies.items() if model in content)
        await asyncio.sleep(latency)
        return web.Response(body=body, content_type="application/json")

    application = web.Application(client_max_size=1 << 24)
    application.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}/v1\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


def _answer(keys: Sequence[str], model: str) -> str:
    return json.dumps(
        {key: f"{model}: {TEXTS[key]}" if key in TEXTS else ANSWERS[key] for key in keys}
    )


def _completion(keys: Sequence[str], model: str) -> bytes:
    message = {"role": "assistant", "content": _answer(keys, model)}
    return json.dumps(
        {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "benchmark",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050},
        }
    ).encode()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
