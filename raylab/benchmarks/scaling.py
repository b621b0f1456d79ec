"""Scaling of annotation and quality with the nodes of a cluster, all on one machine."""

import os
import shutil
import statistics
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import psutil
from rich.table import Table

from raylab.benchmarks.annotate import annotate_cases, annotation_of
from raylab.benchmarks.chat_server import chat_server
from raylab.benchmarks.figures import local_directory, told
from raylab.benchmarks.local_nodes import Nodes, local_nodes
from raylab.benchmarks.quality import quality_round
from raylab.benchmarks.score_trees import SMALL_BYTES, SMALL_FILES, write_tree
from raylab.cluster.session import session
from raylab.config.base import ClusterConfig
from raylab.config.jobs import BenchmarkConfig
from raylab.log import log_line, log_tables
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run

NODES = (1, 2, 4)
"""Numbers of nodes, of one CPU each regardless of the machine."""


class ScalingRound(Part):
    """Figures of one cluster in one round."""

    calls_per_second: float
    busy_percent: float
    """Load of all CPUs of the machine while annotating."""
    quality_seconds: float
    """Seconds of a measurement."""


class ScalingBenchmark(Record):
    """The rounds of each cluster, by its number of nodes."""

    file: ClassVar[str] = METRICS
    scaling: dict[int, list[ScalingRound]]


def benchmark_scaling(config: BenchmarkConfig) -> None:
    """Times annotation and quality on clusters of 1, 2 and 4 nodes of one CPU, on this machine.

    Every node is a separate `ray start`. All clusters do the same work: `config.cases` cases with
    `config.concurrency` calls in flight on each node, and a measurement of 100,000 small
    score files. The chat server, the driver and the archive share the machine's CPUs with the
    nodes. Each round measures all clusters.

    Raises:
        RaylabError: the run's name is taken, or its storage is not a local directory.
    """
    run = Run.open(config, config.job)
    base = local_directory(run, "scaling")
    files = write_tree(base / "scores", SMALL_FILES, SMALL_BYTES)
    rounds: dict[int, list[ScalingRound]] = {nodes: [] for nodes in NODES}
    with chat_server(config.latency) as url:
        for number in range(config.rounds):
            for nodes in NODES:
                figures = _on_nodes(nodes, _measure, config, run, url, f"{number}-{nodes}")
                rounds[nodes].append(figures)
                message = f"round {number + 1}/{config.rounds}, {nodes} nodes: {told(figures)}"
                log_line(message, nodes=nodes, **figures.model_dump())
                run.write_record(ScalingBenchmark(scaling=rounds))
    shutil.rmtree(base / "scores")
    fields = ScalingBenchmark(scaling=rounds).model_dump(mode="json")
    log_tables(_table(config, files, rounds), rounds=fields["scaling"])
    run.finish()


def _on_nodes(count: int, work: Callable[..., ScalingRound], *arguments: Any) -> ScalingRound:
    """Runs `work` as the driver of a new cluster of `count` nodes, and returns its result."""
    with local_nodes(count - 1) as nodes, _environment(nodes):
        # Ray reads its authentication settings on import, so the driver needs its own process.
        with ProcessPoolExecutor(1, get_context("spawn")) as driver:
            return driver.submit(work, count, *arguments).result()


@contextmanager
def _environment(nodes: Nodes) -> Generator[None]:
    before = dict(os.environ)
    os.environ.update({**nodes.authentication, "RAY_ADDRESS": nodes.address})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _measure(nodes: int, config: BenchmarkConfig, run: Run, url: str, name: str) -> ScalingRound:
    wide = config.model_copy(update={"concurrency": config.concurrency * nodes})
    base = Path(run.path)
    with session(ClusterConfig()):
        psutil.cpu_percent()
        annotation = annotate_cases(annotation_of(wide, run, url, name), config.cases)
        busy = psutil.cpu_percent()
        # Makes Ray's workers import what they need.
        quality_round(base / "scores")
        quality = quality_round(base / "scores")
    return ScalingRound(
        calls_per_second=annotation.calls_per_second,
        busy_percent=busy,
        quality_seconds=quality.raylab,
    )


def _table(config: BenchmarkConfig, files: int, rounds: Mapping[int, list[ScalingRound]]) -> Table:
    table = Table(
        title=f"Nodes of one CPU on {os.cpu_count()} CPUs: {config.cases:,} cases, "
        f"{config.concurrency} calls in flight a node, {1000 * config.latency:g} ms a call; "
        f"{files:,} score files; median of {config.rounds}"
    )
    for label in ("nodes", "calls/s", "times", "CPUs busy", "quality, s", "times"):
        table.add_column(label, justify="right")
    calls = {n: statistics.median(r.calls_per_second for r in rounds[n]) for n in NODES}
    busy = {n: statistics.median(r.busy_percent for r in rounds[n]) for n in NODES}
    quality = {n: statistics.median(r.quality_seconds for r in rounds[n]) for n in NODES}
    one = NODES[0]
    for nodes in NODES:
        table.add_row(
            str(nodes),
            f"{calls[nodes]:.0f}",
            f"{calls[nodes] / calls[one]:.2f}",
            f"{busy[nodes]:.0f} %",
            f"{quality[nodes]:.2f}",
            f"{quality[one] / quality[nodes]:.2f}",
        )
    return table
