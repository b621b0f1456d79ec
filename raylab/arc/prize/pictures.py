"""Pictured tasks: which ones, and the attempts of models at them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from raylab.arc.data.tasks import Task
from raylab.arc.prize.votes import ATTEMPTS, TaskAnswers, as_rows
from raylab.arc.records import Example, PredictedGrid


def choose_pictures(tasks: Sequence[Task], count: int) -> list[Task]:
    """Returns at most `count` tasks, evenly spread over the sizes of outputs."""
    by_size = sorted(tasks, key=lambda task: (task.pairs[-1].output.size, task.id))
    count = min(count, len(by_size))
    steps = np.linspace(0, len(by_size) - 1, count + 2)[1:-1].round().astype(int)
    return [by_size[step] for step in dict.fromkeys(steps.tolist())]


def keep_one_question(task: Task) -> Task:
    """Returns a task with its first test pair, or without one its first pair, as the question."""
    if task.questions:
        return Task(task.id, task.demonstrations, task.questions[:1])
    return Task(task.id, task.demonstrations[1:], task.demonstrations[:1])


def picture_attempts(
    answers: Mapping[str, Mapping[str, TaskAnswers]],
    tasks: Iterable[Task],
    views: int,
    attempts: int = ATTEMPTS,
) -> list[Example]:
    """Returns the attempts at each test input with a known output, the most solved ones first.

    Predictions are named by model and attempt, or by model if there is one attempt each; equal
    attempts are one.
    """
    examples: list[Example] = []
    for task in tasks:
        for at, question in enumerate(task.questions):
            if not question.is_answered:
                continue
            target, predictions = as_rows(question.output), dict[str, PredictedGrid]()
            for model, own in answers.items():
                grids = own[task.id].questions[at].attempts(views)[:attempts]
                for place, grid in enumerate(dict.fromkeys(grids), 1):
                    name = model if attempts == 1 else f"{model}, attempt {place}"
                    predictions[name] = PredictedGrid(grid=grid, solved=grid == target)
            source = as_rows(question.input)
            examples.append(
                Example(task=task.id, input=source, target=target, predictions=predictions)
            )
    return sorted(examples, key=lambda e: -sum(own.solved for own in e.predictions.values()))


def contrast(examples: Sequence[Example], count: int) -> list[Example]:
    """Returns at most `count` of sorted examples: half of the most solved, half of the least."""
    first = (count + 1) // 2
    return [*examples[:first], *examples[max(len(examples) - count // 2, first) :]]
