"""Scoring of models on generations of tasks, wherever `Workers` do it.

A unit of work is one model on one generation. Its files are written when it ends, so a run that is
killed goes on with the next.
"""

import statistics
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import lru_cache
from typing import Any

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Task
from raylab.arc.device import use_share
from raylab.arc.records import EvaluationMetrics, RuleScores, rule_scores_file
from raylab.arc.scoring.evaluation import UnitScore, score_rules, score_tasks
from raylab.arc.scoring.files import (
    Missing,
    UnitAccuracies,
    missing_units,
    read_accuracies,
    write_scores,
)
from raylab.arc.scoring.plan import ModelOnGeneration, Scoring, read_models
from raylab.config.arc import DataConfig, ScoringConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import EvaluateConfig
from raylab.grid_metrics import RULES
from raylab.log import log_line
from raylab.printable import pluralize
from raylab.report.prize import accuracy_table
from raylab.report.table import percent, print_tables
from raylab.report.work import watch
from raylab.runs.run import SCORES
from raylab.tracking import track
from raylab.workers import Workers

PairScores = tuple[dict[str, UnitScore], float]
"""The scores of a model on a generation by unit, and the seconds that they took."""
RuleMeans = dict[str, float]
"""The mean accuracy of each rule on a generation."""


def run_evaluate(config: EvaluateConfig, planned: Scoring, workers: Workers) -> None:
    """Scores the models of `config`, leaving out finished scores; writes and prints the metrics.

    Args:
        config: Configuration of the job.
        planned: As `plan_evaluation` plans it.
        workers: Where models are scored.

    Raises:
        RaylabError: The evaluation failed for a reason that the user can act on.
    """
    run, metrics = planned.tree, score_plan(planned, workers)
    run.write_record(metrics)
    track(config.tracking, run, 0, _figures(metrics))
    print_tables(
        accuracy_table(metrics, config.scoring),
        metric=metrics.metric,
        models=metrics.models,
        rules=metrics.rules,
    )
    scores = str(run / SCORES)
    log_line(f"score tree {scores}", uri=scores)
    run.finish()


def _figures(metrics: EvaluationMetrics) -> dict[str, float]:
    return {f"{k}/{name}": v for k, of in metrics.models.items() for name, v in of.items()}


def score_plan(planned: Scoring, workers: Workers) -> EvaluationMetrics:
    """Scores what a plan lacks; returns the means of all.

    The rules that learn nothing are scored on the same pairs once; their scores lie beside the
    tree, not in it, because they are no models.

    Raises:
        RaylabError: The scoring failed for a reason that the user can act on.
    """
    missing = missing_units(planned)
    accuracies = read_accuracies(planned, missing)
    if done := len(accuracies) - len(missing):
        log_line(
            f"{done} of {len(accuracies)} pairs of model and generation are scored already",
            done=done,
            total=len(accuracies),
        )
    if missing:
        _score_missing(planned, missing, workers, accuracies)
    means = {
        model: {
            name: statistics.fmean(accuracies[model, name].values())
            for name in planned.plan.generations
        }
        for model in planned.plan.models
    }
    return EvaluationMetrics(
        metric=planned.plan.scoring.metric,
        models=means,
        rules=_rules(planned, workers).rules,
        by="pair" if planned.by_pair else "task",
    )


def _rules(scoring: Scoring, workers: Workers) -> RuleScores:
    """Returns the scores of the rules that learn nothing, measured if that was not done before."""
    tree, plan, name = scoring.tree, scoring.plan, rule_scores_file(scoring.subdir)
    if (before := tree.read_record(RuleScores, name)) is not None:
        return before
    units = scoring.unit_of_task(plan.units)
    what = units, plan.scoring, scoring.seen, workers.share
    calls = {name: (scoring.data(name, plan.units), *what) for name in plan.generations}
    measured: dict[str, RuleMeans] = {}
    with watch(len(calls), "generations answered by rules") as progress:
        for generation, means in workers.run(rules_on, calls):
            measured[generation] = means
            progress.end(1)
    rules = {rule: {name: measured[name][rule] for name in plan.generations} for rule in RULES}
    scores = RuleScores(metric=plan.scoring.metric, rules=rules)
    tree.write_record(scores, name)
    return scores


def _score_missing(
    scoring: Scoring, missing: Missing, workers: Workers, accuracies: UnitAccuracies
) -> None:
    """Scores the missing units; writes the files of each pair as it ends, adds its accuracies."""
    total, uri = len(missing), str(scoring.tree / scoring.subdir)
    log_line(f"scoring {total} pairs of model and generation -> {uri}", total=total, uri=uri)
    calls = _calls(scoring, missing, workers)
    ends = workers.run(score_generation, calls)
    with watch(total, "pairs of model and generation") as progress, closing(ends):
        for pair, (scores, seconds) in ends:
            accuracies[pair] |= write_scores(scoring, pair, scores)
            mean, units = statistics.fmean(accuracies[pair].values()), len(accuracies[pair])
            progress.end(
                1,
                _describe(scoring.plan.scoring, pair, mean, units, seconds),
                model=pair[0],
                generation=pair[1],
                accuracy=mean,
                seconds=seconds,
            )
            workers.count("pairs", 1)
            workers.count("tasks", sum(len(scoring.plan.units[unit]) for unit in scores))


def _calls(
    scoring: Scoring, missing: Missing, workers: Workers
) -> dict[ModelOnGeneration, tuple[Any, ...]]:
    """Returns the arguments of `score_generation` for what is missing."""
    checkpoints = checkpoints_of(scoring, (model for model, _ in missing))
    shared = {model: workers.put(checkpoint) for model, checkpoint in checkpoints.items()}
    return {
        (model, generation): (
            shared[model],
            scoring.data(generation, units),
            scoring.unit_of_task(units),
            scoring.plan.scoring,
            scoring.seen,
            workers.share,
        )
        for (model, generation), units in missing.items()
    }


def _describe(
    scoring: ScoringConfig, pair: ModelOnGeneration, accuracy: float, units: int, seconds: float
) -> str:
    scored = f"{scoring.metric} {percent(accuracy)} over {pluralize(units, scoring.unit)}"
    return f"{pair[0]} on {pair[1]}: {scored}, {seconds:.1f} s"


def checkpoints_of(scoring: Scoring, models: Iterable[str]) -> dict[str, Checkpoint]:
    """Returns the checkpoints of models, by name; reads those that planning did not.

    Raises:
        CheckpointError: One cannot be used.
    """
    wanted, plan = sorted(set(models)), scoring.plan
    unread = [model for model in wanted if model not in scoring.checkpoints]
    uris = {model: plan.models[model].checkpoint for model in unread}
    checkpoints = {**scoring.checkpoints, **read_models(uris, plan.scoring)}
    return {model: checkpoints[model] for model in wanted}


def score_generation(
    checkpoint: Checkpoint,
    data: DataConfig,
    unit_of_task: Mapping[str, str],
    scoring: ScoringConfig,
    seen: frozenset[int],
    share: ClusterConfig,
) -> PairScores:
    """Scores a model on a generation, in the process that calls.

    Args:
        checkpoint: The model.
        data: The tasks of the generation.
        unit_of_task: The unit of each task.
        scoring: The metric and the way of scoring.
        seen: Fingerprints of the pairs that are not scored.
        share: The CPUs and the GPU to use.

    Raises:
        RaylabError: The tasks or the checkpoint cannot be used.
    """
    start, device = time.monotonic(), use_share(share)
    scores = score_tasks(checkpoint, _tasks_of(data), unit_of_task, scoring, device, seen)
    return scores, time.monotonic() - start


def rules_on(
    data: DataConfig,
    unit_of_task: Mapping[str, str],
    scoring: ScoringConfig,
    seen: frozenset[int],
    share: ClusterConfig,
) -> RuleMeans:
    """Returns the mean accuracy of each rule on a generation; arguments as `score_generation`.

    Raises:
        DataError: The tasks cannot be used.
    """
    use_share(share)
    return score_rules(_tasks_of(data), unit_of_task, scoring, seen)


def _tasks_of(data: DataConfig) -> tuple[Task, ...]:
    return _loaded(data.model_dump_json())


@lru_cache(maxsize=1)
def _loaded(data: str) -> tuple[Task, ...]:
    """Returns the tasks of a JSON configuration, cached for the next model in this process."""
    return load_tasks(DataConfig.model_validate_json(data))
