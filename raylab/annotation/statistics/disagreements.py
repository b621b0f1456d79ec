"""The most instructive disagreements of a run: which cases to read first.

Cases come as a stream, of which only the few best are kept.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raylab.annotation.outcome import Classification, Evaluation, HumanDecision, Outcome, Status
from raylab.annotation.statistics.aggregates import agreement_of, source_of
from raylab.annotation.statistics.confusion import Roots
from raylab.codebook import SetDistance
from raylab.opt.code import parse
from raylab.opt.prompts import shortened

Json = dict[str, Any]

KEPT = 10
EXCERPT = 600
"""Characters of a description, a rationale or any other text that is shown."""
SHOWN_NAME = 120
NOTHING: Roots = frozenset()
SETTLED = (Status.ADJUDICATED, Status.HUMAN)


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

        Most is to be learnt where two answers lie far apart and yet the evaluator found both
        convincing: there the description, or the taxonomy, can be read in two ways, while an
        answer that was refused shows no more than a mistake. So the product of distance and
        conviction counts. Cases that an adjudicator settled or a person is to decide go before
        those that failed on the way; equals are in the order of their ids.
        """
        settled = self.outcome.status in SETTLED
        return not settled, -self.distance * self.conviction, self.outcome.case


def disagreement(outcome: Outcome, distance: SetDistance) -> Disagreement | None:
    """The disagreement on a case; None unless both annotators gave a code and these differ."""
    agreement = agreement_of(outcome, distance)
    if agreement is None or agreement.exact:
        return None
    reports = (outcome.evaluation_a, outcome.evaluation_b)
    scores = [0 if report is None else report.score for report in reports]
    return Disagreement(outcome, 1.0 - agreement.weighted, min(scores) / 100)


class Disagreements:
    """Counts the disagreements of a run as its outcomes come, and keeps the most instructive."""

    def __init__(self, distance: SetDistance, kept: int = KEPT) -> None:
        """Start without outcomes; `kept` disagreements are held at most."""
        self._distance, self._kept = distance, kept
        self._best: list[Disagreement] = []
        self._total = 0

    def add(self, outcome: Outcome) -> None:
        """Count a case."""
        found = disagreement(outcome, self._distance)
        if found is not None:
            self._total += 1
            insort(self._best, found, key=lambda one: one.rank)
            del self._best[self._kept :]

    def summary(self, look_up: Callable[[str], tuple[str, HumanDecision | None]]) -> Json:
        """What people are shown; no text in it is longer than an excerpt.

        Args:
            look_up: The description of a case, by its id, and a person's latest decision on it.

        Returns:
            `total`, of all cases; `shown`, the most instructive by rank, each with `case`,
            `status`, `reason`, `gold`, `distance`, `conviction`, `description`; `a`, `b` and, if it
            was asked, `adjudicated` (with `choice`) as candidates; `code`, the protocol's, and the
            `decision` of a person or null. A candidate has its `model`, `code`, `rationale` and the
            evaluator's `report` with verdict, score, issues and summary. A code has `fields` and
            `parts`, each with `operator`, `root` and whether the root is `alone`, in the code of A
            or B and not in the other's.
        """
        return {
            "total": self._total,
            "shown": [_shown(found, *look_up(found.outcome.case)) for found in self._best],
        }


def _shown(found: Disagreement, description: str, decision: HumanDecision | None) -> Json:
    outcome = found.outcome
    a, b = _roots(outcome.a), _roots(outcome.b)
    settled = outcome.adjudication
    return {
        "case": _name(outcome.case),
        "status": outcome.status.value,
        "reason": outcome.reason and _excerpt(outcome.reason),
        "gold": outcome.gold and _code(outcome.gold),
        "distance": found.distance,
        "conviction": found.conviction,
        "description": _excerpt(description),
        "a": _candidate(outcome.a, outcome.evaluation_a, a - b),
        "b": _candidate(outcome.b, outcome.evaluation_b, b - a),
        "adjudicated": settled
        and {
            "choice": settled.choice,
            **_candidate(settled.classification, settled.confirmation),
        },
        "code": outcome.code and _code(outcome.code),
        "decision": decision and _decision(decision),
    }


def _candidate(
    answer: Classification | None, report: Evaluation | None, alone: Roots = NOTHING
) -> Json:
    return {
        "model": answer and _name(source_of(answer).response_model or source_of(answer).model),
        "code": answer and answer.code and _code(answer.code, alone),
        "rationale": answer and _excerpt(answer.rationale),
        "report": report
        and {
            "verdict": report.verdict.value,
            "score": report.score,
            "issues": [issue.value for issue in report.issues],
            "summary": _excerpt(report.summary),
        },
    }


def _decision(decision: HumanDecision) -> Json:
    return {
        "action": decision.action,
        "reviewer": _name(decision.reviewer),
        "decided": decision.decided.isoformat(),
        "confirmed": decision.confirmation and decision.confirmation.acceptable,
        **_candidate(decision.classification, decision.confirmation),
        "rationale": _excerpt(decision.justification),
    }


def _roots(answer: Classification | None) -> Roots:
    return parse(answer.code).roots if answer and answer.code else NOTHING


def _code(line: str, alone: Roots = NOTHING) -> Json:
    code = parse(line)
    parts = [
        {"operator": operator, "root": root.value, "alone": root in alone}
        for operator, root in code.parts
    ]
    return {"parts": parts, "fields": _name(str(code).partition("; ")[2])}


def _excerpt(text: str) -> str:
    return shortened(text, EXCERPT)


def _name(text: str) -> str:
    return shortened(text, SHOWN_NAME)
