"""Scoring of models on generations of tasks by `Workers`.

A call scores one model on some units of one generation. Its files are written when it ends, so that
a killed run continues with the others.
"""

from collections.abc import Callable, Collection
from contextlib import closing
from typing import Any

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.device import use_share
from raylab.arc.grid_metrics import RULES
from raylab.arc.pages.prize import accuracy_table
from raylab.arc.records import EvaluationMetrics, RuleScores, rule_scores_file
from raylab.arc.scoring.evaluation import UnitScore, score_rules, score_tasks
from raylab.arc.scoring.files import Missing, missing_units, read_accuracy, write_scores
from raylab.arc.scoring.plan import ModelOnGeneration, ScorePlan, Scoring, read_models
from raylab.benchmark.run import diagnose_scores
from raylab.core.config.base import ClusterConfig
from raylab.core.live import watch
from raylab.core.log import log_line
from raylab.core.page.table import percent, print_tables
from raylab.core.printable import pluralize
from raylab.core.workers import Workers

PAIRS = "pairs of model and generation"
Keep = Callable[[ModelOnGeneration, Any], str]
"""Writes the files of a result; returns a message."""


def run_evaluate(planned: Scoring, workers: Workers) -> None:
    """Computes the missing scores of a plan; writes and prints the metrics."""
    run, metrics = planned.tree, score_plan(planned, workers)
    run.write_record(metrics)
    print_tables(
        accuracy_table(metrics, planned.plan.scoring),
        metric=metrics.metric,
        models=metrics.models,
        rules=metrics.rules,
    )
    scores = str(run / planned.subdir)
    log_line(f"score tree {scores}", uri=scores)
    diagnose_scores(run, planned.subdir, workers)
    run.finish()


def score_plan(planned: Scoring, workers: Workers) -> EvaluationMetrics:
    """Scores the missing units of a plan; returns the means of all.

    The rules that learn nothing are scored once on the same pairs. Rules are no models, so their
    scores are stored beside the tree.
    """
    plan, metric = planned.plan, planned.plan.scoring.metric
    missing = missing_units(planned, planned.subdir, plan.units)
    means = {pair: read_accuracy(planned, pair) for pair in plan.pairs if pair not in missing}

    def keep(pair: ModelOnGeneration, scores: dict[str, UnitScore]) -> str:
        write_scores(planned, pair, scores)
        means[pair] = read_accuracy(planned, pair)
        units = pluralize(len(plan.units), plan.scoring.unit)
        return f"{metric} {percent(means[pair])} over {units}"

    run_calls(planned, workers, missing, score_generation, plan, keep)
    return EvaluationMetrics(
        metric=metric,
        models={m: {name: means[m, name] for name in plan.generations} for m in plan.models},
        rules=_score_rules(planned).rules,
        by="pair" if plan.by_pair else "task",
    )


def run_calls(
    planned: Scoring,
    workers: Workers,
    missing: Missing,
    function: Callable[..., Any],
    common: Any,
    keep: Keep,
    size: int | None = None,
) -> None:
    """Calls a function for missing units or tasks, and keeps each result as it arrives.

    The function takes `common`, a pair of model and generation, its units or tasks, the checkpoint
    and the share of the machine. With a `size`, a call has at most so many tasks, and they are
    counted; otherwise it has all units of a pair, and pairs are counted.
    """
    total = len(planned.plan.pairs) * (len(planned.plan.unit_of_task) if size else 1)
    left = sum(map(len, missing.values())) if size else len(missing)
    noun, verb = ("tasks", "answer") if size else (PAIRS, "scor")
    if done := total - left:
        log_line(f"{done} of {total} {noun} are {verb}ed already", done=done, total=total)
    if not missing:
        return
    log_line(f"{verb}ing {left} {noun} -> {planned.tree}", total=left, uri=str(planned.tree))
    # Planning may have read the checkpoints already.
    uris = {model: planned.models[model] for model, _ in missing}
    checkpoints = planned.checkpoints or read_models(uris, planned.plan.scoring)
    models = {model: workers.put(checkpoints[model]) for model in uris}
    shared = workers.put(common)
    calls = {
        (pair, chunk): (shared, pair, chunk, models[pair[0]], workers.share)
        for pair, units in missing.items()
        for step in (size or len(units),)
        for chunk in (units[start : start + step] for start in range(0, len(units), step))
    }
    ends = workers.run(function, calls)
    with watch(left, noun, parts=len(calls)) as progress, closing(ends):
        for ((model, generation), units), result in ends:
            message = f"{model} on {generation}: {keep((model, generation), result)}"
            done = len(units) if size else 1
            progress.end(done, message, model=model, generation=generation)


def score_generation(
    plan: ScorePlan,
    pair: ModelOnGeneration,
    units: Collection[str],
    checkpoint: Checkpoint,
    share: ClusterConfig,
) -> dict[str, UnitScore]:
    """Scores a model on units of a generation in this process."""
    device = use_share(share)
    unit_of = {task: unit for task, unit in plan.unit_of_task.items() if unit in units}
    tasks = [task for task in plan.tasks_in(pair[1]) if task.id in unit_of]
    return score_tasks(checkpoint, tasks, unit_of, plan.scoring, device, plan.seen)


def _score_rules(planned: Scoring) -> RuleScores:
    """Returns the scores of the rules that learn nothing; measures them once."""
    tree, plan, name = planned.tree, planned.plan, rule_scores_file(planned.subdir)
    if (before := tree.read_record(RuleScores, name)) is not None:
        return before
    metric, measured = plan.scoring.metric, dict[str, dict[str, float]]()
    with watch(len(plan.generations), "generations answered by rules") as progress:
        for generation in plan.generations:
            tasks = plan.tasks_in(generation)
            measured[generation] = score_rules(tasks, plan.unit_of_task, metric, plan.seen)
            progress.end(1, f"rules on {generation} scored")
    rules = {rule: {name: measured[name][rule] for name in plan.generations} for rule in RULES}
    scores = RuleScores(metric=metric, rules=rules)
    tree.write_record(scores, name)
    return scores
