"""Scoring as ARC Prize does on Ray: a Ray task for each part of the tasks."""

from collections.abc import Generator
from typing import Any, cast

import ray
import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.prize.planning import MissingTasks
from raylab.arc.scoring.plan import ModelOnGeneration, Scoring
from raylab.cluster.metrics import TASKS, Meters
from raylab.cluster.session import cpus_per_worker, result_of, session, uses_gpu
from raylab.config.arc import DataConfig, ScoringConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import EvaluateConfig
from raylab.evaluation.prize import Solved, conclude, parts_of, read_answers, solve, solve_plan
from raylab.evaluation.scores import checkpoints_of


def run_prize(config: EvaluateConfig, planned: Scoring) -> None:
    """Answers and scores on Ray what the run of a plan lacks.

    Raises:
        RaylabError: It failed for a reason that the user can act on.
    """
    with session(config.cluster, planned.tree):
        solve_plan(planned, RaySolver(config.cluster, planned.tree.name))
    conclude(planned, read_answers(planned))


class RaySolver:
    """A solver by Ray tasks in the current session; see `raylab.evaluation.prize.Solver`."""

    def __init__(self, cluster: ClusterConfig, run: str) -> None:
        """Takes the share of a task of the cluster; counts as metrics of `run`."""
        alone = {"workers": 1, "cpus_per_worker": cluster.cpus_per_worker or 1}
        self._cluster = cluster.model_copy(update=alone)
        self._meters = Meters(run)

    def solve(
        self, scoring: Scoring, missing: MissingTasks
    ) -> Generator[tuple[ModelOnGeneration, list[Solved]]]:
        """Answers all parts at once, as far as the cluster has room.

        Raises:
            RaylabError: A part failed, or its task was lost again and again.
        """
        pending = self._submit(scoring, missing)
        try:
            while pending:
                (ready,), _ = ray.wait(list(pending), num_returns=1)
                pair = pending[ready]
                answers = result_of(ready, f"answers of {pair[0]} on {pair[1]}")
                del pending[ready]
                yield pair, cast("list[Solved]", answers)
                self._meters.add(TASKS, len(answers))
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)

    def _submit(
        self, scoring: Scoring, missing: MissingTasks
    ) -> dict[ray.ObjectRef[Any], ModelOnGeneration]:
        gpu = uses_gpu(self._cluster)
        placed = ray.remote(
            num_cpus=cpus_per_worker(self._cluster),
            num_gpus=int(gpu),
            max_retries=self._cluster.max_failures,
        )(_solve)
        checkpoints = checkpoints_of(scoring, (model for model, _ in missing))
        stored = {model: ray.put(checkpoint) for model, checkpoint in checkpoints.items()}
        return {
            placed.remote(
                stored[pair[0]], pair, data, scoring.plan.scoring, scoring.seen, gpu
            ): pair
            for pair, data in parts_of(scoring, missing)
        }


def _solve(
    checkpoint: Checkpoint,
    pair: ModelOnGeneration,
    data: DataConfig,
    scoring: ScoringConfig,
    seen: frozenset[int],
    gpu: bool,
) -> list[Solved]:
    """Calls `solve` as a Ray task, on what the task was given."""
    threads = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1))
    device = torch.device("cuda" if gpu else "cpu")
    return solve(checkpoint, pair, data, scoring, seen, device, threads)
