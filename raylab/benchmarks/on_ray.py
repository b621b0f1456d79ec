"""The speed of score trees, trials and annotation, each against the plain way to the same."""

import contextlib
import io
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.table import Table

from raylab.annotation.cases import read_cases
from raylab.annotation.sources import select_cases
from raylab.arc.training import build_experiment, build_trainer
from raylab.archive.store import Archive
from raylab.benchmarks.annotate import (
    ANNOTATORS,
    EVALUATOR,
    bare_seconds,
    chat_server,
    protocol_calls,
    write_cases,
)
from raylab.benchmarks.quality import (
    GENERATIONS,
    LARGE_BYTES,
    LARGE_FILES,
    MODELS,
    SMALL_BYTES,
    SMALL_FILES,
    plain_means,
    write_tree,
)
from raylab.cluster.annotate import Pool, Progress, chunks_of, drive
from raylab.cluster.quality import measure_trees
from raylab.cluster.session import session
from raylab.cluster.tune import tune
from raylab.config.annotation import CasesConfig, LlmConfig
from raylab.config.arc import Search, TrainingConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import (
    AnnotateConfig,
    BenchmarkConfig,
    QualityConfig,
    TrainConfig,
    TuneConfig,
)
from raylab.config.llm import ChatModel, Endpoint, Limits
from raylab.config.models import ModelConfig
from raylab.errors import ConfigError
from raylab.log import log_line, log_tables
from raylab.quality.cache import CACHE_DIRECTORY
from raylab.quality.reading import SETTLED_NANOSECONDS
from raylab.quality.record import TreeQuality
from raylab.runs.run import METRICS, Run

SHAPES = {"small": (SMALL_FILES, SMALL_BYTES), "large": (LARGE_FILES, LARGE_BYTES)}
WARM_UP_SHAPE = (2, SMALL_BYTES)
AGREEMENT = 1e-12
WARM_UP_CASES = 64
CALLS_OF_A_CASE = 4
ONE_EPOCH = TrainingConfig(epochs=1, patience=None)


def benchmark_quality(config: BenchmarkConfig) -> None:
    """Time both ways on two trees, print the ratios and write `metrics.json`.

    Before a clock runs, the files are in the page cache and Ray's workers have imported what they
    need. The time on Ray is that of a whole measurement as `jobs/quality.py` does it, intervals and
    score cache included; the plain loop only averages.

    Raises:
        RaylabError: the run's name is taken, or its storage is not a local directory.
    """
    run = Run.open(config, config.job)
    base = local_directory(run, "quality")
    results: dict[str, Any] = {}
    with session(ClusterConfig()):
        write_tree(base / "warm-up", *WARM_UP_SHAPE)
        for _ in range(2):
            _measure(base / "warm-up", base)
        for size, shape in SHAPES.items():
            files = write_tree(base / size, *shape)
            log_line(f"{size}: {files:,} files in {MODELS * GENERATIONS} directories")
            time.sleep(SETTLED_NANOSECONDS / 1e9)
            plain_means(base / size)
            rounds: list[dict[str, float]] = []
            for number in range(config.rounds):
                rounds.append(quality_round(base / size, base))
                seconds = "  ".join(f"{way} {value:.3f} s" for way, value in rounds[-1].items())
                log_line(f"{size} round {number + 1}/{config.rounds}: {seconds}", **rounds[-1])
            results[size] = {"files": files, **_summary(rounds)}
            run.write_json(METRICS, {"quality": results})
            shutil.rmtree(base / size)
    log_tables(_table(results), quality=results)
    run.finish()


def local_directory(run: Run, part: str) -> Path:
    """The directory of a run.

    Raises:
        ConfigError: it is not local.
    """
    if not run.is_local:
        raise ConfigError(f"the benchmark of {part} needs a local directory as storage=")
    return Path(run.path)


def quality_round(root: Path, storage: Path) -> dict[str, float]:
    """Seconds of the plain loop, of a first measurement and of a second one."""
    shutil.rmtree(storage / CACHE_DIRECTORY, ignore_errors=True)
    plain, means = _timed(lambda: plain_means(root))
    first, quality = _timed(lambda: _measure(root, storage))
    second, again = _timed(lambda: _measure(root, storage))
    assert again.files.cached and not quality.files.cached
    assert all(abs(quality.models[name] - mean) < AGREEMENT for name, mean in means.items())
    return {"plain": plain, "first": first, "second": second}


def _measure(root: Path, storage: Path) -> TreeQuality:
    with contextlib.redirect_stdout(io.StringIO()):
        return measure_trees(str(root), (), QualityConfig(), str(storage), "benchmark")


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    done = work()
    return time.perf_counter() - start, done


def _summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Minimum and median over the rounds of the seconds and of the ratios within each round."""
    figures = {f"{way}_seconds": [r[way] for r in rounds] for way in ("plain", "first", "second")}
    for way in ("first", "second"):
        figures[f"{way}_ratio"] = [r["plain"] / r[way] for r in rounds]
    return {
        name: {"min": min(values), "median": statistics.median(values)}
        for name, values in figures.items()
    }


def _table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title="Reading scores on Ray, minimum and median of the rounds")
    table.add_column("files")
    columns = {
        "plain loop, s": ("plain_seconds", "{:.2f}"),
        "first run, s": ("first_seconds", "{:.2f}"),
        "second run, s": ("second_seconds", "{:.2f}"),
        "first, times as fast": ("first_ratio", "{:.1f}"),
        "second, times as fast": ("second_ratio", "{:.1f}"),
    }
    for label in columns:
        table.add_column(label, justify="right")
    for size, figures in results.items():
        cells = [
            " / ".join(form.format(figures[key][kind]) for kind in ("min", "median"))
            for key, form in columns.values()
        ]
        table.add_row(f"{figures['files']:,} {size}", *cells)
    return table


def benchmark_tune(config: BenchmarkConfig) -> None:
    """Time a sweep of `config.rounds` trials, one at a time, and as many direct trainings.

    Both train the first of `config.models` for one epoch on one CPU thread. Ray has started, and
    this process has imported torch, before a clock runs.

    Raises:
        RaylabError: the tasks cannot be used, or the run's name is taken.
    """
    run = Run.open(config, config.job)
    model = config.models[0]
    direct = _direct_seconds(config, model)
    with session(ClusterConfig()):
        swept = _timed(lambda: tune(_sweep(config, model, run)))[0] / config.rounds
    result: dict[str, Any] = {
        "direct_seconds": direct,
        "trial_seconds": swept,
        "overhead_seconds": swept - direct,
        "ratio": swept / direct,
    }
    run.write_json(METRICS, {"tune": result})
    log_line(
        f"{model.architecture}, one epoch: {direct:.1f} s called directly, {swept:.1f} s a trial, "
        f"{swept - direct:.1f} s more ({swept / direct:.2f} times), mean of {config.rounds}",
        **result,
    )
    run.finish()


def _direct_seconds(config: BenchmarkConfig, model: ModelConfig) -> float:
    torch.set_num_threads(1)
    since = time.perf_counter()
    for _ in range(config.rounds):
        training = TrainConfig(model=model, data=config.data, training=ONE_EPOCH)
        experiment = build_experiment(training)
        trainer = build_trainer(training, accelerator="cpu", devices=1)
        trainer.fit(experiment.module, datamodule=experiment.data)
    return (time.perf_counter() - since) / config.rounds


def _sweep(config: BenchmarkConfig, model: ModelConfig, run: Run) -> TuneConfig:
    fixed = {
        key: {"choice": [value]}
        for key, value in model.model_dump(mode="json", exclude={"architecture"}).items()
    }
    return TuneConfig.model_validate(
        {
            "storage": run.uri,
            "name": "sweep",
            "space": {"model": {model.architecture: fixed}},
            "search": Search.RANDOM,
            "stop_early": False,
            "trials": config.rounds,
            "concurrent": 1,
            "data": config.data,
            "training": ONE_EPOCH,
            "cluster": ClusterConfig(cpus_per_worker=1, use_gpu=False),
        }
    )


def benchmark_annotate(config: BenchmarkConfig) -> None:
    """Time annotation against a bare loop that makes the same calls, and write `metrics.json`.

    The chat server, which both are answered by, is a process of its own on this machine. Before a
    clock runs, Ray's actors have imported what they need and run a few cases. Each round has cases
    that no round had before, so that nothing is answered from the journal.

    Raises:
        RaylabError: the run's name is taken, or its storage is not a local directory.
    """
    run = Run.open(config, config.job)
    local_directory(run, "annotation")
    rounds: list[dict[str, float]] = []
    with chat_server(config.latency) as url, session(ClusterConfig()):
        for number in range(config.rounds):
            annotation = annotation_of(config, run, url, str(number))
            figures = annotated(annotation, config.cases)
            if config.bare_loop:
                bare = _bare(config, annotation)
                ratio = figures["calls_per_second"] / bare
                figures |= {"bare_calls_per_second": bare, "ratio": ratio}
            rounds.append(figures)
            told = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
            log_line(f"round {number + 1}/{config.rounds}: {told}", **figures)
            run.write_json(METRICS, {"annotate": rounds})
    log_tables(_annotation_table(config, rounds), rounds=rounds)
    run.finish()


def annotation_of(config: BenchmarkConfig, run: Run, url: str, number: str) -> AnnotateConfig:
    """The annotation of new cases, which are written beside, by the chat server at `url`."""
    path = Path(run.path) / f"cases-{number}.jsonl"
    write_cases(path, config.cases + WARM_UP_CASES, number)
    limits = Limits(concurrency=config.concurrency)
    a, b, judge = (ChatModel(model=model) for model in (*ANNOTATORS, EVALUATOR))
    return AnnotateConfig(
        storage=run.uri,
        name=f"round-{number}",
        cases=CasesConfig(path=str(path)),
        llm=LlmConfig(
            endpoints={"default": Endpoint(base_url=url, limits=limits)},
            annotator_a=a,
            annotator_b=b,
            evaluator=judge,
            adjudicator=judge,
        ),
    )


def annotated(annotation: AnnotateConfig, total: int) -> dict[str, float]:
    """Calls a second of the job once its actors are warm, and their memory at its largest."""
    name = str(annotation.name)
    location = f"{annotation.storage}/{name}.db"
    cases = select_cases(annotation.cases, annotation.generations)
    with Archive.open(location) as archive, ExitStack() as stack:
        archive.start_run(name, {}, {})
        pool = stack.enter_context(Pool(annotation, name, location, None))
        drive(pool, chunks_of(islice(cases, WARM_UP_CASES), pool.chunk), Progress(WARM_UP_CASES))
        memory = stack.enter_context(_Memory())
        progress = Progress(total)
        seconds, _ = _timed(lambda: drive(pool, chunks_of(cases, pool.chunk), progress))
        statuses = archive.counts(name)
    tally = progress.tally
    assert statuses == {"accepted": total + WARM_UP_CASES}
    assert tally.sent == CALLS_OF_A_CASE * total
    return {
        "cases": tally.statuses.total(),
        "seconds": seconds,
        "calls_per_second": tally.sent / seconds,
        "milliseconds_per_case": 1000 * seconds / tally.statuses.total(),
        "memory_mb": memory.most / 2**20,
    }


class _Memory:
    """The memory of this process and Ray's workers below it, looked at every second."""

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            self.most = max(self.most, _resident_bytes())


def _resident_bytes() -> int:
    """Memory of this process and of the actors of the annotation, shared pages counted once."""
    total = 0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process == own or process.cmdline()[0].startswith(
                ("ray::Annotator", "ray::ArchiveWriter")
            ):
                total += process.memory_full_info().uss
    return total


def _bare(config: BenchmarkConfig, annotation: AnnotateConfig) -> float:
    """Calls a second of the bare loop, on the calls that the protocol makes of other cases."""
    path = Path(f"{annotation.storage}/bare-{annotation.name}.jsonl")
    write_cases(path, config.cases, f"bare-{annotation.name}")
    requests = protocol_calls(read_cases(str(path)), annotation)
    return len(requests) / bare_seconds(requests, config.concurrency)


def _annotation_table(config: BenchmarkConfig, rounds: list[dict[str, float]]) -> Table:
    table = Table(
        title=f"Annotation of {config.cases:,} cases, {config.concurrency} calls in flight, "
        f"{1000 * config.latency:g} ms a call, on {os.cpu_count()} CPUs with the server"
    )
    labels = {
        "calls_per_second": "calls/s",
        "bare_calls_per_second": "bare loop, calls/s",
        "ratio": "times as fast",
        "milliseconds_per_case": "ms a case",
        "memory_mb": "memory, MB",
    }
    table.add_column("over the rounds")
    for label in labels.values():
        table.add_column(label, justify="right")
    for name, of in {"minimum": min, "median": statistics.median}.items():
        found = ([r[key] for r in rounds if key in r] for key in labels)
        table.add_row(name, *(f"{of(values):.4g}" if values else "-" for values in found))
    return table
