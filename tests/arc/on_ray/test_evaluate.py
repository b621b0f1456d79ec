"""Evaluation by Ray tasks, which leaves what one in the process of the job leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.evaluate import run as run_evaluate
from raylab.arc.config.sections import ScoringConfig, TaskTrainingConfig
from raylab.core.config.base import ClusterConfig
from raylab.core.runs.run import Run
from tests.arc.evaluation.models import evaluation, train_small

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


def test_tasks_that_are_trained_on_are_answered_alike_by_ray_tasks(tmp_path: Path):
    train_small(Run.at(f"{tmp_path}/one"))
    adapted = TaskTrainingConfig(steps=2, augmentations=2, keep=True)
    scoring = ScoringConfig(protocol="arc", metric="two_attempts", test_time_training=adapted)

    def answers(name: str, **cluster: Any) -> dict[str, Any]:
        changes = {"models": ("one",), "generations": ("published",), "scoring": scoring}
        run_evaluate(evaluation(tmp_path, name, cluster=ClusterConfig(**cluster), **changes))
        files = (tmp_path / name / "answers/one/published").iterdir()
        return {path.stem: json.loads(path.read_text())["questions"] for path in files}

    there = answers("arc", workers=2)
    # With the threads that a Ray task has.
    assert len(there) == 2 and there == answers("here", cpus_per_worker=1)
    kept = tmp_path / "arc/specialists/one/published"
    assert {path.stem for path in kept.iterdir()} == there.keys()
