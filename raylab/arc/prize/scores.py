"""Scores as ARC Prize counts them: a task counts by the share of its solved test outputs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from raylab.arc.comparators.rules import rule_attempts
from raylab.arc.data.tasks import Grid, Task
from raylab.arc.prize.answering import as_rows
from raylab.arc.prize.votes import QuestionAnswers, TaskAnswers, curve_views
from raylab.arc.records import AttemptScore, GridRows, PrizeScore, TrainedScore, VotesScore
from raylab.arc.scoring.evaluation import UnitScore
from raylab.grid_metrics import RULES
from raylab.runs.eval_logs import is_estimated

Attempts = Sequence[tuple[GridRows, GridRows]]
"""Two attempts at each test input of a task."""
Solutions = Mapping[str, tuple[Grid, ...]]
"""The test outputs of each task, at least one."""


class TaskScore(AttemptScore):
    """The score of a task: shares of its test outputs."""

    outputs: int


def solutions_of(tasks: Iterable[Task]) -> Solutions:
    """Returns the solutions of the tasks whose test outputs are all known; others have no score."""
    solved = {task.id: task.solution for task in tasks}
    return {task: solution for task, solution in solved.items() if solution is not None}


def score_task(attempts: Attempts, solution: Sequence[Grid]) -> TaskScore:
    """Scores the attempts at each test input of a task; there are as many as outputs."""
    rows = [as_rows(grid) for grid in solution]
    first = [one == row for (one, _), row in zip(attempts, rows, strict=True)]
    two = [row in both for both, row in zip(attempts, rows, strict=True)]
    return TaskScore(
        first_attempt=statistics.fmean(first),
        two_attempts=statistics.fmean(two),
        outputs=len(rows),
    )


def score_answers(
    answers: Mapping[str, TaskAnswers], solutions: Solutions, views: int
) -> dict[str, TaskScore]:
    """Returns the score of each task with a solution, by the votes of the first `views`."""
    return {
        task: score_task(attempts_of(answers[task].questions, views), solution)
        for task, solution in solutions.items()
    }


def attempts_of(questions: Iterable[QuestionAnswers], views: int) -> Attempts:
    """Returns the attempts at each question of a task."""
    return [question.attempts(views) for question in questions]


def prize_score(answers: Mapping[str, TaskAnswers], solutions: Solutions, views: int) -> PrizeScore:
    """Returns the score of a model or a submission, with its curve and its costs.

    Args:
        answers: by task; all tasks of `solutions` and maybe others.
        solutions: one or more.
        views: the views that vote.
    """
    scores = score_answers(answers, solutions, views)
    curve = tuple(
        VotesScore(views=count, **dict(_mean(score_answers(answers, solutions, count).values())))
        for count in curve_views(views)
    )
    asked = [answers[task] for task in solutions]
    return _score(scores).model_copy(
        update={
            "curve": curve,
            "seconds": statistics.fmean(of.seconds for of in asked),
            "trained": _trained(asked, solutions, views),
        }
    )


def rule_scores(tasks: Iterable[Task], solutions: Solutions) -> dict[str, PrizeScore]:
    """Returns the score of every rule that learns nothing."""
    attempts = {
        task.id: [rule_attempts(pair.input) for pair in task.questions]
        for task in tasks
        if task.id in solutions
    }
    found: dict[str, PrizeScore] = {}
    for rule in RULES:
        scores = {
            task: score_task(
                [(as_rows(of[rule][0]), as_rows(of[rule][1])) for of in attempts[task]], solution
            )
            for task, solution in solutions.items()
        }
        found[rule] = _score(scores)
    return found


def unit_scores(
    scores: Mapping[str, TaskScore], unit_of_task: Mapping[str, str]
) -> dict[str, UnitScore]:
    """Returns the score of each unit with a scored task."""
    units: dict[str, list[TaskScore]] = {}
    for task, score in scores.items():
        units.setdefault(unit_of_task[task], []).append(score)
    return {unit: _unit_score(of) for unit, of in units.items()}


def _unit_score(scores: Sequence[TaskScore]) -> UnitScore:
    values, errors = _mean(scores).model_dump(), _errors(scores)
    return UnitScore(
        grids=sum(score.outputs for score in scores),
        metrics=values,
        standard_errors={
            name: error
            for name, error in ({} if errors is None else errors.model_dump()).items()
            if is_estimated(values[name], len(scores))
        },
    )


def _score(scores: Mapping[str, TaskScore]) -> PrizeScore:
    of_all = [*scores.values()]
    return PrizeScore(
        **dict(_mean(of_all)),
        tasks=len(of_all),
        outputs=sum(score.outputs for score in of_all),
        errors=_errors(of_all),
    )


def _mean(scores: Iterable[TaskScore]) -> AttemptScore:
    of_all = [*scores]
    return AttemptScore(
        first_attempt=statistics.fmean(score.first_attempt for score in of_all),
        two_attempts=statistics.fmean(score.two_attempts for score in of_all),
    )


def _errors(scores: Sequence[TaskScore]) -> AttemptScore | None:
    """Returns the standard errors of the means: sample deviations over the root of the number."""
    if len(scores) < 2:
        return None
    root = len(scores) ** 0.5
    return AttemptScore(
        first_attempt=statistics.stdev(score.first_attempt for score in scores) / root,
        two_attempts=statistics.stdev(score.two_attempts for score in scores) / root,
    )


def _trained(asked: Sequence[TaskAnswers], solutions: Solutions, views: int) -> TrainedScore | None:
    trained = {of.task: of.trained for of in asked if of.trained is not None}
    if len(trained) < len(asked):
        return None
    before = [
        score_task(attempts_of(of.before, views), solutions[task]) for task, of in trained.items()
    ]
    return TrainedScore(
        before=_mean(before),
        steps=statistics.fmean(of.steps for of in trained.values()),
        seconds=statistics.fmean(of.seconds for of in trained.values()),
    )
