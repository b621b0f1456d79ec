"""Speed of reading score trees on Ray, compared with a plain loop over the same files."""

import contextlib
import io
import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from raylab.benchmark.config import Layout, QualityConfig
from raylab.benchmark.logs.trees import find_trees
from raylab.benchmark.run import measure_trees
from raylab.core.config.base import ClusterConfig
from raylab.core.on_ray.session import session
from raylab.core.on_ray.workers import RayWorkers
from raylab.core.runs.eval_logs import EvalLog
from raylab.together.config import BenchmarkConfig
from raylab.together.speed.figures import Compare, benchmark, rate

MODELS = 50
GENERATIONS = 5
SMALL_BYTES = 2_000
"""Bytes of a file without samples."""
SAMPLE_BYTES = 2_000
SHAPES = {"small": (400, SMALL_BYTES), "large": (8, 200_000)}
"""Files per generation, and bytes per file."""


def benchmark_quality(config: BenchmarkConfig) -> None:
    """Times both ways on two trees, prints the rates and writes `metrics.json`.

    Before the clock starts, the files are in the page cache, and Ray's workers have done their
    imports. On Ray it times a whole measurement with intervals; the plain loop only averages.
    """
    conditions = (
        f"Reading scores of {MODELS * GENERATIONS} directories on Ray, {os.cpu_count()} CPUs, "
        "against a plain loop"
    )
    with (
        benchmark(config, "files/s", conditions) as compare,
        session(ClusterConfig()),
        tempfile.TemporaryDirectory() as directory,
    ):
        for size, shape in SHAPES.items():
            root = Path(directory, size)
            written = write_tree(root, *shape)
            _measure(root)  # warms up workers and the page cache
            _compare(compare, f"{written:,} {size} files", root, written)


def _compare(compare: Compare, name: str, root: Path, written: int) -> None:
    """Times a measurement and the plain loop on a tree."""

    def measure() -> int:
        _measure(root)
        return written

    def average() -> int:
        plain_means(root)
        return written

    compare(name, lambda _: rate(measure), lambda _: rate(average))


def _measure(root: Path) -> None:
    # Lines of progress would be between those of the rounds.
    with contextlib.redirect_stdout(io.StringIO()):
        trees = find_trees(str(root), (), Layout.AUTO)
        workers = RayWorkers(ClusterConfig().without_gpu)
        measure_trees(trees, QualityConfig(), workers)


def write_tree(root: Path, files: int, size: int) -> int:
    """Writes the score logs of every model and generation; returns the number of files.

    `files` is their number per generation, and `size` their approximate bytes: samples fill what
    the header leaves.
    """
    created = datetime.now(UTC).isoformat()
    for model in range(MODELS):
        for generation in range(GENERATIONS):
            directory = root / f"model-{model:02d}" / f"generation-{generation}"
            directory.mkdir(parents=True)
            for task in range(files):
                accuracy = (7 * model + 3 * generation + 11 * task) % 101 / 100
                text = _log(f"model-{model:02d}", f"task-{task:04d}", accuracy, created, size)
                (directory / f"task-{task:04d}.json").write_text(text, encoding="utf-8")
    return MODELS * GENERATIONS * files


def plain_means(root: Path) -> dict[str, float]:
    """Returns the mean accuracy of each model, loading every file with `json.load`."""
    means: dict[str, float] = {}
    for model in sorted(os.listdir(root)):
        generations: list[float] = []
        for generation in sorted(os.listdir(root / model)):
            accuracies: list[float] = []
            for directory, _, names in os.walk(root / model / generation):
                for name in names:
                    with open(os.path.join(directory, name), encoding="utf-8") as file:
                        log = json.load(file)
                    accuracies.append(log["results"]["scores"][0]["metrics"]["accuracy"]["value"])
            generations.append(sum(accuracies) / len(accuracies))
        means[model] = sum(generations) / len(generations)
    return means


def _log(model: str, task: str, accuracy: float, created: str, size: int) -> str:
    log = EvalLog(
        model=model,
        task=task,
        dataset="benchmark",
        samples=100,
        metrics={"accuracy": accuracy, "stderr": 0.01},
        created=created,
        metadata={"prompt": "p" * (SMALL_BYTES - 900)},
    ).content()
    # A question, the conversation about it and its score: about SAMPLE_BYTES.
    messages = [{"role": "user", "content": "word " * 28, "source": "input"} for _ in range(8)]
    score = {"value": "C", "answer": "42", "metadata": {"samples": [1, 2]}}
    sample = {"epoch": 1, "target": "42", "messages": messages, "scores": {"match": score}}
    if samples := max(size - SMALL_BYTES, 0) // SAMPLE_BYTES:
        log["samples"] = [
            {"id": index, "input": f"question {index}", **sample} for index in range(samples)
        ]
    return json.dumps(log, indent=2)
