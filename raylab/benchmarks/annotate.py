"""Speed of annotation, against a bare loop that makes the same calls."""

import contextlib
import os
import statistics
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import psutil
from rich.table import Table

from raylab.annotation.input.cases import read_cases
from raylab.annotation.run import archive_location, open_annotation
from raylab.annotation.worker import chunks_of
from raylab.background import running
from raylab.benchmarks.bare_calls import bare_seconds, protocol_calls
from raylab.benchmarks.chat_server import ANNOTATORS, EVALUATOR, chat_server, write_cases
from raylab.benchmarks.figures import local_directory, timed, told
from raylab.cluster.annotation.driver import Pool, drive
from raylab.cluster.session import session
from raylab.config.annotation import CasesConfig, LlmConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import AnnotateConfig, BenchmarkConfig
from raylab.config.llm import ChatModel, Endpoint, Limits
from raylab.log import log_line, log_tables
from raylab.report.progress import AnnotationProgress
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run
from raylab.taxonomies import choose_codebook

WARM_UP_CASES = 64
CALLS_OF_A_CASE = 4
HEADS = {
    "calls_per_second": "calls/s",
    "bare_calls_per_second": "bare loop, calls/s",
    "ratio": "times as fast",
    "milliseconds_per_case": "ms a case",
    "memory_mb": "memory, MB",
}


class AnnotationRound(Part):
    """Figures of one round, once the actors are warm."""

    cases: int
    seconds: float
    calls_per_second: float
    milliseconds_per_case: float
    memory_mb: float
    """Largest memory of this process and the actors, in MiB."""
    bare_calls_per_second: float | None = None
    """Calls per second of the bare loop; None if it is left out."""
    ratio: float | None = None
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
            annotation = annotation_of(config, run, url, str(number))
            figures = annotate_cases(annotation, config.cases)
            if config.bare_loop:
                bare = _bare_calls_per_second(config, annotation)
                ratio = figures.calls_per_second / bare
                figures = figures.model_copy(update={"bare_calls_per_second": bare, "ratio": ratio})
            rounds.append(figures)
            message = f"round {number + 1}/{config.rounds}: {told(figures)}"
            log_line(message, **figures.model_dump(exclude_none=True))
            run.write_record(AnnotateBenchmark(annotate=rounds))
    log_tables(
        _table(config, rounds), rounds=[figures.model_dump(exclude_none=True) for figures in rounds]
    )
    run.finish()


def annotation_of(config: BenchmarkConfig, run: Run, url: str, number: str) -> AnnotateConfig:
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


def annotate_cases(config: AnnotateConfig, total: int) -> AnnotationRound:
    """Annotates `total` cases with warm actors; returns the speed and memory."""
    run, codebook = Run.open(config, config.job), choose_codebook(config.protocol)
    with ExitStack() as stack:
        location = archive_location(config)
        opened = stack.enter_context(open_annotation(config, codebook, run, location))
        annotation, cases = stack.enter_context(opened.own()), opened.cases()
        pool = stack.enter_context(Pool(annotation))
        warm_up = chunks_of(islice(cases, WARM_UP_CASES), pool.chunk)
        drive(pool, warm_up, AnnotationProgress(WARM_UP_CASES))
        memory = stack.enter_context(_Memory().sampled())
        progress = AnnotationProgress(total)
        seconds, _ = timed(lambda: drive(pool, chunks_of(cases, pool.chunk), progress))
        statuses = annotation.archived.counts()
    tally = progress.tally
    assert statuses == {"accepted": total + WARM_UP_CASES}
    assert tally.sent == CALLS_OF_A_CASE * total
    ended = tally.statuses.total()
    return AnnotationRound(
        cases=ended,
        seconds=seconds,
        calls_per_second=tally.sent / seconds,
        milliseconds_per_case=1000 * seconds / ended,
        memory_mb=memory.most / 2**20,
    )


class _Memory:
    """Sampler of the peak memory of this process and its Ray workers, once per second."""

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()

    @contextmanager
    def sampled(self) -> Generator["_Memory"]:
        with running(self._watch, stop=self._over.set):
            yield self

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            self.most = max(self.most, _resident_bytes())


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
    cases = read_cases(str(path), choose_codebook(annotation.protocol))
    requests = protocol_calls(cases, annotation)
    return len(requests) / bare_seconds(requests, config.concurrency)


def _table(config: BenchmarkConfig, rounds: Sequence[AnnotationRound]) -> Table:
    table = Table(
        title=f"Annotation of {config.cases:,} cases, {config.concurrency} calls in flight, "
        f"{1000 * config.latency:g} ms a call, on {os.cpu_count()} CPUs with the server"
    )
    table.add_column("over the rounds")
    for head in HEADS.values():
        table.add_column(head, justify="right")
    over: dict[str, Callable[[list[Any]], float]] = {"minimum": min, "median": statistics.median}
    for name, summarise in over.items():
        found = [[getattr(r, key) for r in rounds if getattr(r, key) is not None] for key in HEADS]
        table.add_row(name, *(f"{summarise(values):.4g}" if values else "-" for values in found))
    return table
