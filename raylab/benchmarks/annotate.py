"""Speed of annotation, against a bare loop that makes the same calls."""

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
from openai import AsyncOpenAI
from rich.table import Table

from raylab.annotation.input.cases import read_cases
from raylab.annotation.protocol import annotate
from raylab.annotation.run import archive_location, open_annotation
from raylab.annotation.settings import protocol_settings
from raylab.annotation.worker import chunks_of
from raylab.benchmarks.chat_server import ANNOTATORS, EVALUATOR, answer_of, chat_server, write_cases
from raylab.benchmarks.figures import Spread, local_directory, spread_table, timed
from raylab.cluster.annotation.driver import Pool
from raylab.cluster.session import session
from raylab.config.annotation import CasesConfig, LlmConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import AnnotateConfig, BenchmarkConfig
from raylab.config.llm import ChatModel, Endpoint, Limits
from raylab.llm.chat import ChatRequest, Reply
from raylab.log import log_line, log_tables
from raylab.report.progress import AnnotationProgress
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run
from raylab.taxonomies import choose_codebook

WARM_UP_CASES = 64
CALLS_OF_A_CASE = 4
COLUMNS = {
    "calls/s": ("calls_per_second", "{:.0f}"),
    "bare loop, calls/s": ("bare_calls_per_second", "{:.0f}"),
    "times as fast": ("ratio", "{:.2f}"),
    "ms a case": ("milliseconds_per_case", "{:.2f}"),
    "memory, MB": ("memory_mb", "{:.0f}"),
}


class AnnotationRound(Part):
    """Figures of one round, once the actors are warm."""

    cases: int
    seconds: float
    calls_per_second: float
    milliseconds_per_case: float
    memory_mb: float
    """Memory of this process and the actors at the end, in MiB."""
    bare_calls_per_second: float
    """Calls per second of the bare loop."""
    ratio: float
    """Calls per second divided by those of the bare loop."""


class AnnotateBenchmark(Record):
    """The rounds, in order."""

    file: ClassVar[str] = METRICS
    annotate: list[AnnotationRound]


def benchmark_annotate(config: BenchmarkConfig) -> None:
    """Times annotation against a bare loop that makes the same calls, and writes `metrics.json`.

    Both call a chat server in its own process on this machine. Before the clock starts, Ray's
    actors have imported what they need and run a few cases. Each round has new cases, so that
    nothing is answered from the archive.

    Raises:
        RaylabError: the run's name is taken, or its storage is not a local directory.
    """
    run = Run.open(config, config.job)
    local_directory(run, "annotation")
    rounds: list[AnnotationRound] = []
    with chat_server(config.latency) as url, session(ClusterConfig()):
        for number in range(config.rounds):
            rounds.append(_time_round(config, _annotation(config, run, url, str(number))))
            figures = rounds[-1].model_dump()
            listed = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
            log_line(f"round {number + 1}/{config.rounds}: {listed}", **figures)
            run.write_record(AnnotateBenchmark(annotate=rounds))
    log_tables(_table(config, rounds), rounds=[figures.model_dump() for figures in rounds])
    run.finish()


def _time_round(config: BenchmarkConfig, annotation: AnnotateConfig) -> AnnotationRound:
    """Times an annotation, and the bare loop after it."""
    seconds, memory = _annotate_cases(annotation, config.cases)
    calls_per_second = CALLS_OF_A_CASE * config.cases / seconds
    bare = _bare_calls_per_second(config, annotation)
    return AnnotationRound(
        cases=config.cases,
        seconds=seconds,
        calls_per_second=calls_per_second,
        milliseconds_per_case=1000 * seconds / config.cases,
        memory_mb=memory / 2**20,
        bare_calls_per_second=bare,
        ratio=calls_per_second / bare,
    )


def _table(config: BenchmarkConfig, rounds: Sequence[AnnotationRound]) -> Table:
    title = (
        f"Annotation with {config.concurrency} calls in flight, {1000 * config.latency:g} ms a "
        f"call, on {os.cpu_count()} CPUs with the server, minimum and median of the rounds"
    )
    fields = [field for field, _ in COLUMNS.values()]
    spreads = {field: Spread.of([getattr(r, field) for r in rounds]) for field in fields}
    return spread_table(title, "cases", COLUMNS, {f"{config.cases:,}": SimpleNamespace(**spreads)})


def _annotation(config: BenchmarkConfig, run: Run, url: str, number: str) -> AnnotateConfig:
    """Writes new cases into the run; returns their annotation by the chat server at `url`."""
    path = Path(run.path) / f"cases-{number}.jsonl"
    write_cases(path, config.cases + WARM_UP_CASES, number)
    limits = Limits(concurrency=config.concurrency)
    a, b, judge = (ChatModel(model=model) for model in (*ANNOTATORS, EVALUATOR))
    return AnnotateConfig(
        storage=run.uri,
        name=f"round-{number}",
        archive=f"{run.uri}/round-{number}.db",
        cases=CasesConfig(path=str(path)),
        llm=LlmConfig(
            endpoints={"default": Endpoint(base_url=url, limits=limits)},
            annotator_a=a,
            annotator_b=b,
            evaluator=judge,
            adjudicator=judge,
        ),
    )


def _annotate_cases(config: AnnotateConfig, total: int) -> tuple[float, int]:
    """Annotates `total` cases with warm actors; returns the seconds, and the bytes of memory."""
    run, codebook = Run.open(config, config.job), choose_codebook(config.protocol)
    with ExitStack() as stack:
        location = archive_location(config)
        opened = stack.enter_context(open_annotation(config, codebook, run, location))
        annotation, cases = stack.enter_context(opened.own()), opened.cases()
        pool = stack.enter_context(Pool(annotation))
        warm_up = chunks_of(islice(cases, WARM_UP_CASES), pool.chunk)
        pool.run(warm_up, AnnotationProgress(WARM_UP_CASES))
        progress = AnnotationProgress(total)
        seconds, _ = timed(lambda: pool.run(chunks_of(cases, pool.chunk), progress))
        memory = _resident_bytes()
        statuses = annotation.archived.counts()
    assert statuses == {"accepted": total + WARM_UP_CASES}
    assert progress.tally.sent == CALLS_OF_A_CASE * total
    return seconds, memory


def _resident_bytes() -> int:
    """Returns the memory of this process and of the actors, shared pages counted once."""
    total = 0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            # A process that ends has no command line any more.
            command = "".join(process.cmdline()[:1])
            if process == own or command.startswith(("ray::Annotator", "ray::ArchiveWriter")):
                total += process.memory_full_info().uss
    return total


def _bare_calls_per_second(config: BenchmarkConfig, annotation: AnnotateConfig) -> float:
    """Times the bare loop on the calls that the protocol makes for other cases."""
    path = Path(f"{annotation.storage}/bare-{annotation.name}.jsonl")
    write_cases(path, config.cases, f"bare-{annotation.name}")
    codebook, recorder = choose_codebook(annotation.protocol), _Recorder()
    settings = protocol_settings(annotation, "", codebook)

    async def record() -> None:
        for case in read_cases(str(path), codebook):
            await annotate(case, recorder, settings)

    asyncio.run(record())
    seconds = asyncio.run(_bare_loop(recorder.requests, config.concurrency))
    return len(recorder.requests) / seconds


class _Recorder:
    """A chat that answers immediately like the server, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        self.requests.append(request)
        text = answer_of(tuple((request.schema or {})["properties"]), request.model)
        return Reply(request.key, text, "benchmark", "stop", 1000, 50, None, 0.0, 1)


async def _bare_loop(requests: Sequence[ChatRequest], concurrency: int) -> float:
    """Returns the seconds that one process takes for the calls, with asyncio and the openai SDK."""
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
