"""Views of a task, the answers of a model in them, and the votes for two attempts.

A view is the task under another symmetry, in other colours, and in another order.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeInt

from raylab.arc.config.sections import VotesConfig
from raylab.arc.data.tasks import COLOURS, IDENTITY, SYMMETRIES, Grid, Redrawing, Task
from raylab.arc.records import GridRows
from raylab.core.runs.records import Part, Record

ATTEMPTS = 2


def as_rows(grid: Grid) -> GridRows:
    """Returns a grid as rows of numbers."""
    return tuple(map(tuple, grid.tolist()))


def draw_views(task: Task, count: int, votes: VotesConfig) -> list[Redrawing]:
    """Returns the first `count` views of a task; the first of all is the task as it is.

    They depend only on the id of the task, the number of its demonstrations and `votes`. Fewer
    views are the first of more. Symmetries come in blocks, each a random order of all eight;
    permutations of the colours and of the demonstrations are independent and uniform.
    """
    id_hash = int.from_bytes(hashlib.sha256(task.id.encode()).digest())
    rng = np.random.default_rng([votes.seed, id_hash])
    views, block = [Redrawing(IDENTITY, 0)], [0, *(1 + rng.permutation(SYMMETRIES - 1))]
    while len(views) < count:
        at = len(views) % SYMMETRIES
        if at == 0:
            block = rng.permutation(SYMMETRIES).tolist()
        # What is left out is drawn nevertheless, so that the other draws stay the same.
        colours = rng.permutation(COLOURS).astype(np.uint8)
        order = tuple(map(int, rng.permutation(len(task.demonstrations))))
        views.append(
            Redrawing(
                colours if votes.colours else IDENTITY,
                int(block[at]) if votes.symmetries else 0,
                order if votes.orders else (),
            )
        )
    return views


class ViewAnswer(Part):
    """The answer in one view, transformed back."""

    candidate: NonNegativeInt
    """Its position among the candidates of the question."""
    log_likelihood: float
    """As in `raylab.arc.models.base.Answers`."""
    by_rule: bool | None = None
    """True if its size is that of the size rule; None of a submission."""


class QuestionAnswers(Part):
    """The answers to one test input."""

    candidates: tuple[GridRows, ...]
    """The distinct answers."""
    views: Annotated[tuple[ViewAnswer, ...], Field(min_length=ATTEMPTS)]
    """The answer in each view; the first is of the task as it is."""

    @classmethod
    def of(cls, answers: Iterable[tuple[GridRows, float, bool | None]]) -> "QuestionAnswers":
        """Returns the answers in the order of their views.

        An answer is a grid, its log-likelihood and `ViewAnswer.by_rule`.
        """
        candidates: dict[GridRows, int] = {}
        views = tuple(
            ViewAnswer(
                candidate=candidates.setdefault(grid, len(candidates)),
                log_likelihood=likelihood,
                by_rule=by_rule,
            )
            for grid, likelihood, by_rule in answers
        )
        return cls(candidates=tuple(candidates), views=views)

    def attempts(self, views: int) -> tuple[GridRows, GridRows]:
        """Returns the two attempts that the first `views` vote for.

        Candidates are ranked by their number of views, then by their mean log-likelihood, then by
        their first view; if all views agree, both attempts are the same. A single view has no vote:
        the attempts are the answers in the first and the second view.
        """
        if views == 1:
            chosen = [view.candidate for view in self.views[:ATTEMPTS]]
        else:
            votes: dict[int, list[float]] = {}
            for view in self.views[:views]:
                votes.setdefault(view.candidate, []).append(view.log_likelihood)
            # The sort is stable, so that of equal candidates the first leads.
            ranked = sorted(
                votes, key=lambda at: (-len(votes[at]), -math.fsum(votes[at]) / len(votes[at]))
            )
            chosen = ranked[:ATTEMPTS]
        return self.candidates[chosen[0]], self.candidates[chosen[-1]]


class TaskTraining(Part):
    """The training of a model on the demonstrations of a task."""

    steps: int
    """Optimiser steps; 0 for a specialist that was loaded."""
    seconds: float
    before: tuple[QuestionAnswers, ...] = ()
    """The answers of the model as it was; none unless asked for."""


class TaskAnswers(Record):
    """The answers of a model to one task: `<answers>/<model>/<generation>/<task>.json`."""

    task: str
    """Id of the task."""
    questions: tuple[QuestionAnswers, ...]
    """By test input."""
    seconds: float
    """Time of its answers; tasks that are answered together share their time equally."""
    trained: TaskTraining | None = None
    """The cost of training on the task; None without any."""
