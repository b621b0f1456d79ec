"""The answers of a model to the views of a task, and the two attempts that they vote for."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, model_validator

from raylab.arc.records import GridRows
from raylab.runs.records import Part, Record

ATTEMPTS = 2


class ViewAnswer(Part):
    """The answer in one view, brought back to the task as it is."""

    candidate: NonNegativeInt
    """Its position among the candidates of the question."""
    log_likelihood: float
    """As in `raylab.arc.decoding.Answers`."""


class QuestionAnswers(Part):
    """The answers to one test input."""

    candidates: tuple[GridRows, ...]
    """The distinct answers."""
    views: Annotated[tuple[ViewAnswer, ...], Field(min_length=ATTEMPTS)]
    """The answer in each view; the first is of the task as it is."""

    @model_validator(mode="after")
    def _check_candidates(self) -> Self:
        count = len(self.candidates)
        if beyond := [view.candidate for view in self.views if view.candidate >= count]:
            raise ValueError(f"a view names candidate {beyond[0]} of {count}, counted from 0")
        return self

    @classmethod
    def of(cls, answers: Iterable[tuple[GridRows, float]]) -> "QuestionAnswers":
        """Returns the answers, each with its log-likelihood, in the order of their views."""
        candidates: dict[GridRows, int] = {}
        views = tuple(
            ViewAnswer(
                candidate=candidates.setdefault(grid, len(candidates)), log_likelihood=likelihood
            )
            for grid, likelihood in answers
        )
        return cls(candidates=tuple(candidates), views=views)

    def attempts(self, views: int) -> tuple[GridRows, GridRows]:
        """Returns the two attempts that the first `views` vote for.

        Candidates are ranked by the number of their views, then by the mean log-likelihood in
        them, then by their first view; where all agree both attempts are the same. One view has no
        votes: the attempts are the answer to the task as it is, and that in the second view.
        """
        if views == 1:
            chosen = [view.candidate for view in self.views[:ATTEMPTS]]
        else:
            chosen = _ranked(self.views[:views])[:ATTEMPTS]
        return self.candidates[chosen[0]], self.candidates[chosen[-1]]


class TaskTraining(Part):
    """The training of a model on the demonstrations of a task."""

    steps: int
    """Optimiser steps; 0 for a specialist that was loaded."""
    seconds: float
    before: tuple[QuestionAnswers, ...]
    """The answers of the model as it was."""


class TaskAnswers(Record):
    """The answers of a model to one task: `<answers>/<model>/<generation>/<task>.json`."""

    task: str
    """Id of the task."""
    questions: tuple[QuestionAnswers, ...]
    """By test input."""
    seconds: float
    """Time of all answers; tasks that are answered together share it equally."""
    trained: TaskTraining | None = None
    """What training on the task cost, and the answers before it; None without any."""


def curve_views(views: int) -> Iterator[int]:
    """Yields 1, 2, 4, 8, ... below `views`, and `views`."""
    count = 1
    while count < views:
        yield count
        count *= 2
    yield views


def _ranked(views: Sequence[ViewAnswer]) -> list[int]:
    """Returns the candidates of some views, best first."""
    found: dict[int, list[float]] = {}
    for view in views:
        found.setdefault(view.candidate, []).append(view.log_likelihood)
    # A stable sort: of equals the one that was found first leads.
    return sorted(
        found, key=lambda one: (-len(found[one]), -math.fsum(found[one]) / len(found[one]))
    )
