"""The answers of a model to all views of tasks, decoded together in batches of like length."""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from raylab.arc.data.batching import Batch, BatchDataset, BatchPlan, Grids
from raylab.arc.data.generations import Redrawing
from raylab.arc.data.store import store_pairs
from raylab.arc.data.tasks import Grid, Task
from raylab.arc.models.base import Answers
from raylab.arc.prize.views import views_of
from raylab.arc.prize.votes import ATTEMPTS, QuestionAnswers, TaskAnswers
from raylab.arc.records import GridRows
from raylab.config.arc import VotesConfig

Answerer = Callable[[Batch], Answers]
"""Answers a batch free-running: it reads no target."""
QUERIES = 2048
"""Most views of test inputs that are in memory at once."""


def answer_tasks(
    answer: Answerer,
    posed: Sequence[Task],
    votes: VotesConfig,
    *,
    demonstrations: int,
    batch_size: int,
    device: torch.device,
) -> list[TaskAnswers]:
    """Answers the questions of tasks in every view, at least two of each.

    Args:
        answer: the model, on the device.
        posed: tasks with a demonstration or more; the outputs of their questions are not read.
        votes: the views.
        demonstrations: demonstrations to show with a question.
        batch_size: mean questions of a batch.
        device: the device of the batches.

    Returns:
        The answers of each task, in order.
    """
    return [
        answers
        for part in _parts(posed, max(votes.views, ATTEMPTS))
        for answers in _answer_part(answer, part, votes, demonstrations, batch_size, device)
    ]


def as_rows(grid: Grid) -> GridRows:
    """Returns a grid as rows of numbers."""
    return tuple(tuple(row) for row in grid.tolist())


def _parts(posed: Sequence[Task], views: int) -> Iterator[list[Task]]:
    """Yields the tasks in parts of at most `QUERIES` queries, or of one task."""
    part: list[Task] = []
    queries = 0
    for task in posed:
        more = views * len(task.questions)
        if part and queries + more > QUERIES:
            yield part
            part, queries = [], 0
        part.append(task)
        queries += more
    if part:
        yield part


def _answer_part(
    answer: Answerer,
    posed: Sequence[Task],
    votes: VotesConfig,
    demonstrations: int,
    batch_size: int,
    device: torch.device,
) -> list[TaskAnswers]:
    start = time.monotonic()
    views: list[tuple[int, Redrawing]] = [
        (at, view)
        for at, task in enumerate(posed)
        for view in views_of(task, max(votes.views, ATTEMPTS), votes)
    ]
    found: list[list[list[tuple[GridRows, float]]]] = [[[] for _ in t.questions] for t in posed]
    store = store_pairs([view.task(posed[at]) for at, view in views])
    shown = np.array([len(posed[at].demonstrations) for at, _ in views])
    first = np.concatenate(([0], np.cumsum([len(posed[at].pairs) for at, _ in views])[:-1]))
    place = np.arange(len(store.task_of)) - (first + shown)[store.task_of]
    asked = np.flatnonzero(place >= 0)
    answered: dict[int, tuple[GridRows, float]] = {}
    if len(asked):
        plan = BatchPlan(store, asked, batch_size=batch_size, demonstrations=demonstrations)
        dataset = BatchDataset(store)
        for draw in plan:
            given = answer(dataset[draw].to(device))
            likelihoods = given.log_likelihoods.tolist()
            for pair, grid, likelihood in zip(
                draw.pairs.tolist(), _grids(given.grids), likelihoods, strict=True
            ):
                _, view = views[store.task_of[pair]]
                answered[pair] = as_rows(view.inverse.apply(grid)), likelihood
    for pair in asked.tolist():
        at, _ = views[store.task_of[pair]]
        found[at][place[pair]].append(answered[pair])
    seconds = (time.monotonic() - start) / len(posed)
    return [
        TaskAnswers(task=task.id, questions=tuple(map(QuestionAnswers.of, of)), seconds=seconds)
        for task, of in zip(posed, found, strict=True)
    ]


def _grids(grids: Grids) -> Iterator[Grid]:
    """Yields the grids of a batch."""
    cells = grids.cells.cpu().numpy().astype(np.uint8)
    for row, (height, width) in zip(cells, grids.sizes.tolist(), strict=True):
        yield row[: height * width].reshape(height, width)
