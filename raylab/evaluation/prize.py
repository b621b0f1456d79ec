"""Scoring as ARC Prize does, wherever `Workers` answer.

Tasks are answered first, a file each, and then scored: an answered task is never answered again.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.data.batching import Batch
from raylab.arc.data.tasks import Task
from raylab.arc.device import use_share
from raylab.arc.models.base import Answers
from raylab.arc.models.custom import import_model_classes
from raylab.arc.prize.adaptation import become_specialist, specialist_bytes, train_on_task
from raylab.arc.prize.answering import QUERIES, Answerer, answer_tasks
from raylab.arc.prize.planning import (
    answers_file,
    challenges_of,
    missing_tasks,
    plan_submission,
    specialist_file,
)
from raylab.arc.prize.scores import (
    TaskScore,
    prize_score,
    rule_scores,
    score_answers,
    solutions_of,
    unit_scores,
)
from raylab.arc.prize.submissions import SUBMISSION, submission_bytes
from raylab.arc.prize.votes import ATTEMPTS, TaskAnswers, TaskTraining
from raylab.arc.records import EvaluationMetrics, PrizeScore, RuleScores, rule_scores_file
from raylab.arc.scoring.evaluation import autocast_on, model_on
from raylab.arc.scoring.files import FILE_THREADS, Missing, missing_units, write_scores
from raylab.arc.scoring.plan import ModelOnGeneration, Scoring
from raylab.config.arc import DataConfig, ScoringConfig, TaskTrainingConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import EvaluateConfig
from raylab.errors import RunError
from raylab.evaluation.scores import checkpoints_of
from raylab.files import Place
from raylab.grid_metrics import FIRST_ATTEMPT
from raylab.log import log_line
from raylab.printable import pluralize
from raylab.report.page import PAGE, write_page
from raylab.report.prize import prize_page
from raylab.report.table import print_tables
from raylab.report.work import watch
from raylab.runs.run import SCORES
from raylab.workers import Workers, advance

SUBMISSIONS = "submissions"
"""Directory of a run that holds `<model>/<generation>/submission.json`."""

PrizeScores = Mapping[str, Mapping[str, PrizeScore]]
"""Scores by model or rule, and generation."""
PairAnswers = Mapping[ModelOnGeneration, Mapping[str, TaskAnswers]]
"""Answers by pair of model and generation, and task."""


@dataclass(frozen=True)
class Solved:
    """The answers to a task, and the specialist to keep, as a file's content."""

    answers: TaskAnswers
    specialist: bytes | None = None


def run_prize(planned: Scoring, workers: Workers) -> None:
    """Answers and scores what the run of a plan lacks.

    Raises:
        RaylabError: It failed for a reason that the user can act on.
    """
    solve_plan(planned, workers)
    conclude(planned, read_answers(planned))


def run_submission(config: EvaluateConfig) -> None:
    """Scores the submission of `config`.

    Raises:
        DataError: The submission or the tasks cannot be used.
        RunError: The run cannot be used.
    """
    planned, answers = plan_submission(config)
    conclude(planned, dict.fromkeys(planned.plan.pairs, answers))


def solve_plan(planned: Scoring, workers: Workers) -> None:
    """Answers the tasks that have no answer yet, and writes the answers as they come.

    Raises:
        RaylabError: It failed for a reason that the user can act on.
    """
    missing = missing_tasks(planned)
    total = len(planned.plan.pairs) * len(planned.plan.tasks)
    left = sum(map(len, missing.values()))
    if left < total:
        done = total - left
        log_line(f"{done} of {total} tasks are answered already", done=done, total=total)
    if not missing:
        return
    calls = _calls(planned, missing, workers)
    ends = workers.run(solve, calls)
    with watch(left, "tasks", parts=len(calls)) as progress, closing(ends):
        for ((model, generation), _), solved in ends:
            _write_solved(planned, (model, generation), solved)
            workers.count("tasks", len(solved))
            progress.end(
                len(solved),
                f"{model} on {generation}: {pluralize(len(solved), 'task')} answered",
                model=model,
                generation=generation,
            )


def read_answers(planned: Scoring) -> PairAnswers:
    """Returns all answers of a plan.

    Raises:
        RunError: A file is missing or holds no valid answers.
    """
    tree, tasks = planned.tree, sorted(planned.plan.tasks)

    def read(pair: ModelOnGeneration, task: str) -> TaskAnswers:
        name = answers_file(pair, task)
        answers = tree.read_record(TaskAnswers, name)
        if answers is None:
            raise RunError(f"{tree / name} is missing: resume=true answers the task again")
        return answers

    with ThreadPoolExecutor(FILE_THREADS) as threads:
        return {
            pair: dict(zip(tasks, threads.map(partial(read, pair), tasks), strict=True))
            for pair in planned.plan.pairs
        }


def conclude(planned: Scoring, answers: PairAnswers) -> None:
    """Writes submissions, scores and page of a run whose tasks are all answered; finishes it.

    Generations without a known test output have submissions and no score.

    Raises:
        RaylabError: Tasks cannot be read, or files cannot be written.
    """
    run, plan = planned.tree, planned.plan
    views = plan.scoring.votes.views
    models: dict[str, dict[str, PrizeScore]] = {}
    rules: dict[str, dict[str, PrizeScore]] = {}
    missing = missing_units(planned)
    for generation in plan.generations:
        challenges = challenges_of(planned.data(generation, plan.units), planned.seen)
        solutions = solutions_of(challenges)
        for model in plan.models:
            pair = model, generation
            name = f"{SUBMISSIONS}/{model}/{generation}/{SUBMISSION}"
            (run / name).write(submission_bytes(answers[pair], views))
            if solutions:
                score = prize_score(answers[pair], solutions, views)
                models.setdefault(model, {})[generation] = score
                scores = score_answers(answers[pair], solutions, views)
                _write_missing(planned, pair, scores, missing.get(pair, ()))
        if solutions:
            for rule, score in rule_scores(challenges, solutions).items():
                rules.setdefault(rule, {})[generation] = score
        else:
            log_line(f"{generation}: no test output is known, so nothing is scored")
    _report(planned, models, rules)
    submissions = str(run / SUBMISSIONS)
    log_line(f"submissions {submissions}", uri=submissions)
    run.finish()


def _calls(
    scoring: Scoring, missing: Missing, workers: Workers
) -> dict[tuple[ModelOnGeneration, tuple[str, ...]], tuple[Any, ...]]:
    """Returns the arguments of `solve` for what is missing, by pair and tasks."""
    plan = scoring.plan
    checkpoints = checkpoints_of(scoring, (model for model, _ in missing))
    shared = {model: workers.put(checkpoint) for model, checkpoint in checkpoints.items()}
    what = plan.scoring, scoring.seen, workers.share
    return {
        (pair, tasks): (shared[pair[0]], pair, scoring.data(pair[1], plan.units), tasks, *what)
        for pair, lacking in missing.items()
        for tasks in _parts(lacking, plan.scoring)
    }


def _parts(tasks: Sequence[str], scoring: ScoringConfig) -> Iterator[tuple[str, ...]]:
    """Yields tasks in parts that are answered together."""
    views = max(scoring.votes.views, ATTEMPTS)
    size = 1 if scoring.test_time_training else max(1, QUERIES // views)
    for start in range(0, len(tasks), size):
        yield tuple(tasks[start : start + size])


def solve(
    checkpoint: Checkpoint,
    pair: ModelOnGeneration,
    data: DataConfig,
    tasks: Collection[str],
    scoring: ScoringConfig,
    seen: frozenset[int],
    share: ClusterConfig,
) -> list[Solved]:
    """Answers some tasks of `data`, in the process that calls; their test outputs are not read.

    Args:
        checkpoint: The model.
        pair: The names of the model and of the generation.
        data: All tasks of the generation, which a process reads once.
        tasks: Ids of those to answer.
        scoring: The views, and how to train on each task.
        seen: Fingerprints of the pairs that are shown and not asked for.
        share: The CPUs and the GPU to use.

    Raises:
        RaylabError: The tasks or the checkpoint cannot be used.
        NonFiniteLossError: Training on a task failed.
    """
    device = use_share(share)
    import_model_classes(scoring.model_classes)
    posed = [task.posed for task in challenges_of(data, seen) if task.id in tasks]
    shown = checkpoint.model.context_pairs
    if scoring.test_time_training is None:
        model = model_on(checkpoint, device)
        answer = _advancing(model.answers, posed, scoring)
        answers = _answers(answer, posed, scoring, shown, device)
        return list(map(Solved, answers))
    return [_specialised(checkpoint, pair, task, scoring, device) for task in posed]


def _specialised(
    checkpoint: Checkpoint,
    pair: ModelOnGeneration,
    task: Task,
    scoring: ScoringConfig,
    device: torch.device,
) -> Solved:
    """Answers a task before and after the model was trained on its demonstrations."""
    training, shown = scoring.test_time_training, checkpoint.model.context_pairs
    assert training is not None
    model = model_on(checkpoint, device)
    (before,) = _answers(model.answers, [task], scoring, shown, device)
    start, steps, kept = time.monotonic(), 0, None
    file = _specialist_of(training, pair, task.id)
    if file is not None:
        become_specialist(model, file)
    elif task.demonstrations:
        specialist = train_on_task(
            model, task, training, scoring.votes, demonstrations=shown, device=device
        )
        steps, kept = training.steps, specialist_bytes(specialist) if training.keep else None
    seconds = time.monotonic() - start
    (after,) = _answers(model.answers, [task], scoring, shown, device)
    trained = TaskTraining(steps=steps, seconds=seconds, before=before.questions)
    return Solved(after.model_copy(update={"trained": trained}), kept)


def _specialist_of(
    training: TaskTrainingConfig, pair: ModelOnGeneration, task: str
) -> Place | None:
    if training.specialists is None:
        return None
    file = Place.at(training.specialists) / specialist_file(pair, task)
    return file if file.exists() else None


def _advancing(answer: Answerer, posed: Sequence[Task], scoring: ScoringConfig) -> Answerer:
    """Returns an answerer that tells which share of the input cells of all views is answered."""
    views = max(scoring.votes.views, ATTEMPTS)
    total = views * sum(pair.input.size for task in posed for pair in task.questions)
    done = 0

    def answer_and_tell(batch: Batch) -> Answers:
        nonlocal done
        answers = answer(batch)
        done += int(batch.source.sizes.prod(dim=1).sum())
        advance(done / total)
        return answers

    return answer_and_tell


def _answers(
    answer: Answerer,
    posed: Sequence[Task],
    scoring: ScoringConfig,
    demonstrations: int,
    device: torch.device,
) -> list[TaskAnswers]:
    with torch.inference_mode(), autocast_on(device):
        return answer_tasks(
            answer,
            posed,
            scoring.votes,
            demonstrations=demonstrations,
            batch_size=scoring.batch_size,
            device=device,
        )


def _write_solved(planned: Scoring, pair: ModelOnGeneration, solved: Sequence[Solved]) -> None:
    def write(solution: Solved) -> None:
        task = solution.answers.task
        # First, so that a task with answers has its specialist too.
        if solution.specialist is not None:
            (planned.tree / specialist_file(pair, task)).write(solution.specialist)
        planned.tree.write_record(solution.answers, answers_file(pair, task))

    with ThreadPoolExecutor(FILE_THREADS) as threads:
        list(threads.map(write, solved))


def _write_missing(
    planned: Scoring,
    pair: ModelOnGeneration,
    scores: Mapping[str, TaskScore],
    missing: Sequence[str],
) -> None:
    """Writes the score files that a pair lacks; a unit without a scored task has none."""
    units = unit_scores(scores, planned.unit_of_task(planned.plan.units))
    write_scores(planned, pair, {unit: units[unit] for unit in units.keys() & set(missing)})


def _report(planned: Scoring, models: PrizeScores, rules: PrizeScores) -> None:
    """Writes and prints the scores of models and rules."""
    run, metric = planned.tree, planned.plan.scoring.metric

    def means(scored: PrizeScores) -> dict[str, dict[str, float]]:
        return {
            name: {generation: _value(score, metric) for generation, score in scores.items()}
            for name, scores in scored.items()
        }

    metrics = EvaluationMetrics(
        metric=metric,
        models=means(models),
        rules=means(rules),
        by="pair" if planned.by_pair else "task",
        prize=models,
        prize_rules=rules,
    )
    run.write_record(metrics)
    if not models:
        return
    rule_means = RuleScores(metric=metric, rules=metrics.rules)
    run.write_record(rule_means, rule_scores_file(planned.subdir))
    page = prize_page(run, metrics)
    write_page(run, page)
    print_tables(*page.tables, **metrics.model_dump(include={"prize", "prize_rules"}))
    scores = str(run / SCORES)
    log_line(f"score tree {scores}\nreport {run / PAGE}", uri=scores, page=str(run / PAGE))


def _value(score: PrizeScore, metric: str) -> float:
    return score.first_attempt if metric == FIRST_ATTEMPT else score.two_attempts
