"""Speed of annotation, compared with a bare loop of the same calls.

Both ask a chat server of fixed latency, on whose answers all agree: `python -m
raylab.together.speed.annotate LATENCY` prints its address and serves until its standard input is
closed.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from aiohttp import web
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
from raylab.together.speed.figures import benchmark, rate

WARM_UP_CASES = 64
CALLS_OF_A_CASE = 4
"""Two annotators agree, with different rationales, and the evaluator accepts both."""
STYLE = "maximal"
ANNOTATORS = ("benchmark-a", "benchmark-b")
EVALUATOR = "benchmark-judge"
VERDICT: dict[str, Any] = {"issues": [], "score": 95, "verdict": "PASS"}
TEXTS = {
    "rationale": "Parameters of a fixed model follow the gradient of a loss.",
    "summary": "The code names the mechanism.",
}
"""Texts by key of the reply."""
DESCRIPTION = (
    "System {number} fits the weights of a regression by stochastic gradient descent on shuffled "
    "mini-batches; workers compute gradients in parallel and a server averages them. "
)
REPEATS = 4
"""Repeats of the sentence, about 600 characters in all: a short paragraph."""


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
            lambda number: asyncio.run(
                _bare_calls_per_second(config, _annotation(config, storage, url, f"bare-{number}"))
            ),
        )


def _annotation(config: BenchmarkConfig, storage: str, url: str, name: str) -> AnnotateConfig:
    """Writes new cases into the storage; returns their annotation by the chat server at `url`."""
    path = Path(storage, f"{name}.jsonl")
    with path.open("w", encoding="utf-8") as file:
        for number in range(config.cases + WARM_UP_CASES):
            description = DESCRIPTION.format(number=f"{name}-{number}") * REPEATS
            file.write(json.dumps({"id": str(number), "description": description}) + "\n")
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


async def _bare_calls_per_second(config: BenchmarkConfig, annotation: AnnotateConfig) -> float:
    """Times asyncio and the openai SDK, in one process, on the calls that the protocol makes."""
    codebook, recorder = choose_codebook(annotation), _Recorder()
    settings = protocol_settings(annotation, "", codebook)
    for case in islice(read_cases(str(annotation.cases.path), codebook), config.cases):
        await annotate(case, recorder, settings)
    requests, slots = recorder.requests, asyncio.Semaphore(config.concurrency)
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


class _Recorder:
    """A chat that answers immediately like the server, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        self.requests.append(request)
        text = answer_of(tuple((request.schema or {})["properties"]), request.model)
        return Reply(request.key, text, "benchmark", "stop", 1000, 50, None, 0.0, 1)


@contextmanager
def chat_server(latency: float) -> Generator[str]:
    """Serves in its own process while in use; yields the address."""
    command = [sys.executable, "-m", "raylab.together.speed.annotate", str(latency)]
    # Its end closes the server's input.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def answer_of(keys: Sequence[str], model: str) -> str:
    """Returns the JSON reply of a model to a request for these keys."""
    codebook = choose_codebook(AnnotateConfig.model_construct())
    answers = {**VERDICT, codebook.prompts[STYLE].form.key: codebook.examples[-1]}
    return json.dumps(
        {key: f"{model}: {TEXTS[key]}" if key in TEXTS else answers[key] for key in keys}
    )


async def _serve(latency: float) -> None:
    prompts = choose_codebook(AnnotateConfig.model_construct()).prompts[STYLE]
    keys = dict.fromkeys(ANNOTATORS, prompts.classify.keys) | {EVALUATOR: prompts.evaluate.keys}
    completion: dict[str, Any] = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "benchmark",
        "usage": {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050},
    }
    bodies: dict[bytes, bytes] = {}
    for model, wanted in keys.items():
        message = {"role": "assistant", "content": answer_of(wanted, model)}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        bodies[f'"{model}"'.encode()] = json.dumps(completion | {"choices": choices}).encode()

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


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
