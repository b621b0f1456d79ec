"""The most instructive disagreements of a run: the cases to read first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

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
from raylab.annotation.statistics.agreement import NOTHING
from raylab.annotation.statistics.frame import Tables
from raylab.codebook import Categories, Label
from raylab.llm.prompts import shortened
from raylab.runs.records import Part

KEPT = 10
EXCERPT = 600
"""Longest excerpt of a description, a rationale or any other text, in characters."""
SHOWN_NAME = 120
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
    cases = tables.cases[tables.cases.exact.eq(False)]
    distance = 1.0 - cases.weighted
    conviction = cases[["score_a", "score_b"]].fillna(0).min(axis=1) / 100
    order = pd.DataFrame(
        {
            "unsettled": ~cases.run_status.isin(SETTLED),
            "blandness": -distance * conviction,
            "case": cases.case.astype(str),
        }
    ).sort_values(["unsettled", "blandness", "case"])[:kept]
    return DisagreementReport(
        total=len(cases),
        shown=tuple(
            _shown(look_up(case), float(distance[place]), float(conviction[place]))
            for place, case in order.case.items()
        ),
    )


def _shown(full: FullCase, distance: float, conviction: float) -> ShownDisagreement:
    outcome, settled, decision = full.outcome, full.outcome.adjudication, full.decision
    labels = {side: outcome.label_of(side) for side in SIDES}
    roots = {side: label.categories if label else NOTHING for side, label in labels.items()}
    return ShownDisagreement(
        case=shortened(outcome.case, SHOWN_NAME),
        status=outcome.status,
        reason=outcome.reason and shortened(outcome.reason, EXCERPT),
        gold=_code(outcome.gold_label),
        distance=distance,
        conviction=conviction,
        description=shortened(full.description, EXCERPT),
        candidates={
            side: Candidate(**_candidate(answer, report, roots[side] - roots[OTHER[side]]))
            for side in SIDES
            for answer, report in [(outcome.classification(side), outcome.evaluation(side))]
        },
        adjudicated=settled
        and AdjudicatedCandidate(
            choice=settled.choice, **_candidate(settled.classification, settled.confirmation)
        ),
        code=_code(outcome.label),
        decision=decision and _decision(decision),
    )


def _candidate(
    answer: Classification | None, report: Evaluation | None, alone: Categories = NOTHING
) -> dict[str, Any]:
    """Returns the fields of a `Candidate`."""
    call = answer.calls[0] if answer and answer.calls else None
    return {
        "model": call and shortened(call.reply.response_model or call.model, SHOWN_NAME),
        "code": answer and _code(answer.label, alone),
        "rationale": answer and shortened(answer.rationale, EXCERPT),
        "report": report
        and ShownJudgement(
            verdict=report.verdict,
            score=report.score,
            issues=report.issues,
            summary=shortened(report.summary, EXCERPT),
        ),
    }


def _decision(decision: HumanDecision) -> DecidedCandidate:
    fields = _candidate(decision.classification, decision.confirmation)
    fields["rationale"] = shortened(decision.justification, EXCERPT)
    return DecidedCandidate(
        **fields,
        action=decision.action,
        reviewer=shortened(decision.reviewer, SHOWN_NAME),
        decided=decision.decided.isoformat(),
        confirmed=decision.confirmation and decision.confirmation.acceptable,
    )


def _code(label: Label | None, alone: Categories = NOTHING) -> ShownCode | None:
    if label is None:
        return None
    parts = tuple(
        ShownRoot(operator=operator, root=str(root), alone=root in alone)
        for operator, root in label.parts
    )
    return ShownCode(parts=parts, fields=shortened(str(label).partition("; ")[2], SHOWN_NAME))
