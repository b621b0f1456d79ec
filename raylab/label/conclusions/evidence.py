"""The cases of a run with the labels that models and people gave them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raylab.core.config.base import AS_PUBLISHED
from raylab.core.stats import Array
from raylab.label.archive.run import RunArchive
from raylab.label.codebooks.codebook import Codebook, Label
from raylab.label.judgement import AUDIT, DRAW, HUMAN, UNCLEAR, UNCONFIRMED, is_drawn
from raylab.label.protocol.decisions import read_standings
from raylab.label.protocol.outcome import Annotator, Status
from raylab.label.statistics.accuracy import DECIDED
from raylab.label.statistics.frame import read_case

LEFT_OUT = {
    HUMAN: "wait for a person",
    UNCONFIRMED: "have a decision that the evaluator has not judged yet",
    UNCLEAR: "have no right label, as people found",
    Status.FAILED: "failed",
}
"""The lack that keeps cases out, by their status."""


@dataclass(frozen=True)
class LabelledCase:
    """A case with a label in force.

    Attributes:
        label: The models' label, or that of people where models left the case to them.
        answers: The annotators' labels; None where one cannot be read.
        score: The evaluator's lowest score of an answer, in [0, 1].
        people: The labels of people who saw the text alone, or settled the case: none, one, or two
            that differ.
        is_certain: True if people label every such case, because models left it to them.
        meta: Its further columns.
    """

    label: Label
    answers: Sequence[Label | None]
    score: float
    people: Sequence[Label]
    is_certain: bool
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The labelled cases of a run.

    Attributes:
        waiting: Cases that are drawn for the audit and that people have not labelled yet.
        undrawn: Cases that the draw would have taken, but that were decided after it.
        left_out: Cases without a label in force, by what they lack.
    """

    cases: Sequence[LabelledCase]
    waiting: int
    undrawn: int
    left_out: Mapping[str, int]

    @property
    def judged(self) -> int:
        """The number of drawn cases that people have labelled."""
        return sum(bool(case.people) and not case.is_certain for case in self.cases)

    @property
    def weights(self) -> Array:
        """The weight of each case's label of people, 0 without one.

        The drawn cases come to people in a random order, so that those labelled so far are a random
        sample of the cases that models decided.
        """
        drawn = sum(not case.is_certain for case in self.cases) / max(self.judged, 1)
        return np.array(
            [0.0 if not case.people else 1.0 if case.is_certain else drawn for case in self.cases]
        )


def read_evidence(run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator]) -> Evidence:
    """Reads the cases of an archived run, without those of further generations."""
    audit = [*run.decisions(AUDIT)]
    draws = {(row.body["share"], row.body["seed"]) for row in audit if row.action == DRAW}
    drawn = read_standings(audit, codebook)
    cases, left_out = list[LabelledCase](), Counter[str]()
    waiting = undrawn = 0
    for current in run.cases():
        outcome, label = read_case(current, codebook)
        if outcome.generation != AS_PUBLISHED:
            continue
        if label is None:
            left_out[LEFT_OUT[current.status]] += 1
            continue
        people = (label,)
        if is_decided := outcome.status in DECIDED:
            stands = drawn.get(outcome.case)
            given = stands.in_force if stands else ()
            people = tuple(own.said.label for own in given if own.said.label is not None)
            waiting += stands is not None and not people
            undrawn += stands is None and any(is_drawn(outcome.case, *draw) for draw in draws)
        classified = [outcome.classification(name) for name in annotators]
        evaluated = filter(None, map(outcome.evaluation, annotators))
        cases.append(
            LabelledCase(
                label,
                [own and own.label for own in classified],
                min((own.score for own in evaluated), default=0) / 100,
                people,
                not is_decided,
                outcome.meta,
            )
        )
    return Evidence(cases, waiting, undrawn, dict(left_out))
