"""The cases of a run with the labels that models and people gave them."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raylab.core.config.base import AS_PUBLISHED
from raylab.core.stats import Array
from raylab.label.archive.run import RunArchive
from raylab.label.archive.tables import as_json
from raylab.label.codebooks.codebook import Codebook, Label
from raylab.label.conclusions.draw import AuditDraw, block_of, features_of
from raylab.label.judgement import AUDIT, DRAW, HUMAN, UNCLEAR, UNCONFIRMED, Decision
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
        chance: Chance with which it came to people.
        block: Block of an active draw that it is in; 0 without one.
    """

    id: str
    label: Label
    answers: Sequence[Label | None]
    score: float
    people: Sequence[Label]
    is_certain: bool
    meta: Mapping[str, Any]
    chance: float = 1.0
    block: int = 0

    def features(self, rare: Mapping[str, float]) -> tuple[float, ...]:
        """Returns what predicts the error of its label; see `features_of`."""
        answers = [own and str(own) for own in self.answers]
        return features_of(str(self.label), answers, self.score, rare)


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

        It is 1 / chance, in a scale in which the weights of a block sum to its cases: the drawn
        cases come to people in a random order, so that those labelled so far are a random sample of
        the drawn ones. Blocks are random parts, so that those with labels stand for the others.
        """
        weights = np.array([float(case.is_certain and bool(case.people)) for case in self.cases])
        blocks = defaultdict[int, list[int]](list)
        for place, case in enumerate(self.cases):
            if not case.is_certain:
                blocks[case.block].append(place)
        total = sum(map(len, blocks.values()))
        judged = {block: [p for p in own if self.cases[p].people] for block, own in blocks.items()}
        seen = sum(len(own) for block, own in blocks.items() if judged[block])
        for block, places in judged.items():
            raw = np.array([1 / self.cases[place].chance for place in places])
            weights[places] = raw / raw.sum() * len(blocks[block]) * total / seen if places else 0
        return weights


def read_evidence(run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator]) -> Evidence:
    """Reads the cases of an archived run, without those of further generations."""
    audit = [*run.decisions(AUDIT)]
    draws, drawn = draws_of(audit), read_standings(audit, codebook)
    is_active = any(draw.block is not None for draw in draws)
    cases, left_out = list[LabelledCase](), Counter[str]()
    waiting = undrawn = 0
    for current in run.cases():
        outcome, label = read_case(current, codebook)
        if outcome.generation != AS_PUBLISHED:
            continue
        if label is None:
            left_out[LEFT_OUT[current.status]] += 1
            continue
        classified = [outcome.classification(name) for name in annotators]
        evaluated = filter(None, map(outcome.evaluation, annotators))
        case = LabelledCase(
            outcome.case,
            label,
            [own and own.label for own in classified],
            min((own.score for own in evaluated), default=0) / 100,
            (label,),
            outcome.status not in DECIDED,
            outcome.meta,
        )
        if outcome.status in DECIDED:
            stands = drawn.get(outcome.case)
            given = stands.in_force if stands else ()
            people = tuple(own.said.label for own in given if own.said.label is not None)
            waiting += stands is not None and not people
            chances, takes = {"": 0.0, "active": 0.0}, False
            for draw in draws:
                kind, features = "" if draw.block is None else "active", case.features(draw.rare)
                chances[kind] = max(chances[kind], draw.chance(case.id, features))
                takes |= draw.takes(case.id, features)
            undrawn += stands is None and takes
            missed = math.prod(1 - chance for chance in chances.values())
            block = block_of(case.id, draws[0].seed) if is_active else 0
            # A label whose chance is unknown stands for no other case.
            people = people if missed < 1 else ()
            case = replace(case, people=people, chance=1 - missed, block=block)
        cases.append(case)
    return Evidence(cases, waiting, undrawn, dict(left_out))


def audit_weights(
    run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator]
) -> dict[str, float] | None:
    """Returns the weights of the audited cases that people have labelled; None if all are equal."""
    if all(draw.block is None for draw in draws_of(run.decisions(AUDIT))):
        return None
    evidence = read_evidence(run, codebook, annotators)
    weighted = zip(evidence.cases, evidence.weights, strict=True)
    return {case.id: float(own) for case, own in weighted if own and not case.is_certain}


def draws_of(audit: Iterable[Decision]) -> list[AuditDraw]:
    """Returns the draws of an audit, by its records."""
    bodies = {as_json(row.body): row.body for row in audit if row.action == DRAW}
    return [AuditDraw(**body) for body in bodies.values()]
