"""Scoring as ARC Prize does on Ray: a Ray task for each part of the tasks."""

from collections.abc import Generator
from contextlib import closing

import ray

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.prize.planning import MissingTasks
from raylab.arc.scoring.plan import ModelOnGeneration, Scoring
from raylab.cluster.metrics import TASKS, Meters
from raylab.cluster.session import session
from raylab.cluster.tasks import Pending, as_task, own_share, results, share_of_a_task
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
        self._cluster = share_of_a_task(cluster)
        self._meters = Meters(run)

    def solve(
        self, scoring: Scoring, missing: MissingTasks
    ) -> Generator[tuple[ModelOnGeneration, list[Solved]]]:
        """Answers all parts at once, as far as the cluster has room.

        Raises:
            RaylabError: A part failed, or its task was lost again and again.
        """
        with closing(results(self._submit(scoring, missing), "answers of")) as ends:
            for pair, answers in ends:
                yield pair, answers
                self._meters.add(TASKS, len(answers))

    def _submit(self, scoring: Scoring, missing: MissingTasks) -> Pending:
        placed = as_task(_solve, self._cluster)
        checkpoints = checkpoints_of(scoring, (model for model, _ in missing))
        stored = {model: ray.put(checkpoint) for model, checkpoint in checkpoints.items()}
        return {
            placed.remote(stored[pair[0]], pair, data, scoring.plan.scoring, scoring.seen): pair
            for pair, data in parts_of(scoring, missing)
        }


def _solve(
    checkpoint: Checkpoint,
    pair: ModelOnGeneration,
    data: DataConfig,
    scoring: ScoringConfig,
    seen: frozenset[int],
) -> list[Solved]:
    """Calls `solve` as a Ray task, on what the task was given."""
    return solve(checkpoint, pair, data, scoring, seen, *own_share())
