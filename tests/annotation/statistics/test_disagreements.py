from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings

from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.statistics.disagreements import (
    EXCERPT,
    KEPT,
    DisagreementReport,
    FullCase,
    ShownRoot,
    disagreement_report,
)
from tests.annotation.outcomes import (
    adjudication,
    answer,
    call,
    decision,
    outcome,
    outcomes,
    report,
    tables,
)


def differing(case: str, a: str, b: str, scores: tuple[int, int], **changes: Any) -> Outcome:
    """A case that a person is to decide unless changed."""
    given: dict[str, Any] = {"status": Status.HUMAN, "code": None}
    given |= {"evaluation_a": report(score=scores[0]), "evaluation_b": report(score=scores[1])}
    return outcome(case, a, b, **(given | changes))


def summary(
    cases: Iterable[Outcome], description: str = "It does.", decided: HumanDecision | None = None
) -> DisagreementReport:
    outcomes = {one.case: one for one in cases}
    shown = disagreement_report(
        tables(outcomes.values()), lambda case: FullCase(outcomes[case], description, decided)
    )
    assert DisagreementReport.model_validate_json(shown.model_dump_json()) == shown
    return shown


# Distances of roots: Evo-Ctl 1.00, Lrn-Evo .80, Sym-Sch .30.
SIX = [
    differing("operators", "Evo/Lrn", "Lrn+Evo", (90, 90)),  # the same roots: 0
    differing("near", "Sym", "Sch", (90, 90)),  # .30 of .90: .27
    differing("far", "Evo", "Ctl", (90, 80)),  # 1.00 of .80: .80
    differing("refused", "Evo", "Ctl", (90, 40)),  # 1.00 of .40: .40
    differing("middle", "Lrn", "Evo", (95, 90)),  # .80 of .90: .72
    differing("failed", "Evo", "Ctl", (99, 99), status=Status.FAILED),  # .99, but not settled
    outcome("same", "Lrn", "Lrn"),
    outcome("unparsable", answer(None), "Lrn"),
    outcome("unanswered", None, "Lrn"),
]


@pytest.mark.parametrize("cases", [SIX, SIX[::-1]])
def test_far_codes_that_both_convince_come_first_and_what_failed_last(cases: list[Outcome]):
    found = summary(cases)
    assert found.total == 6
    assert [one.case for one in found.shown] == [
        "far", "middle", "refused", "near", "operators", "failed",
    ]  # fmt: skip
    values = [one.distance * one.conviction for one in found.shown]
    assert values == pytest.approx([0.8, 0.72, 0.4, 0.27, 0.0, 0.99])


def test_equals_are_in_the_order_of_their_ids_and_only_the_first_are_kept():
    cases = [differing(f"c{n:03}", "Evo", "Ctl", (90, 90)) for n in range(100)]
    found = summary(reversed(cases))
    assert found.total == 100
    assert [one.case for one in found.shown] == [f"c{n:03}" for n in range(KEPT)]


def test_an_answer_without_an_evaluation_convinces_nobody():
    cases = [
        differing("unjudged", "Evo", "Ctl", (0, 0), evaluation_a=None),
        differing("near", "Sym", "Sch", (10, 10)),
    ]
    assert [one.case for one in summary(cases).shown] == ["near", "unjudged"]


def test_everything_that_a_person_needs_is_told():
    settled = differing(
        "c", "Evo/Lrn", "Lrn+Sch", (90, 75), gold="Evo/Lrn", status=Status.ADJUDICATED,
        code="OPT=Evo/Lrn; Rep=param",
        adjudication=adjudication(("B", "A"), "A", "Evo/Lrn", report("WEAK_PASS", 75)),
    )  # fmt: skip
    (told,) = summary([settled]).shown
    a, b = told.candidates["A"], told.candidates["B"]
    assert a.code is not None and b.code is not None and b.report is not None
    assert a.code.parts == (
        ShownRoot(operator="", root="Evo", alone=True),
        ShownRoot(operator="/", root="Lrn", alone=False),
    )
    assert [part.alone for part in b.code.parts] == [False, True]
    assert a.model == "m-1"
    assert (b.report.verdict, b.report.score) == ("PASS", 75)
    settled = told.adjudicated
    assert settled is not None and settled.report is not None
    assert (settled.choice, settled.report.verdict) == ("A", "WEAK_PASS")
    assert told.code is not None and told.code.fields == "Rep=param"
    assert told.gold is not None and [part.root for part in told.gold.parts] == ["Evo", "Lrn"]
    assert told.decision is None


def test_a_persons_decision_is_told():
    case = differing("c", "Evo", "Ctl", (90, 90))
    (told,) = summary([case], decided=decision("c", "Swm", False, justification="why")).shown
    shown = told.decision
    assert shown is not None and shown.code is not None
    assert (shown.action, shown.reviewer, shown.confirmed) == ("decide", "R", False)
    assert shown.rationale == "why"
    assert shown.code.parts == (ShownRoot(operator="", root="Swm", alone=False),)
    undone = decision("c", None, None, action="undo")
    (told,) = summary([case], decided=undone).shown
    assert told.decision is not None
    assert (told.decision.action, told.decision.code) == ("undo", None)


def test_long_texts_are_excerpts():
    long = "x" * 100_000
    case = outcome(
        long, answer("Evo", [call(response_model=long)], rationale=long), "Ctl",
        status=Status.HUMAN, evaluation_a=report(score=90, summary=long), reason=long,
        meta={"note": long},
    )  # fmt: skip
    decided = decision("c", "Swm", justification=long, reviewer=long)
    (told,) = summary([case], long, decided).shown
    assert told.description == f"{'x' * EXCERPT} [{100_000 - EXCERPT} characters left out]"
    assert len(told.model_dump_json()) < 10_000


@settings(max_examples=25)
@given(outcomes())
def test_anything_can_be_told(cases: list[Outcome]):
    found = summary(cases)
    assert len(found.shown) == min(found.total, KEPT)
    assert found.shown == summary(cases[::-1]).shown
