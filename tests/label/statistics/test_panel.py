"""What annotators are worth together, by hand."""

import pytest

from raylab.label.protocol.outcome import Outcome
from raylab.label.statistics.panel import panel_report
from tests.label.protocol.outcomes import answer, call, outcome, report, tables

CASES = 400


def case(number: int) -> Outcome:
    """A and C are right but in 40 cases; B answers as A does; D is wrong in half of the cases."""
    a = "Evo" if number < 40 else "Lrn"
    c = "Sch" if 20 <= number < 60 else "Lrn"
    d = "Swm" if number % 2 else "Lrn"
    given = [
        answer(code, [call(f"classify-{name}")])
        for name, code in zip("abcd", (a, a, c, d), strict=True)
    ]
    judged = {f"evaluation_{n}": report(calls=(call(f"evaluate-{n}"),)) for n in "abcd"}
    return outcome(f"{number}", *given, gold="Lrn", **judged)


def test_an_annotator_who_repeats_another_adds_nothing() -> None:
    found = panel_report(tables([case(n) for n in range(CASES)], annotators=4), {})
    # A and B are wrong together in 40 cases, and their two votes of four come first.
    assert found.accuracy.value == pytest.approx(360 / CASES)
    changes = {name: change.value for name, change in found.without.items()}
    # Without A, the votes of C and D carry those among the first 20 that D has right; without C,
    # nothing changes, because A and B decide.
    assert changes["C"] == 0.0 and changes["D"] == 0.0
    assert changes["A"] == changes["B"] == pytest.approx(10 / CASES)
    # One of the three good ones alone is as good, at a quarter of the cost.
    assert found.cheapest == ("A",) and found.saving == pytest.approx(3 / 4)
    assert found.change is not None and found.change.interval is not None
    assert found.change.interval[0] > -0.03


def test_the_interval_of_a_change_is_that_of_bonett_and_price() -> None:
    cases = [case(n) for n in range(CASES)]
    found = panel_report(tables(cases, annotators=4), {}).without["A"]
    # 10 gained and 0 lost: (11 - 1) / 402, and 1.96 roots of (12 / 402 - (10 / 402)^2) / 402.
    assert found.interval == pytest.approx((0.00816, 0.04159), abs=1e-5)


def test_few_labels_of_people_say_nothing() -> None:
    found = panel_report(tables([case(n) for n in range(20)], annotators=4), {})
    assert found.accuracy.reason == "it needs two annotators and 30 cases that people labelled"
    assert found.without == {} and found.cheapest == ()
