"""Trees to time the reading of scores on, and the plain loop that it is compared with."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from raylab.runs.eval_logs import EvalLog

MODELS = 50
GENERATIONS = 5
SMALL_FILES = 400
"""Files a generation without samples, about 2 kB each."""
LARGE_FILES = 8
"""Files a generation with samples, about 200 kB each."""
SMALL_BYTES = 2_000
LARGE_BYTES = 200_000
SAMPLE_BYTES = 2_000


def write_tree(root: Path, files: int, size: int) -> int:
    """Write score logs of every model and generation; returns how many files.

    Args:
        root: directory of the tree, which must not exist.
        files: files a generation.
        size: bytes of a file, about; what a header leaves of them is samples.
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
    """Mean accuracy of each model by one process that loads every file with `json.load`."""
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
    samples = max(size - SMALL_BYTES, 0) // SAMPLE_BYTES
    if samples:
        log["samples"] = [_sample(index) for index in range(samples)]
    return json.dumps(log, indent=2)


def _sample(index: int) -> dict[str, object]:
    """A question, the conversation about it and its score, of about SAMPLE_BYTES."""
    messages = [{"role": "user", "content": "word " * 28, "source": "input"} for _ in range(8)]
    return {
        "id": index,
        "epoch": 1,
        "input": f"question {index}",
        "target": "42",
        "messages": messages,
        "scores": {"match": {"value": "C", "answer": "42", "metadata": {"samples": [1, 2]}}},
    }
