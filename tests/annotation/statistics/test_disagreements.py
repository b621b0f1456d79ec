from typing import Any

import pytest

from raylab.annotation.outcome import Outcome, Status
from raylab.annotation.statistics.agreement import SHOWN, disagreement_report
from tests.annotation.outcomes import answer, outcome, report, tables


def differing(case: str, a: str, b: str, scores: tuple[int, int], **changes: Any) -> Outcome:
    """A case that a person is to decide unless changed."""
    given: dict[str, Any] = {"status": Status.HUMAN, "code": None}
    given |= {"evaluation_a": report(score=scores[0]), "evaluation_b": report(score=scores[1])}
    return outcome(case, a, b, **(given | changes))


# Distances of roots: Evo-Ctl 1.00, Lrn-Evo .80, Sym-Sch .30.
CASES = [
    differing("operators", "Evo/Lrn", "Lrn+Evo", (90, 90)),  # the same roots: 0
    differing("near", "Sym", "Sch", (90, 90)),  # .30 of .90: .27
    differing("far", "Evo", "Ctl", (90, 80)),  # 1.00 of .80: .80
    differing("refused", "Evo", "Ctl", (90, 40)),  # 1.00 of .40: .40
    differing("unjudged", "Evo", "Ctl", (90, 90), evaluation_a=None),  # convinces nobody: 0
    differing("middle", "Lrn", "Evo", (95, 90)),  # .80 of .90: .72
    differing("failed", "Evo", "Ctl", (99, 99), status=Status.FAILED),  # .99, but not settled
    outcome("same", "Lrn", "Lrn"),
    outcome("unparsable", answer(None), "Lrn"),
    outcome("unanswered", None, "Lrn"),
]


def test_far_codes_that_both_convince_come_first_and_what_failed_last():
    found = disagreement_report(tables(CASES))
    assert disagreement_report(tables(CASES[::-1])) == found
    assert found.total == 7
    assert [one.case for one in found.shown] == [
        "far", "middle", "refused", "near", "operators", "unjudged", "failed",
    ]  # fmt: skip
    values = [one.distance * one.conviction for one in found.shown]
    assert values == pytest.approx([0.8, 0.72, 0.4, 0.27, 0.0, 0.0, 0.99])


def test_only_the_first_are_kept():
    cases = [differing(f"c{n:03}", "Evo", "Ctl", (90, 90)) for n in range(100)]
    found = disagreement_report(tables(reversed(cases)))
    assert found.total == 100
    assert [one.case for one in found.shown] == [f"c{n:03}" for n in range(SHOWN)]
