"""Scores as ARC Prize counts them: a task counts by the share of its solved test outputs."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from raylab.arc.baselines import baseline_attempts
from raylab.arc.data.tasks import Grid, Task
from raylab.arc.grid_metrics import BASELINES
from raylab.arc.prize.votes import TaskAnswers, as_rows
from raylab.arc.records import AttemptScore, GridRows, PrizeScore, TrainedScore, VotesScore
from raylab.arc.scoring.evaluation import UnitScore
from raylab.core.runs.eval_logs import is_estimated

Attempts = Sequence[tuple[GridRows, GridRows]]
"""Two attempts at each test input of a task."""
Solutions = Mapping[str, tuple[Grid, ...]]
"""The test outputs of each task; one or more are no `NO_OUTPUT`."""


class TaskScore(AttemptScore):
    """The score of a task: shares of its test outputs."""

    outputs: int


def solutions_of(tasks: Iterable[Task]) -> Solutions:
    """Returns the solutions of the tasks with a known test output; others have no score."""
    return {
        task.id: tuple(pair.output for pair in task.questions)
        for task in tasks
        if task.answered.questions
    }


def score_task(attempts: Attempts, solution: Sequence[Grid]) -> TaskScore:
    """Scores the attempts at each test input of a task whose output is known."""
    pairs = [
        (both, as_rows(output))
        for both, output in zip(attempts, solution, strict=True)
        if output.size
    ]
    return TaskScore(
        first_attempt=statistics.fmean(first == output for (first, _), output in pairs),
        two_attempts=statistics.fmean(output in both for both, output in pairs),
        outputs=len(pairs),
    )


def score_answers(
    answers: Mapping[str, TaskAnswers], solutions: Solutions, views: int
) -> dict[str, TaskScore]:
    """Returns the score of each task with a solution, by the votes of the first `views`."""
    return {
        task: score_task([each.attempts(views) for each in answers[task].questions], solution)
        for task, solution in solutions.items()
    }


def prize_score(answers: Mapping[str, TaskAnswers], solutions: Solutions, views: int) -> PrizeScore:
    """Returns the score of a model or a submission, with its curve and its costs.

    `answers` may hold more tasks than `solutions`, which holds one or more.
    """
    # 1, 2, 4, 8, ... below `views`, and `views`.
    counts = [1 << power for power in range((views - 1).bit_length())] + [views]
    by_views = {count: score_answers(answers, solutions, count) for count in counts}
    answered = [answers[task] for task in solutions]
    questions = [question for own in answered for question in own.questions]
    attempts = [grid for question in questions for grid in question.attempts(views)]
    flags = [view.by_rule for question in questions for view in question.views[:views]]
    # A submission does not tell which sizes are those of the rule.
    by_rule = None if None in flags else statistics.fmean(flag is True for flag in flags)
    training = {own.task: own.trained for own in answered if own.trained}
    before = [
        score_task([each.attempts(views) for each in own.before], solutions[task])
        for task, own in training.items()
        if own.before
    ]
    trained = None
    if training:
        trained = TrainedScore(
            before=_summarize(before) if before else None,
            steps=statistics.fmean(own.steps for own in training.values()),
            seconds=statistics.fmean(own.seconds for own in training.values()),
        )
    return _total(by_views[views].values()).model_copy(
        update={
            "curve": tuple(
                VotesScore(views=count, **dict(_summarize(scores.values())))
                for count, scores in by_views.items()
            ),
            "seconds": statistics.fmean(own.seconds for own in answered),
            "sizes_by_rule": by_rule,
            "missing": attempts.count(()),
            "trained": trained,
        }
    )


def baseline_scores(tasks: Iterable[Task], solutions: Solutions) -> dict[str, PrizeScore]:
    """Returns the score of each baseline."""
    scores: dict[str, list[TaskScore]] = {baseline: [] for baseline in BASELINES}
    for task in tasks:
        if task.id in solutions:
            for baseline, attempts in baseline_attempts(task).items():
                rows = [(as_rows(first), as_rows(second)) for first, second in attempts]
                scores[baseline].append(score_task(rows, solutions[task.id]))
    return {baseline: _total(shares) for baseline, shares in scores.items()}


def unit_scores(
    scores: Mapping[str, TaskScore], unit_of_task: Mapping[str, str]
) -> dict[str, UnitScore]:
    """Returns the score of each unit with a scored task."""
    units: dict[str, list[TaskScore]] = {}
    for task, score in scores.items():
        units.setdefault(unit_of_task[task], []).append(score)
    totals: dict[str, UnitScore] = {}
    for unit, shares in units.items():
        total = _total(shares)
        values = total.model_dump(include={*AttemptScore.model_fields})
        errors = total.errors.model_dump() if total.errors else {}
        kept = {name: e for name, e in errors.items() if is_estimated(values[name], total.tasks)}
        totals[unit] = UnitScore(total.outputs, values, kept)
    return totals


def _total(scores: Collection[TaskScore]) -> PrizeScore:
    """Returns the mean score of tasks with its standard error; none of a single task."""

    def error(shares: Iterable[float]) -> float:
        return statistics.stdev(shares) / len(scores) ** 0.5

    return PrizeScore(
        **dict(_summarize(scores)),
        tasks=len(scores),
        outputs=sum(score.outputs for score in scores),
        errors=_summarize(scores, error) if len(scores) > 1 else None,
    )


def _summarize(
    scores: Collection[TaskScore], figure: Callable[[Iterable[float]], float] = statistics.fmean
) -> AttemptScore:
    """Returns a figure of the tasks' shares, by default their mean, for one and two attempts."""
    return AttemptScore(
        first_attempt=figure(score.first_attempt for score in scores),
        two_attempts=figure(score.two_attempts for score in scores),
    )
