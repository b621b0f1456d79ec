"""Scoring of models on generations of tasks by `Workers`, and the files of a score tree.

A call scores one model on some units of one generation. Its files are written when it ends, so that
a killed run continues with the others.
"""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, TypeVar

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.device import use_share
from raylab.arc.grid_metrics import BASELINES
from raylab.arc.pages.prize import accuracy_table
from raylab.arc.records import BaselineScores, EvaluationMetrics, baseline_scores_file
from raylab.arc.scoring.evaluation import UnitScore, score_baselines, score_tasks
from raylab.arc.scoring.plan import ModelOnGeneration, ScorePlan, Scoring, read_models, unit_file
from raylab.benchmark.run import diagnose_scores
from raylab.core.config.base import ClusterConfig
from raylab.core.errors import RunError
from raylab.core.live import watch
from raylab.core.log import log_line
from raylab.core.page.table import percent, print_tables
from raylab.core.printable import pluralize
from raylab.core.runs.eval_logs import EvalLog, read_score
from raylab.core.workers import Workers

Keep = Callable[[ModelOnGeneration, Any], str]
"""Writes the files of a result; returns a message."""
FILE_THREADS = 16
R = TypeVar("R")
Missing = Mapping[ModelOnGeneration, tuple[str, ...]]
"""Units or tasks without a file, by incomplete pair of model and generation."""


def run_evaluate(planned: Scoring, workers: Workers) -> None:
    """Computes the missing scores of a plan; writes and prints the metrics."""
    run, metrics = planned.tree, score_plan(planned, workers)
    run.write_record(metrics)
    print_tables(
        accuracy_table(metrics, planned.plan.scoring),
        metric=metrics.metric,
        models=metrics.models,
        baselines=metrics.baselines,
    )
    scores = str(run / planned.subdir)
    log_line(f"score tree {scores}", uri=scores)
    diagnose_scores(run, planned.subdir, workers)
    run.finish()


def score_plan(planned: Scoring, workers: Workers) -> EvaluationMetrics:
    """Scores the missing units of a plan; returns the means of all.

    The baselines are scored once on the same pairs. They are no models, so their
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
    name = baseline_scores_file(planned.subdir)
    if (baselines := planned.tree.read_record(BaselineScores, name)) is None:
        measured: dict[str, dict[str, float]] = {baseline: {} for baseline in BASELINES}
        with watch(len(plan.generations), "generations answered by baselines") as progress:
            for generation in plan.generations:
                tasks = plan.tasks_in(generation)
                scores = score_baselines(tasks, plan.unit_of_task, metric, plan.seen)
                for baseline, score in scores.items():
                    measured[baseline][generation] = score
                progress.end(1, f"baselines on {generation} scored")
        baselines = BaselineScores(metric=metric, baselines=measured)
        planned.tree.write_record(baselines, name)
    return EvaluationMetrics(
        metric=metric,
        models={m: {name: means[m, name] for name in plan.generations} for m in plan.models},
        baselines=baselines.baselines,
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
    noun, verb = ("tasks", "answer") if size else ("pairs of model and generation", "scor")
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
    # An error in `keep` ends the calls that still run.
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


def in_threads(function: Callable[..., R], *arguments: Iterable[Any]) -> list[R]:
    """Returns the results of a function that reads or writes a file, in the order of the calls."""
    with ThreadPoolExecutor(FILE_THREADS) as threads:
        return list(threads.map(function, *arguments))


def missing_units(scoring: Scoring, folder: str, units: Iterable[str]) -> Missing:
    """Returns the units or tasks that have no file in a folder of the run."""
    tree, units = scoring.tree, tuple(units)
    # One listing, since object storage answers a question about each file slowly.
    present = {file.path for file in (tree / folder).files("**/*.json")}
    missing = {
        pair: tuple(u for u in units if (tree / unit_file(folder, pair, u)).path not in present)
        for pair in scoring.plan.pairs
    }
    return {pair: lacking for pair, lacking in missing.items() if lacking}


def read_accuracy(scoring: Scoring, pair: ModelOnGeneration) -> float:
    """Returns the mean accuracy of a pair over the files of all its units."""

    def read(unit: str) -> float:
        place = scoring.tree / unit_file(scoring.subdir, pair, unit)
        with place.reader() as file:
            accuracy = read_score(file, place.name)
        if isinstance(accuracy, str):
            raise RunError(
                f"{place} cannot be used ({accuracy}): remove it, and resume=true writes it again"
            )
        return accuracy

    return statistics.fmean(in_threads(read, scoring.plan.units))


def write_scores(
    scoring: Scoring, pair: ModelOnGeneration, scores: Mapping[str, UnitScore]
) -> None:
    """Writes a file for each unit."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    plan, metric = scoring.plan, scoring.plan.scoring.metric

    def write(unit: str, score: UnitScore) -> None:
        errors = {f"{name}_stderr": error for name, error in score.standard_errors.items()}
        # Readers of score trees look for the names `accuracy` and `stderr`.
        metrics = {"accuracy": score.metrics[metric], **score.metrics, **errors}
        if metric in score.standard_errors:
            metrics["stderr"] = score.standard_errors[metric]
        log = EvalLog(
            model=pair[0],
            task=unit,
            dataset=pair[1],
            samples=score.grids,
            metrics=metrics,
            created=created,
            run_id=scoring.tree.id,
            metadata={
                "metric": metric,
                "unit": plan.scoring.unit,
                "tasks": plan.units[unit],
                "checkpoint": scoring.models[pair[0]],
            },
        )
        scoring.tree.write_record(log, unit_file(scoring.subdir, pair, unit))

    in_threads(write, scores.keys(), scores.values())
