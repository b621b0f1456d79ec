"""Score trees on disk, and runs that measure them."""

import json
from pathlib import Path
from typing import Any

from jobs.quality import run as run_quality
from raylab.benchmark.config import QualityConfig
from raylab.core.runs.run import Run

SCORES = {"m1": {"g1": [0.5, 0.7], "g2": [1.0, 1.0]}, "m2": {"g1": [0.2, 0.2], "g2": [0.4, 0.4]}}
"""Generation means .6 1 and .2 .4, so accuracies .8 and .3."""


def write(path: Path, accuracy: float | None) -> Path:
    """A score log; without an accuracy it is one of a failed evaluation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scores = [{"metrics": {"accuracy": {"value": accuracy}}}]
    status = "error" if accuracy is None else "success"
    path.write_text(json.dumps({"status": status, "results": {"scores": scores}}))
    return path


def write_scores(root: Path, scores: dict[str, dict[str, list[float]]]) -> Path:
    for model, generations in scores.items():
        for generation, accuracies in generations.items():
            for index, accuracy in enumerate(accuracies):
                write(root / model / generation / f"{index}.json", accuracy)
    return root


def measure(storage: Path, name: str = "q", **keys: Any) -> Run:
    """The run of jobs/quality.py with these keys."""
    run_quality(QualityConfig(storage=str(storage), name=name, **keys))
    return Run.at(str(storage / name))
