"""Evaluation by Ray tasks, which leaves what one in the process of the job leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.evaluate import run as run_evaluate
from raylab.config.arc import ScoringConfig, TaskTrainingConfig
from raylab.config.base import ClusterConfig
from tests.cluster.scrape import exported
from tests.evaluation.models import evaluation, train_two

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

ON_RAY = ClusterConfig(workers=2)
HERE = ClusterConfig(cpus_per_worker=1)
"""With the threads that a Ray task has."""


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_two(tmp_path_factory.mktemp("runs"))


def figures_in(tree: Path) -> dict[str, Any]:
    """The metrics of a run and of its score files."""
    return {
        str(path.relative_to(tree)): json.loads(path.read_text())["results"]
        for path in (tree / "scores").rglob("*.json")
    } | {
        name: {key: value for key, value in json.loads((tree / name).read_text()).items()}
        for name in ("metrics.json", "scores-rules.json", "scores.json")
    }


def test_scores_are_those_of_one_process_and_ray_exports_what_was_scored(storage: Path):
    run_evaluate(evaluation(storage, "here", cluster=HERE))
    run_evaluate(evaluation(storage, "scored", cluster=ON_RAY))
    assert figures_in(storage / "scored") == figures_in(storage / "here")
    pairs, tasks = (f"ray_raylab_evaluation_{name}_total" for name in ("pairs", "tasks"))
    # Two models on two generations of two tasks.
    exported("scored", {pairs: 4, tasks: 8})


def test_tasks_that_are_trained_on_are_answered_alike_by_ray_tasks(storage: Path):
    scoring = ScoringConfig(
        protocol="arc",
        metric="two_attempts",
        test_time_training=TaskTrainingConfig(steps=2, rank=2, augmentations=2, keep=True),
    )
    changes = {"models": ("one",), "generations": ("published",), "scoring": scoring}
    run_evaluate(evaluation(storage, "arc-here", cluster=HERE, **changes))
    run_evaluate(evaluation(storage, "arc", cluster=ON_RAY, **changes))
    here, there = (
        {
            path.stem: json.loads(path.read_text())["questions"]
            for path in (storage / name / "answers/one/published").iterdir()
        }
        for name in ("arc-here", "arc")
    )
    assert len(there) == 2 and there == here
    kept = storage / "arc/specialists/one/published"
    assert {path.stem for path in kept.iterdir()} == there.keys()
