"""The most instructive disagreements of a run: the cases to read first.

Cases come as a stream, of which only the few best are kept.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raylab.annotation.outcome import (
    Classification,
    Evaluation,
    HumanDecision,
    Outcome,
    Status,
    Verdict,
)
from raylab.annotation.roles import OTHER, SIDES, Side
from raylab.annotation.statistics.annotators import source_of
from raylab.annotation.statistics.pairs import agreement_of
from raylab.codebook import Categories, Label, SetDistance
from raylab.llm.prompts import shortened
from raylab.runs.records import Part

KEPT = 10
EXCERPT = 600
"""Characters of a description, a rationale or any other text that is shown."""
SHOWN_NAME = 120
NOTHING: Categories = frozenset()
SETTLED = (Status.ADJUDICATED, Status.HUMAN)

LookUp = Callable[[str], tuple[str, HumanDecision | None]]
"""The description of a case, by its id, and a person's latest decision on it."""


class ShownRoot(Part):
    """A root of a shown code."""

    operator: str
    """Joins it to the root before; empty for the first."""
    root: str
    alone: bool
    """It is in this annotator's code and not in the other's."""


class ShownCode(Part):
    """A code as people are shown it."""

    parts: tuple[ShownRoot, ...]
    fields: str
    """The attributes, as in the canonical line."""


class ShownJudgement(Part):
    """The evaluator's report on a shown code."""

    verdict: Verdict
    score: int
    issues: tuple[str, ...]
    summary: str


class Candidate(Part):
    """A code for the case, and what the evaluator said of it."""

    model: str | None
    code: ShownCode | None
    rationale: str | None
    report: ShownJudgement | None


class AdjudicatedCandidate(Candidate):
    """The adjudicator's code."""

    choice: Literal["A", "B", "synthesis"]


class DecidedCandidate(Candidate):
    """A person's code, with its justification as the rationale."""

    action: Literal["decide", "undo"]
    reviewer: str
    decided: str
    """Time in ISO 8601."""
    confirmed: bool | None
    """By the evaluator; None if it was not asked."""


class ShownDisagreement(Part):
    """A disagreement as people are shown it; no text in it is longer than an excerpt."""

    case: str
    status: Status
    reason: str | None
    gold: ShownCode | None
    distance: float
    """Of the two sets of roots, in [0, 1]."""
    conviction: float
    """Lower of the evaluator's two scores, in [0, 1]."""
    description: str
    candidates: dict[Side, Candidate]
    """Of the two annotators."""
    adjudicated: AdjudicatedCandidate | None
    code: ShownCode | None
    """The protocol's."""
    decision: DecidedCandidate | None
    """A person's latest."""


class DisagreementReport(Part):
    """The disagreements of a run."""

    total: int
    shown: tuple[ShownDisagreement, ...]
    """The most instructive, by rank."""


@dataclass(frozen=True)
class Disagreement:
    """A case in which the annotators' codes differ.

    Attributes:
        outcome: Of the case.
        distance: Of the two sets of roots, 1 less their weighted mechanism agreement, in [0, 1].
        conviction: Lower of the two scores the evaluator gave, as a share of 100.
    """

    outcome: Outcome
    distance: float
    conviction: float

    @property
    def rank(self) -> tuple[bool, float, str]:
        """Orders disagreements, the most instructive first.

        Most is to be learnt where two answers lie far apart and the evaluator still found both
        convincing: there the description, or the taxonomy, can be read in two ways, while an
        answer that was refused shows no more than a mistake. So the product of distance and
        conviction counts. Cases that an adjudicator settled or a person is to decide go before
        those that failed on the way; equals are in the order of their ids.
        """
        settled = self.outcome.status in SETTLED
        return not settled, -self.distance * self.conviction, self.outcome.case


def find_disagreement(outcome: Outcome, distance: SetDistance) -> Disagreement | None:
    """Returns the disagreement on a case; None unless both gave a code and these differ."""
    agreement = agreement_of(outcome, distance)
    if agreement is None or agreement.exact:
        return None
    reports = [outcome.evaluation(side) for side in SIDES]
    scores = [0 if report is None else report.score for report in reports]
    return Disagreement(outcome, 1.0 - agreement.weighted, min(scores) / 100)


class Disagreements:
    """Counts the disagreements of a run as its outcomes come, and keeps the most instructive."""

    def __init__(self, distance: SetDistance, kept: int = KEPT) -> None:
        """Starts without outcomes; `kept` disagreements are held at most."""
        self._distance, self._kept = distance, kept
        self._best: list[Disagreement] = []
        self._total = 0

    def add(self, outcome: Outcome) -> None:
        """Counts a case."""
        found = find_disagreement(outcome, self._distance)
        if found is not None:
            self._total += 1
            insort(self._best, found, key=lambda one: one.rank)
            del self._best[self._kept :]

    def summary(self, look_up: LookUp) -> DisagreementReport:
        """Returns what people are shown."""
        return DisagreementReport(
            total=self._total,
            shown=tuple(_shown(found, *look_up(found.outcome.case)) for found in self._best),
        )


def _shown(
    found: Disagreement, description: str, decision: HumanDecision | None
) -> ShownDisagreement:
    outcome = found.outcome
    roots = {side: _roots(outcome.label_of(side)) for side in SIDES}
    settled = outcome.adjudication
    return ShownDisagreement(
        case=_name(outcome.case),
        status=outcome.status,
        reason=outcome.reason and _excerpt(outcome.reason),
        gold=_code(outcome.gold_label) if outcome.gold_label else None,
        distance=found.distance,
        conviction=found.conviction,
        description=_excerpt(description),
        candidates={
            side: _candidate(
                outcome.classification(side),
                outcome.evaluation(side),
                roots[side] - roots[OTHER[side]],
            )
            for side in SIDES
        },
        adjudicated=settled
        and AdjudicatedCandidate(
            choice=settled.choice,
            **dict(_candidate(settled.classification, settled.confirmation)),
        ),
        code=_code(outcome.label) if outcome.label else None,
        decision=decision and _decision(decision),
    )


def _candidate(
    answer: Classification | None, report: Evaluation | None, alone: Categories = NOTHING
) -> Candidate:
    source = answer and source_of(answer)
    return Candidate(
        model=source and _name(source.response_model or source.model),
        code=_code(answer.label, alone) if answer and answer.label else None,
        rationale=answer and _excerpt(answer.rationale),
        report=report
        and ShownJudgement(
            verdict=report.verdict,
            score=report.score,
            issues=report.issues,
            summary=_excerpt(report.summary),
        ),
    )


def _decision(decision: HumanDecision) -> DecidedCandidate:
    candidate = _candidate(decision.classification, decision.confirmation)
    return DecidedCandidate(
        **dict(candidate.model_copy(update={"rationale": _excerpt(decision.justification)})),
        action=decision.action,
        reviewer=_name(decision.reviewer),
        decided=decision.decided.isoformat(),
        confirmed=decision.confirmation and decision.confirmation.acceptable,
    )


def _roots(label: Label | None) -> Categories:
    return label.categories if label else NOTHING


def _code(label: Label, alone: Categories = NOTHING) -> ShownCode:
    parts = tuple(
        ShownRoot(operator=operator, root=str(root), alone=root in alone)
        for operator, root in label.parts
    )
    return ShownCode(parts=parts, fields=_name(str(label).partition("; ")[2]))


def _excerpt(text: str) -> str:
    return shortened(text, EXCERPT)


def _name(text: str) -> str:
    return shortened(text, SHOWN_NAME)
