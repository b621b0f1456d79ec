"""The most instructive disagreements of a run: the cases to read first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raylab.annotation.outcome import (
    OTHER,
    SIDES,
    Classification,
    Evaluation,
    HumanDecision,
    Outcome,
    Side,
    Status,
    Verdict,
)
from raylab.annotation.statistics.frame import Frame, Tables
from raylab.codebook import Categories, Label
from raylab.llm.prompts import shortened
from raylab.runs.records import Part

KEPT = 10
EXCERPT = 600
"""Longest excerpt of a description, a rationale or any other text, in characters."""
SHOWN_NAME = 120
NOTHING: Categories = frozenset()
SETTLED = (Status.ADJUDICATED, Status.HUMAN)


@dataclass(frozen=True)
class FullCase:
    """A case with the texts that a person reads.

    Attributes:
        outcome: Its outcome.
        description: Its description.
        decision: The latest human decision; None if there is none.
    """

    outcome: Outcome
    description: str
    decision: HumanDecision | None


class ShownRoot(Part):
    """A root of a shown code."""

    operator: str
    """The operator before the root; empty for the first."""
    root: str
    alone: bool
    """True if only this annotator's code has the root."""


class ShownCode(Part):
    """A code as shown to people."""

    parts: tuple[ShownRoot, ...]
    fields: str
    """The fields of the canonical line."""


class ShownJudgement(Part):
    """The evaluator's report on a shown code."""

    verdict: Verdict
    score: int
    issues: tuple[str, ...]
    summary: str


class Candidate(Part):
    """A code for the case, with the evaluator's report."""

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
    """True if the evaluator confirmed it; None if it was not asked."""


class ShownDisagreement(Part):
    """A disagreement as shown to people; every text is at most an excerpt."""

    case: str
    status: Status
    reason: str | None
    gold: ShownCode | None
    distance: float
    """Distance of the two sets of roots, in [0, 1]."""
    conviction: float
    """Lower of the evaluator's two scores, in [0, 1]."""
    description: str
    candidates: dict[Side, Candidate]
    """The codes of the two annotators."""
    adjudicated: AdjudicatedCandidate | None
    code: ShownCode | None
    """The final code of the protocol."""
    decision: DecidedCandidate | None
    """The latest human decision."""


class DisagreementReport(Part):
    """The disagreements of a run."""

    total: int
    shown: tuple[ShownDisagreement, ...]
    """The most instructive, by rank."""


def disagreement_report(
    tables: Tables, look_up: Callable[[str], FullCase], kept: int = KEPT
) -> DisagreementReport:
    """Returns the cases in which the annotators' codes differ, the most instructive first.

    A case is most instructive if the answers lie far apart and the evaluator still found both
    convincing: then the description or the taxonomy is ambiguous, while a refused answer only shows
    a mistake. So the product of distance and conviction decides. Cases that were adjudicated or
    wait for a person come before failed ones; ties are in the order of ids.

    Args:
        tables: The run.
        look_up: Returns the case of an id.
        kept: Most cases to show.
    """
    differing = _ranked(tables.cases[tables.cases.exact.eq(False)])
    return DisagreementReport(
        total=len(differing),
        shown=tuple(
            _shown(look_up(case), distance, conviction)
            for case, distance, conviction in zip(
                differing.case[:kept],
                differing.distance[:kept],
                differing.conviction[:kept],
                strict=True,
            )
        ),
    )


def _ranked(cases: Frame) -> Frame:
    scores = cases[[f"score_{side.lower()}" for side in SIDES]].fillna(0)
    ranked = cases[["case"]].assign(
        distance=1.0 - cases.weighted,
        conviction=scores.min(axis=1) / 100,
        unsettled=~cases.run_status.isin(SETTLED),
    )
    ranked["instructive"] = ranked.distance * ranked.conviction
    ranked["case"] = ranked.case.astype(str)
    order = ["unsettled", "instructive", "case"]
    return ranked.sort_values(order, ascending=[True, False, True])


def _shown(full: FullCase, distance: float, conviction: float) -> ShownDisagreement:
    outcome = full.outcome
    roots = {side: _roots(outcome.label_of(side)) for side in SIDES}
    settled = outcome.adjudication
    return ShownDisagreement(
        case=_name(outcome.case),
        status=outcome.status,
        reason=outcome.reason and _excerpt(outcome.reason),
        gold=_code(outcome.gold_label) if outcome.gold_label else None,
        distance=distance,
        conviction=conviction,
        description=_excerpt(full.description),
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
        decision=full.decision and _decision(full.decision),
    )


def _candidate(
    answer: Classification | None, report: Evaluation | None, alone: Categories = NOTHING
) -> Candidate:
    call = answer.calls[0] if answer and answer.calls else None
    return Candidate(
        model=call and _name(call.reply.response_model or call.model),
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
