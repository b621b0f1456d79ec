"""Scoring of models on generations of tasks: one Ray task per model and generation."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import ray

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.records import EvaluationMetrics
from raylab.arc.scoring.files import MissingUnits
from raylab.arc.scoring.plan import ModelOnGeneration, Scoring, plan_scoring
from raylab.cluster.metrics import PAIRS, TASKS, Meters
from raylab.cluster.session import result_of, session
from raylab.cluster.tasks import Pending, as_task, own_share, results, share_of_a_task
from raylab.config.arc import DataConfig, ScoringConfig
from raylab.config.base import ClusterConfig, Generation
from raylab.config.jobs import EvaluateConfig
from raylab.evaluation.scores import (
    PairScores,
    RuleMeans,
    checkpoints_of,
    conclude,
    rules_on,
    score_generation,
    score_plan,
)
from raylab.runs.run import SCORES, Run


def run_evaluate(config: EvaluateConfig, planned: Scoring) -> None:
    """Scores the models of `config` on Ray, leaving out finished scores.

    Args:
        config: Configuration of the job.
        planned: As `plan_evaluation` plans it.

    Raises:
        RaylabError: The evaluation failed for a reason that the user can act on.
    """
    run = planned.tree
    with session(config.cluster, run):
        metrics = score_plan(planned, RayScorer(config.cluster, run.name))
    conclude(config, planned, metrics)


def evaluate_models(
    models: Mapping[str, str],
    generations: Sequence[Generation],
    data: DataConfig,
    scoring: ScoringConfig,
    cluster: ClusterConfig,
    tree: Run,
    subdir: str = SCORES,
) -> EvaluationMetrics:
    """Scores every model on every generation in the current Ray session.

    Existing score files are kept.

    Args:
        models: Checkpoint file of each model, a path or URI, by its name in the tree.
        generations: As in `EvaluateConfig`.
        data: The tasks.
        scoring: The unit of a file and the metric that is its accuracy.
        cluster: CPUs of a Ray task (1 by default), GPU, and number of deaths to recover from.
        tree: The run that the scores belong to.
        subdir: Directory of the tree within the run.

    Raises:
        DataError: The tasks cannot be used, or none is left to score.
        CheckpointError: A checkpoint cannot be read, or does not record what it was trained on.
        RunError: The tree holds scores of other checkpoints or settings, or scoring failed.
        ConfigError: The generations or the cluster cannot be used.
    """
    planned = plan_scoring(models, generations, data, scoring, tree, subdir)
    return score_plan(planned, RayScorer(cluster, tree.name))


class RayScorer:
    """A scorer by Ray tasks in the current session; see `raylab.evaluation.scores.Scorer`."""

    def __init__(self, cluster: ClusterConfig, run: str) -> None:
        """Takes the share of a task of the cluster; counts as metrics of `run`."""
        self._cluster = share_of_a_task(cluster)
        self._meters = Meters(run)

    def score(
        self, scoring: Scoring, missing: MissingUnits
    ) -> Generator[tuple[ModelOnGeneration, PairScores]]:
        """Scores all pairs at once, as far as the cluster has room.

        Raises:
            RaylabError: A pair failed, or its task was lost again and again.
        """
        with closing(results(self._submit(scoring, missing), "scoring")) as ends:
            try:
                for pair, (scores, seconds) in ends:
                    yield pair, (scores, seconds)
                    self._meters.add(PAIRS, outcome="scored")
                    self._meters.add(TASKS, sum(len(scoring.plan.units[unit]) for unit in scores))
            except Exception:
                self._meters.add(PAIRS, outcome="failed")
                raise

    def score_rules(self, scoring: Scoring) -> dict[str, RuleMeans]:
        """Scores the rules on all generations at once.

        Raises:
            RaylabError: The tasks cannot be used, or a Ray task was lost.
        """
        plan = scoring.plan
        measure = ray.remote(rules_on).options(num_cpus=1)
        units = scoring.unit_of_task(plan.units)
        pending = {
            generation: measure.remote(
                scoring.data(generation, plan.units), units, plan.scoring, scoring.seen, 1
            )
            for generation in plan.generations
        }
        return {
            generation: cast("RuleMeans", result_of(cast("Any", of), f"rules on {generation}"))
            for generation, of in pending.items()
        }

    def _submit(self, scoring: Scoring, missing: MissingUnits) -> Pending:
        placed = as_task(_score_generation, self._cluster)
        checkpoints = checkpoints_of(scoring, (model for model, _ in missing))
        stored = {model: ray.put(checkpoint) for model, checkpoint in checkpoints.items()}
        pending: Pending = {}
        for (model, generation), units in missing.items():
            reference = placed.remote(
                stored[model],
                scoring.data(generation, units),
                scoring.unit_of_task(units),
                scoring.plan.scoring,
                scoring.seen,
            )
            pending[reference] = model, generation
        return pending


def _score_generation(
    checkpoint: Checkpoint,
    data: DataConfig,
    unit_of_task: Mapping[str, str],
    scoring: ScoringConfig,
    seen: frozenset[int],
) -> PairScores:
    """Calls `score_generation` as a Ray task, on what the task was given."""
    return score_generation(checkpoint, data, unit_of_task, scoring, seen, *own_share())
