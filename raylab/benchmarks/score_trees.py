"""Score trees of a benchmark, and the plain loop that reads them."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from raylab.runs.eval_logs import EvalLog

MODELS = 50
GENERATIONS = 5
SMALL_FILES = 400
"""Files per generation, without samples, of about 2 kB."""
LARGE_FILES = 8
"""Files per generation, with samples, of about 200 kB."""
SMALL_BYTES = 2_000
LARGE_BYTES = 200_000
SAMPLE_BYTES = 2_000


def write_tree(root: Path, files: int, size: int) -> int:
    """Writes the score logs of every model and generation; returns the number of files.

    Args:
        root: directory of the tree, which must not exist.
        files: files per generation.
        size: approximate bytes of a file; samples fill what the header leaves.
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
    samples = max(size - SMALL_BYTES, 0) // SAMPLE_BYTES
    if samples:
        log["samples"] = [_sample(index) for index in range(samples)]
    return json.dumps(log, indent=2)


def _sample(index: int) -> dict[str, object]:
    """Returns a question, the conversation about it and its score: about SAMPLE_BYTES."""
    messages = [{"role": "user", "content": "word " * 28, "source": "input"} for _ in range(8)]
    return {
        "id": index,
        "epoch": 1,
        "input": f"question {index}",
        "target": "42",
        "messages": messages,
        "scores": {"match": {"value": "C", "answer": "42", "metadata": {"samples": [1, 2]}}},
    }
