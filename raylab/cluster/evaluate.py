"""Scoring of models on generations of tasks: one Ray task per model and generation."""

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import ray
import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Task
from raylab.arc.records import EvaluationMetrics, RuleScores, rule_scores_file
from raylab.arc.scoring.evaluation import UnitScore, score_rules, score_tasks
from raylab.arc.scoring.files import (
    MissingUnits,
    UnitAccuracies,
    missing_units,
    read_accuracies,
    write_scores,
)
from raylab.arc.scoring.plan import (
    ModelOnGeneration,
    Scoring,
    plan_scoring,
)
from raylab.arc.trained_models import fetch_checkpoint
from raylab.cluster.metrics import PAIRS, TASKS, Meters
from raylab.cluster.session import cpus_per_worker, result_of, session, uses_gpu
from raylab.config.arc import DataConfig, ScoringConfig
from raylab.config.base import ClusterConfig, Generation
from raylab.config.jobs import EvaluateConfig
from raylab.grid_metrics import RULES
from raylab.log import log_line, log_tables
from raylab.report.progress import duration
from raylab.report.tables import accuracy_table, percent
from raylab.runs.run import SCORES, Run

HEARTBEAT_SECONDS = 30.0


def run_evaluate(config: EvaluateConfig, planned: Scoring) -> None:
    """Scores the models of `config` on its generations, leaving out finished scores.

    Args:
        config: Configuration of the job.
        planned: As `plan_evaluation` plans it.

    Raises:
        RaylabError: The evaluation failed for a reason that the user can act on.
    """
    run = planned.tree
    with session(config.cluster, run):
        metrics = _score(planned, config.cluster)
    run.write_record(metrics)
    log_tables(
        accuracy_table(metrics, config.scoring),
        metric=metrics.metric,
        models=metrics.models,
        rules=metrics.rules,
    )
    scores = str(run / SCORES)
    log_line(f"score tree {scores}", uri=scores)
    run.finish()


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

    Existing score files are kept. The rules that learn nothing are scored on the same pairs once;
    their scores lie beside the tree, not in it, because they are no models.

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
    return _score(plan_scoring(models, generations, data, scoring, tree, subdir), cluster)


def _score(planned: Scoring, cluster: ClusterConfig) -> EvaluationMetrics:
    """Scores what a plan lacks in the current Ray session; returns the means of all."""
    missing = missing_units(planned)
    accuracies = read_accuracies(planned, missing)
    if done := len(accuracies) - len(missing):
        log_line(
            f"{done} of {len(accuracies)} pairs of model and generation are scored already",
            done=done,
            total=len(accuracies),
        )
    if missing:
        _score_missing(planned, missing, cluster, accuracies)
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
        rules=_rules(planned).rules,
        by="pair" if planned.by_pair else "task",
    )


def _rules(scoring: Scoring) -> RuleScores:
    """Returns the scores of the rules that learn nothing, measured if that was not done before."""
    plan, tree, name = scoring.plan, scoring.tree, rule_scores_file(scoring.subdir)
    if known := tree.read_record(RuleScores, name):
        return known
    measure = ray.remote(_score_rules).options(num_cpus=1)
    units = scoring.unit_of_task(plan.units)
    pending = {
        generation: measure.remote(
            scoring.data(generation, plan.units), units, plan.scoring, scoring.seen
        )
        for generation in plan.generations
    }
    measured = {
        generation: cast("dict[str, float]", result_of(cast("Any", of), f"rules on {generation}"))
        for generation, of in pending.items()
    }
    rules = {rule: {name: of[rule] for name, of in measured.items()} for rule in RULES}
    scores = RuleScores(metric=plan.scoring.metric, rules=rules)
    tree.write_record(scores, name)
    return scores


def _score_rules(
    data: DataConfig,
    unit_of_task: Mapping[str, str],
    scoring: ScoringConfig,
    seen: frozenset[int],
) -> dict[str, float]:
    """Returns, as a Ray task, the mean accuracy of each rule on a generation."""
    torch.set_num_threads(1)
    return score_rules(_tasks_of(data.model_dump_json()), unit_of_task, scoring, seen)


def _score_missing(
    scoring: Scoring, missing: MissingUnits, cluster: ClusterConfig, accuracies: UnitAccuracies
) -> None:
    """Scores the missing units; writes the files of each pair as it ends, adds its accuracies."""
    pending = _submit(scoring, missing, cluster)
    start, total, meters = time.monotonic(), len(pending), Meters(scoring.tree.name)
    uri = str(scoring.tree / scoring.subdir)
    log_line(f"scoring {total} pairs of model and generation -> {uri}", total=total, uri=uri)
    try:
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=HEARTBEAT_SECONDS)
            elapsed = time.monotonic() - start
            if not ready:
                done = total - len(pending)
                message = f"  {done} of {total} done after {duration(elapsed)}"
                log_line(message, done=done, total=total, seconds=elapsed)
                continue
            pair = pending[ready[0]]
            try:
                scores, seconds = result_of(ready[0], f"scoring {pair[0]} on {pair[1]}")
            except Exception:
                meters.add(PAIRS, outcome="failed")
                raise
            del pending[ready[0]]
            accuracies[pair] |= write_scores(scoring, pair, scores)
            meters.add(PAIRS, outcome="scored")
            meters.add(TASKS, sum(len(scoring.plan.units[unit]) for unit in scores))
            done = total - len(pending)
            _log_pair(scoring.plan.scoring, pair, accuracies[pair], done, total, elapsed, seconds)
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


def _log_pair(
    scoring: ScoringConfig,
    pair: ModelOnGeneration,
    accuracies: Mapping[str, float],
    done: int,
    total: int,
    elapsed: float,
    seconds: float,
) -> None:
    mean, left = statistics.fmean(accuracies.values()), elapsed / done * (total - done)
    log_line(
        f"[{done:>{len(str(total))}}/{total}] {pair[0]} on {pair[1]}: {scoring.metric} "
        f"{percent(mean)} over {len(accuracies)} {scoring.unit}s, "
        f"{seconds:.1f} s, ETA {duration(left)}",
        done=done,
        total=total,
        eta_seconds=left,
        model=pair[0],
        generation=pair[1],
        accuracy=mean,
        seconds=seconds,
    )


def _submit(
    scoring: Scoring, missing: MissingUnits, cluster: ClusterConfig
) -> dict[ray.ObjectRef[Any], ModelOnGeneration]:
    alone = {"workers": 1, "cpus_per_worker": cluster.cpus_per_worker or 1}
    cluster = cluster.model_copy(update=alone)
    gpu = uses_gpu(cluster)
    placed = ray.remote(
        num_cpus=cpus_per_worker(cluster),
        num_gpus=int(gpu),
        max_retries=cluster.max_failures,
    )(_score_generation)
    models = sorted({model for model, _ in missing})
    stored = {model: ray.put(_checkpoint(scoring, model)) for model in models}
    pending: dict[ray.ObjectRef[Any], ModelOnGeneration] = {}
    for (model, generation), units in missing.items():
        reference = placed.remote(
            stored[model],
            scoring.data(generation, units),
            scoring.unit_of_task(units),
            scoring.plan.scoring,
            scoring.seen,
            gpu,
        )
        pending[reference] = model, generation
    return pending


def _checkpoint(scoring: Scoring, model: str) -> Checkpoint:
    read = scoring.checkpoints.get(model)
    return read or fetch_checkpoint(scoring.plan.models[model].checkpoint)


def _score_generation(
    checkpoint: Checkpoint,
    data: DataConfig,
    unit_of_task: Mapping[str, str],
    scoring: ScoringConfig,
    seen: frozenset[int],
    gpu: bool,
) -> tuple[dict[str, UnitScore], float]:
    """Returns, as a Ray task, the scores of a model on a generation and the seconds taken."""
    start = time.monotonic()
    torch.set_num_threads(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    device = torch.device("cuda" if gpu else "cpu")
    scores = score_tasks(
        checkpoint, _tasks_of(data.model_dump_json()), unit_of_task, scoring, device, seen
    )
    return scores, time.monotonic() - start


@lru_cache(maxsize=1)
def _tasks_of(data: str) -> tuple[Task, ...]:
    """Returns the tasks of a JSON configuration, cached for the next model in this process."""
    return load_tasks(DataConfig.model_validate_json(data))
