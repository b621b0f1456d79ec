import numpy as np
import pytest

from raylab.label.opt.code import parse
from raylab.label.protocol.outcome import Outcome, Status, Verdict
from raylab.label.statistics.accuracy import (
    area_under_curve,
    audit_report,
    gold_report,
    judge_report,
    predicted_share,
)
from raylab.label.statistics.frame import tabulate
from raylab.label.statistics.panel import panel_report
from tests.label.protocol.outcomes import (
    CODEBOOK,
    adjudication,
    answer,
    call,
    outcome,
    report,
    tables,
    unread,
)


def judged(number: int, code: str, verdict: str, score: int) -> Outcome:
    return outcome(f"{number}", code, "Lrn", gold="Lrn", evaluation_a=report(verdict, score))


def test_verdicts_and_scores_against_gold_by_hand() -> None:
    cases = [
        judged(1, "Lrn", "PASS", 95),
        judged(2, "Lrn", "PASS", 85),
        judged(3, "Evo", "PASS", 85),
        judged(4, "Lrn", "WEAK_PASS", 75),
        judged(5, "Evo", "FAIL", 49),
    ]
    estimate = judge_report(tables(cases), "A")
    assert (estimate.codes, estimate.right.value) == (5, pytest.approx(3 / 5))
    shares = [estimate.right_by_verdict[verdict].value for verdict in Verdict]
    assert shares == [pytest.approx(2 / 3), 1.0, 0.0]
    # Of the six pairs: 95 beats both wrong codes, 85 ties one and beats one, 75 beats one.
    assert estimate.auc.value == pytest.approx((2 + 1.5 + 1) / 6)
    bands = {band: share.value for band, share in estimate.right_by_score.items() if share.count}
    assert bands == {"90 to 100": 1.0, "80 to 89": 0.5, "70 to 79": 1.0, "40 to 49": 0.0}


def test_what_no_evaluator_judged_is_passed_over() -> None:
    cases = [
        outcome("unanswered", None, "Lrn", gold="Lrn"),
        outcome("unjudged", "Lrn", "Lrn", gold="Lrn", evaluation_a=None),
        outcome("unread", answer(None), "Lrn", gold="Lrn", evaluation_a=unread()),
    ]
    assert judge_report(tables(cases), "A").codes == 0


def test_perfect_separation_leaves_an_interval_and_one_kind_alone_no_area() -> None:
    assert area_under_curve([90] * 3, []).reason == "no code is wrong"
    assert area_under_curve([], [90] * 3).reason == "no code is right"
    for right, wrong, area in ((90, 40, 1.0), (40, 90, 0.0)):
        estimate = area_under_curve([right] * 10, [wrong] * 10)
        assert estimate.value == area and estimate.interval is not None
        low, high = estimate.interval
        assert 0 <= low <= area <= high <= 1 and high - low > 0.1


def test_gold_that_the_prompts_name_measures_nothing() -> None:
    named = outcome("named", "Lrn", "Lrn", gold="Lrn", meta={"open_book": True})
    other = outcome("other", "Lrn", "Lrn", gold="Lrn")
    pairs = [(each, each.label) for each in (named, other)]
    for open_book, counted in ((True, 1), (False, 2)):
        estimate = tabulate(pairs, CODEBOOK, "AB", open_book=open_book)
        assert gold_report(estimate, "A").cases == judge_report(estimate, "A").codes == counted
        assert estimate.cases.gold_code.tolist() == ["OPT=Lrn", "OPT=Lrn"]


def test_estimate_by_hand() -> None:
    # Labels 1, 1, 0 with predictions 0.9, 0.8, 0.4; over all six, 0.9, 0.8, 0.4, 0.9, 0.6, 0.6.
    labels, predicted = np.array([1.0, 1, 0]), np.array([0.9, 0.8, 0.4])
    everywhere = np.array([0.9, 0.8, 0.4, 0.9, 0.6, 0.6])
    # Covariance 0.225, variance 0.04: the weight 0.225 / (1.5 * 0.04) is cut to 1, so that the
    # estimate is the mean prediction 0.7 plus the mean of 0.1, 0.2 and -0.4, which is -1 / 30.
    estimate, weight = predicted_share(labels, predicted, everywhere)
    assert weight == 1.0
    assert estimate.value == pytest.approx(0.7 - 1 / 30)


def test_decided_cases_are_counted_with_the_report_on_their_code() -> None:
    settled = adjudication(("A", "B"), "synthesis", "Lrn", report("PASS", 80))
    outcomes = [
        outcome("a", "Lrn", "Lrn", evaluation_a=report("PASS", 100)),
        outcome("b", "Lrn", "Evo", status=Status.ADJUDICATED, code="Lrn", adjudication=settled),
        outcome("c", "Lrn", "Evo", status=Status.HUMAN),
    ]
    lrn, evo = parse("Lrn"), parse("Evo")
    codes = {"a": [lrn], "b": [evo], "c": [lrn], "gone": []}
    estimate = audit_report(tables(outcomes), codes)
    assert (estimate.decided, estimate.drawn, estimate.audited) == (2, 2, 2)
    assert estimate.judged == pytest.approx(0.9)
    assert (estimate.right.value, estimate.right.count) == (0.5, 2)
    assert estimate.corrected.value == pytest.approx(0.5) and estimate.corrected.count == 2
    # Two people differ, and the code is one of both: as often right as the other one, which is.
    estimate = audit_report(tables(outcomes), {"a": [evo, lrn], "b": [lrn], "c": []})
    assert (estimate.audited, estimate.right.value) == (2, 1.0)
    # It is neither.
    estimate = audit_report(tables(outcomes), {"a": [evo, parse("Sch")], "b": [lrn]})
    assert (estimate.audited, estimate.right.value) == (2, 0.5)
    estimate = audit_report(tables([]), {"a": []})
    assert (estimate.decided, estimate.judged, estimate.corrected.reason) == (0, None, "no cases")


def test_an_active_audit_weighs_each_case_and_says_nothing_of_its_own_share() -> None:
    lrn, evo = parse("Lrn"), parse("Evo")
    cases = [outcome(f"{n}", "Lrn", "Lrn") for n in range(40)]
    # Four doubtful cases in ten were drawn, two of them wrong, and one in ten of the others.
    codes = {f"{n}": [evo if n < 2 else lrn] for n in range(8)} | {"39": [evo]}
    weights = {f"{n}": 2.5 if n < 4 else 7.5 for n in range(8)}
    estimate = audit_report(tables(cases), codes, weights)
    # The last has no known chance, and counts in nothing.
    assert (estimate.drawn, estimate.audited) == (9, 8)
    assert estimate.right.value == 6 / 8 and estimate.right.interval is None
    assert estimate.right.reason is not None and "probably wrong" in estimate.right.reason
    # Scores are all the same, so the estimate is the weighted share: 1 - 5 / 40.
    assert estimate.corrected.value == pytest.approx(35 / 40)
    even = audit_report(tables(cases), {case: codes[case] for case in weights})
    assert even.corrected.value == pytest.approx(6 / 8) and even.right.interval is not None


# What annotators are worth together

CASES = 400


def panel_case(number: int) -> Outcome:
    """A and C are right but in 40 cases; B answers as A does; D is wrong in half of the cases."""
    a = "Evo" if number < 40 else "Lrn"
    c = "Sch" if 20 <= number < 60 else "Lrn"
    d = "Swm" if number % 2 else "Lrn"
    answers = [
        answer(code, [call(f"classify-{name}")])
        for name, code in zip("abcd", (a, a, c, d), strict=True)
    ]
    judged = {f"evaluation_{n}": report(calls=(call(f"evaluate-{n}"),)) for n in "abcd"}
    return outcome(f"{number}", *answers, gold="Lrn", **judged)


def test_an_annotator_who_repeats_another_adds_nothing() -> None:
    report = panel_report(tables([panel_case(n) for n in range(CASES)], annotators=4), {})
    # A and B are wrong together in 40 cases, and their two votes of four come first.
    assert report.accuracy.value == pytest.approx(360 / CASES)
    changes = {name: change.value for name, change in report.without.items()}
    # Without A, the votes of C and D carry those among the first 20 that D has right; without C,
    # nothing changes, because A and B decide.
    assert changes["C"] == 0.0 and changes["D"] == 0.0
    assert changes["A"] == changes["B"] == pytest.approx(10 / CASES)
    # Bonett and Price: 10 gained and 0 lost are (11 - 1) / 402, and 1.96 roots of
    # (12 / 402 - (10 / 402)^2) / 402.
    assert report.without["A"].interval == pytest.approx((0.00816, 0.04159), abs=1e-5)
    # One of the three good ones alone is as good, at a quarter of the cost.
    assert report.cheapest == ("A",) and report.saving == pytest.approx(3 / 4)
    assert report.change is not None and report.change.interval is not None
    assert report.change.interval[0] > -0.03


def test_few_labels_of_people_say_nothing() -> None:
    estimate = panel_report(tables([panel_case(n) for n in range(20)], annotators=4), {})
    assert estimate.accuracy.reason == "it needs two annotators and 30 cases that people labelled"
    assert estimate.without == {} and estimate.cheapest == ()
