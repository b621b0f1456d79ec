import numpy as np
import pytest

from raylab.annotation.outcome import Outcome, Verdict
from raylab.annotation.statistics.frame import tabulate
from raylab.annotation.statistics.gold import area_under_curve, gold_report, judge_report
from tests.annotation.outcomes import CODEBOOK, answer, outcome, report, tables, unread


def judged(number: int, code: str, verdict: str, score: int) -> Outcome:
    return outcome(f"{number}", code, "Lrn", gold="Lrn", evaluation_a=report(verdict, score))


def test_verdicts_and_scores_against_gold_by_hand() -> None:
    cases = [
        judged(1, "Lrn", "PASS", 95),
        judged(2, "Lrn", "PASS", 85),
        judged(3, "Evo", "PASS", 85),
        judged(4, "Lrn", "WEAK_PASS", 75),
        judged(5, "Evo", "FAIL", 40),
    ]
    found = judge_report(tables(cases), "A")
    assert (found.codes, found.right.value) == (5, pytest.approx(3 / 5))
    given = {verdict: of.value for verdict, of in found.right_by_verdict.items()}
    assert given == {
        Verdict.PASS: pytest.approx(2 / 3),
        Verdict.WEAK_PASS: 1.0,
        Verdict.FAIL: 0.0,
    }
    # Of the six pairs: 95 beats both wrong codes, 85 ties one and beats one, 75 beats one.
    assert found.auc.value == pytest.approx((2 + 1.5 + 1) / 6)
    bands = {lowest: share.value for lowest, share in found.right_by_score.items() if share.count}
    assert bands == {90: 1.0, 80: 0.5, 70: 1.0, 40: 0.0}


def test_what_no_evaluator_judged_is_passed_over() -> None:
    cases = [
        outcome("unanswered", None, "Lrn", gold="Lrn"),
        outcome("without gold", "Lrn", "Lrn"),
        outcome("unjudged", "Lrn", "Lrn", gold="Lrn", evaluation_a=None),
        outcome("unread", answer(None), "Lrn", gold="Lrn", evaluation_a=unread()),
    ]
    found = judge_report(tables(cases), "A")
    assert (found.codes, found.auc.value, found.auc.reason) == (0, None, "no cases")


def test_area_is_undefined_without_both_kinds() -> None:
    assert area_under_curve([90] * 3, []).reason == "no code is wrong"
    assert area_under_curve([], [90] * 3).reason == "no code is right"


@pytest.mark.parametrize(("right", "wrong", "area"), [(90, 40, 1.0), (40, 90, 0.0)])
def test_perfect_separation_leaves_an_interval(right: int, wrong: int, area: float) -> None:
    found = area_under_curve([right] * 10, [wrong] * 10)
    assert found.value == area and found.interval is not None
    low, high = found.interval
    assert 0 <= low <= area <= high <= 1 and high - low > 0.1


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
def test_interval_of_the_area_covers_it(shift: float) -> None:
    # Normal scores of unit variance: the area is Phi(shift / sqrt 2).
    true = {0.0: 0.5, 1.0: 0.7602, 2.5: 0.9615}[shift]
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        right = np.round(50 + 10 * (generator.normal(size=40) + shift)).tolist()
        wrong = np.round(50 + 10 * generator.normal(size=15)).tolist()
        interval = area_under_curve(right, wrong).interval
        assert interval is not None
        held += interval[0] <= true <= interval[1]
    assert 0.92 <= held / 400 <= 0.99


def test_gold_that_the_prompts_name_measures_nothing() -> None:
    named = outcome("named", "Lrn", "Lrn", gold="Lrn", meta={"open_book": True})
    other = outcome("other", "Lrn", "Lrn", gold="Lrn")
    pairs = [(one, one.label) for one in (named, other)]
    for open_book, counted in ((True, 1), (False, 2)):
        found = tabulate(pairs, CODEBOOK, open_book=open_book)
        assert gold_report(found, "A").cases == judge_report(found, "A").codes == counted
        assert found.cases.gold_code.tolist() == ["OPT=Lrn", "OPT=Lrn"]
