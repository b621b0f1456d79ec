"""How annotation and quality scale with the nodes of a cluster, as far as one machine shows it."""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from raylab.benchmarks.annotate import chat_server
from raylab.benchmarks.local_nodes import Nodes, local_nodes
from raylab.benchmarks.on_ray import annotated, annotation_of, local_directory, quality_round
from raylab.benchmarks.quality import SMALL_BYTES, SMALL_FILES, write_tree
from raylab.cluster.session import session
from raylab.config.base import ClusterConfig
from raylab.config.jobs import BenchmarkConfig
from raylab.log import log_line, log_tables
from raylab.quality.reading import SETTLED_NANOSECONDS
from raylab.runs.run import METRICS, Run

NODES = (1, 2, 4)
"""Nodes of one CPU each, whatever CPUs the machine has."""

Figures = dict[str, float]


def benchmark_scaling(config: BenchmarkConfig) -> None:
    """Time annotation and quality on clusters of 1, 2 and 4 nodes of one CPU, all on this machine.

    Every node is a `ray start` of its own. The work is the same on all of them: `config.cases`
    cases with `config.concurrency` calls in flight on each node, and a first measurement of
    100,000 small score files. The chat server, the driver and the archive share the machine's CPUs
    with the nodes. Each round measures all clusters.

    Raises:
        RaylabError: the run's name is taken, or its storage is not a local directory.
    """
    run = Run.open(config, config.job)
    base = local_directory(run, "scaling")
    files = write_tree(base / "scores", SMALL_FILES, SMALL_BYTES)
    time.sleep(SETTLED_NANOSECONDS / 1e9)
    rounds: dict[int, list[Figures]] = {nodes: [] for nodes in NODES}
    with chat_server(config.latency) as url:
        for number in range(config.rounds):
            for nodes in NODES:
                figures = _on_nodes(nodes, _measure, config, run, url, f"{number}-{nodes}")
                rounds[nodes].append(figures)
                told = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
                message = f"round {number + 1}/{config.rounds}, {nodes} nodes: {told}"
                log_line(message, nodes=nodes, **figures)
                run.write_json(METRICS, {"scaling": {str(n): rounds[n] for n in NODES}})
    shutil.rmtree(base / "scores")
    log_tables(
        _table(config, files, rounds), rounds={str(n): figures for n, figures in rounds.items()}
    )
    run.finish()


def _on_nodes(count: int, work: Callable[..., Figures], *arguments: Any) -> Figures:
    """What `work` returns as the driver of a new cluster of so many nodes."""
    with local_nodes(count - 1) as nodes, _environment(nodes):
        # Ray reads how to authenticate when it is imported, so the driver is a process of its own.
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


def _measure(nodes: int, config: BenchmarkConfig, run: Run, url: str, name: str) -> Figures:
    wide = config.model_copy(update={"concurrency": config.concurrency * nodes})
    base = Path(run.path)
    with session(ClusterConfig()):
        psutil.cpu_percent()
        annotation = annotated(annotation_of(wide, run, url, name), config.cases)
        busy = psutil.cpu_percent()
        # Has Ray's workers import what they need.
        quality_round(base / "scores", base)
        quality = quality_round(base / "scores", base)
    return {
        "calls_per_second": annotation["calls_per_second"],
        "busy_percent": busy,
        "quality_seconds": quality["first"],
    }


def _table(config: BenchmarkConfig, files: int, rounds: Mapping[int, list[Figures]]) -> Table:
    table = Table(
        title=f"Nodes of one CPU on {os.cpu_count()} CPUs: {config.cases:,} cases, "
        f"{config.concurrency} calls in flight a node, {1000 * config.latency:g} ms a call; "
        f"{files:,} score files; median of {config.rounds}"
    )
    for label in ("nodes", "calls/s", "times", "CPUs busy", "quality, s", "times"):
        table.add_column(label, justify="right")
    medians = {
        nodes: {key: statistics.median(f[key] for f in figures) for key in figures[0]}
        for nodes, figures in rounds.items()
    }
    one = medians[NODES[0]]
    for nodes, figures in medians.items():
        table.add_row(
            str(nodes),
            f"{figures['calls_per_second']:.0f}",
            f"{figures['calls_per_second'] / one['calls_per_second']:.2f}",
            f"{figures['busy_percent']:.0f} %",
            f"{figures['quality_seconds']:.2f}",
            f"{one['quality_seconds'] / figures['quality_seconds']:.2f}",
        )
    return table
