"""An audit: people classify a random sample of the cases that the protocol decided.

They see the description alone, so that no code leads them. Where their codes stand against those of
the protocol corrects what the evaluator's scores say of the whole batch.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from raylab.annotation.accuracy.inference import predicted_share
from raylab.annotation.input.cases import in_generation
from raylab.annotation.outcome import Evaluation, Outcome, Status
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.codebook import Label
from raylab.config.base import Strict
from raylab.runs.records import Part, Record

DECIDED = (Status.ACCEPTED, Status.ADJUDICATED)
"""The cases that an audit is about: those with a code of the protocol."""


class AuditRow(Strict):
    """A case of an audit file; the last three keys are for the person to fill in."""

    case: str
    description: str
    code: str = ""
    justification: str = ""
    reviewer: str = ""


class AuditDraw(Part):
    """What a case was drawn by; the body of its entry in the archive."""

    share: float
    """Share of the decided cases that was to be drawn."""
    seed: int


class AuditedCase(Part):
    """A person's label for a case of the sample; the body of its entry in the archive."""

    case: str
    code: str
    """The canonical line."""
    justification: str
    reviewer: str
    decided: datetime


class AuditRecord(Record):
    """The audit of a run before audits were archived; `adopt_audit` archives it."""

    file: ClassVar[str] = "audit.json"

    share: float
    """Share of the decided cases that was drawn."""
    codes: tuple[AuditedCase, ...]


class AuditReport(Part):
    """The result of an audit of the cases that the protocol decided.

    A code is right if it has the set of roots of the person's code.
    """

    decided: int
    """Cases that the protocol decided."""
    drawn: int
    """Cases of the sample."""
    audited: int
    """Cases of the sample that a person has classified."""
    judged: float | None
    """Mean score of the evaluator over all decided cases, as a share: its own estimate."""
    right: Estimate
    """Right codes among those audited."""
    corrected: Estimate
    """Right codes among all decided cases, by prediction-powered inference."""
    weight: float | None
    """Weight of the evaluator's scores in that, from 0 to 1."""


class Audits:
    """Counts of the decided cases by score, and of the audited ones by score and truth."""

    def __init__(self, codes: Mapping[str, Label | None]) -> None:
        """Starts without outcomes, with each drawn case and its code, None if it has none."""
        self._codes = codes
        self._scores: Counter[int] = Counter()
        self._audited: Counter[tuple[int, bool]] = Counter()
        self._drawn = 0

    def add(self, outcome: Outcome) -> None:
        """Counts a case, if the protocol decided it."""
        evaluation = final_evaluation(outcome)
        if outcome.label is None or evaluation is None:
            return
        self._scores[evaluation.score] += 1
        self._drawn += outcome.case in self._codes
        given = self._codes.get(outcome.case)
        if given is not None:
            right = given.categories == outcome.label.categories
            self._audited[evaluation.score, right] += 1

    def summary(self) -> AuditReport:
        """Returns the report of the counts."""
        everywhere = _all_of(self._scores) / 100
        pairs = sorted(self._audited.elements())
        right = proportion(sum(truth for _, truth in pairs), len(pairs))
        corrected, weight = right, None
        if len(pairs) > 1:
            labels = np.array([truth for _, truth in pairs], float)
            scores = np.array([score for score, _ in pairs], float) / 100
            found = predicted_share(labels, scores, everywhere)
            weight = found.weight
            corrected = Estimate(
                value=found.value, interval=found.interval, count=len(everywhere), reason=None
            )
        return AuditReport(
            decided=len(everywhere),
            drawn=self._drawn,
            audited=len(pairs),
            judged=float(everywhere.mean()) if len(everywhere) else None,
            right=right,
            corrected=corrected,
            weight=weight,
        )


def is_drawn(case: str, seed: int, share: float) -> bool:
    """Returns True if an audit of this share includes a case, provided the protocol decided it.

    Seed and id alone draw a case, so a larger share draws a superset.
    """
    return in_generation(f"audit/{case}", seed, share)


def final_evaluation(outcome: Outcome) -> Evaluation | None:
    """Returns the report on the code that the protocol decided for; None if it decided nothing."""
    if outcome.status is Status.ACCEPTED:
        return outcome.evaluation("A")
    if outcome.status is Status.ADJUDICATED and outcome.adjudication is not None:
        return outcome.adjudication.confirmation
    return None


def _all_of(counts: Counter[int]) -> NDArray[np.float64]:
    return np.repeat(np.array(list(counts), float), np.array(list(counts.values()), int))
