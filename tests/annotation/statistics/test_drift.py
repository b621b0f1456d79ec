import json
import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raylab.annotation.outcome import Outcome, Status
from raylab.annotation.statistics.canaries import Canary, RunCounts, count_run, packaged_canary
from raylab.annotation.statistics.drift import CanaryChange, CanaryResult, Drift, compare_runs
from raylab.opt.code import parse
from tests.annotation.outcomes import (
    CODEBOOK,
    NOON,
    answer,
    call,
    outcome,
    outcomes,
    report,
)

CASES = 10
CANARY: Canary = {(f"c{n}", f"subject of c{n}"): parse("Lrn") for n in range(CASES)}


def run(name: str, day: int, cases: Iterable[Outcome], canary: Canary = CANARY) -> RunCounts:
    return count_run(name, NOON + timedelta(days=day), cases, canary, CODEBOOK, "opt-1.0")


def answered(right: int, **changes: Any) -> list[Outcome]:
    """Both annotators have the first canaries right, and take the others for search."""
    return [
        outcome(
            f"c{n}",
            answer("Lrn" if n < right else "Sch", [call(**changes)]),
            answer("Lrn" if n < right else "Sch", [call("classify-b", model="n")]),
            gold="Lrn",
        )
        for n in range(CASES)
    ]


def compared(drift: Drift, measure: str = "roots", side: str = "A") -> CanaryChange:
    (row,) = [r for r in drift.comparisons if (r.measure, r.side) == (measure, side)]
    return row


def result_of(change: CanaryChange) -> CanaryResult:
    assert change.result is not None
    return change.result


def test_a_run_is_compared_with_the_one_before_it():
    drift = compare_runs([run("late", 2, answered(3)), run("early", 1, answered(9))])
    assert Drift.of_content(json.loads(json.dumps(drift.content(), allow_nan=False))) == drift
    assert [of.run for of in drift.runs] == ["early", "late"]
    assert (drift.level, drift.power) == (0.05, 0.8)
    row = compared(drift)
    assert (row.before, row.after, row.models) == ("early", "late", ("m",))
    result = result_of(row)
    assert (row.cases, result.right_before, result.right_after) == (10, 9, 3)
    assert (result.lost, result.gained, row.changed) == (6, 0, ())
    assert result.difference.value == pytest.approx(-0.6)
    assert result.difference.interval is not None
    low, high = result.difference.interval
    assert -1 <= low < -0.6 < high < 0
    # Fisher: tables with 12 right of 20 in all, no likelier than 3 and 9.
    ways = [math.comb(10, k) * math.comb(10, 12 - k) for k in range(2, 11)]
    p_value = sum(w for w in ways if w <= ways[3 - 2]) / sum(ways)
    assert result.tests.two_proportion.p_value == pytest.approx(p_value)
    # Six changed, all for the worse: 2 / 2 ** 6.
    assert result.tests.mcnemar.p_value == pytest.approx(1 / 32)


def test_flags_are_corrected_over_the_measures_of_a_run():
    drift = compare_runs([run("early", 1, answered(9)), run("late", 2, answered(3))])
    rows = {(r.measure, r.side): result_of(r).tests for r in drift.comparisons}
    assert len(rows) == 5
    # The two measures of roots have p, the other three 1; Holm takes 5 p and then 4 p, of which
    # none may be below the one before it.
    p = rows["roots", "A"].two_proportion.p_value
    for side in "AB":
        assert rows["roots", side].two_proportion.holm == pytest.approx(5 * p)
        assert rows["roots", side].two_proportion.flagged is (5 * p <= 0.05)
        assert rows["roots", side].mcnemar.holm == pytest.approx(5 / 32)
    assert rows["exact", "A and B"].mcnemar.holm == 1.0
    assert drift.alarms == ()
    drift = compare_runs([run("early", 1, answered(10)), run("late", 2, answered(1))])
    # Nine lost: 5 * 2 / 2 ** 9; Fisher's 5 * 2 * 10 / comb(20, 9) and the tail.
    tests = result_of(compared(drift)).tests
    assert tests.mcnemar.holm == pytest.approx(5 / 256)
    assert tests.mcnemar.flagged and tests.two_proportion.flagged
    assert list(drift.alarms) == [
        "right roots, A (m): 10 of 10 canaries in early, 1 in late (two_proportion, mcnemar)",
        "right roots, B (n): 10 of 10 canaries in early, 1 in late (two_proportion, mcnemar)",
    ]


def test_a_later_run_changes_nothing_that_was_said_of_earlier_ones():
    runs = [run("1", 1, answered(9)), run("2", 2, answered(3)), run("3", 3, answered(3))]
    first, both = compare_runs(runs[:2]), compare_runs(runs)
    assert both.comparisons[:5] == first.comparisons
    later = both.comparisons[5:]
    assert {(row.before, row.after) for row in later} == {("2", "3")}
    assert {result_of(row).tests.mcnemar.p_value for row in later} == {1.0}


def test_what_else_changed_is_named():
    before = run("1", 1, answered(9))
    after = answered(9, response_model="m-2", prompt_hash="i", seed=7)
    after = [
        one.model_copy(
            update={
                "answers": {
                    **one.answers,
                    "A": one.answers["A"].model_copy(
                        update={"evaluation": report(calls=(call(response_model="e-2"),))}
                    ),
                }
            }
        )
        for one in after
    ]
    drift = compare_runs([before, run("2", 2, after)])
    ours = ("response_model of A", "prompt of A", "seed of A")
    assert compared(drift).changed == ours
    assert compared(drift, "exact", "A and B").changed == ours
    assert compared(drift, "roots", "B").changed == ()
    assert compared(drift, "pass_rate", "B").changed == ("response_model of evaluator",)
    other = count_run("2", NOON + timedelta(1), answered(9), CANARY, CODEBOOK, "opt-2")
    assert compared(compare_runs([before, other]), "roots", "B").changed == ("taxonomy",)


def test_only_runs_of_the_same_model_compare():
    runs = [
        run("1", 1, answered(9)),
        run("2", 2, answered(2, model="other")),
        run("3", 3, answered(8)),
    ]
    drift = compare_runs(runs)
    assert compared(drift).before == "1"
    assert [row.before for row in drift.comparisons if row.side == "B"] == [
        "1", "1", "2", "2"
    ]  # fmt: skip


def test_what_the_journal_answered_is_no_look_at_drift():
    copied = answered(9, cached=True)
    drift = compare_runs([run("1", 1, answered(9)), run("2", 2, copied), run("3", 3, answered(4))])
    rows = [r for r in drift.comparisons if (r.measure, r.side) == ("roots", "A")]
    assert rows[0].result is None
    assert rows[0].reason == "the journal answered for 2: annotate with fresh=true to ask anew"
    # The third is compared with the last run that was asked.
    assert (rows[1].before, result_of(rows[1]).lost) == ("1", 5)
    second = drift.runs[1].canary
    of_a = next(c for c in second if (c.measure, c.side) == ("roots", "A"))
    assert (of_a.value, of_a.count, of_a.cached) == (None, 0, 10)
    # A code from the journal that an evaluator judged anew is a look at the evaluator.
    passed = next(r for r in drift.comparisons if (r.measure, r.side) == ("pass_rate", "A"))
    assert passed.cases == 10


def test_canaries_are_matched_by_id_and_description():
    reworded = [
        one.model_copy(update={"description_hash": "another"}) if one.case == "c0" else one
        for one in answered(9)
    ]
    others = [outcome("x", "Lrn", "Lrn", gold="Lrn")]
    drift = compare_runs([run("1", 1, answered(9)), run("2", 2, [*reworded, *others])])
    assert (drift.runs[1].cases, drift.runs[1].canaries) == (11, 9)
    assert (compared(drift).cases, result_of(compared(drift)).right_before) == (9, 8)
    drift = compare_runs([run("1", 1, answered(9)), run("2", 2, others)])
    assert drift.comparisons == ()


def test_runs_without_common_canaries_say_so():
    drift = compare_runs([run("1", 1, answered(9)[:5]), run("2", 2, answered(9)[5:])])
    row = compared(drift)
    assert (row.cases, row.result) == (0, None)
    assert row.reason == "no canary was answered in both"


def test_a_canary_that_could_not_be_read_is_wrong_and_one_that_failed_is_left_out():
    lost = [
        outcome("c0", answer(None), answer("Lrn", [call(model="n")]), status=Status.HUMAN),
        outcome("c1", None, answer("Lrn", [call(model="n")]), status=Status.FAILED),
    ]
    drift = compare_runs([run("1", 1, answered(10)), run("2", 2, lost)])
    assert (compared(drift).cases, result_of(compared(drift)).lost) == (1, 1)
    assert compared(drift, "exact", "A and B").reason == "2 has no result on a canary"


def test_the_gold_of_the_canary_counts_and_not_that_of_the_run():
    canary: Canary = {("c0", "subject of c0"): parse("Sch"), ("c1", "subject of c1"): None}
    drift = compare_runs([run("1", 1, answered(9), canary), run("2", 2, answered(0), canary)])
    result = result_of(compared(drift))
    assert (result.right_before, result.right_after, result.gained) == (0, 1, 1)
    assert compared(drift).cases == 1
    assert compared(drift, "pass_rate").cases == 2


def test_what_could_have_been_found_is_told():
    drift = compare_runs([run("1", 1, answered(9)), run("2", 2, answered(9))], level=0.1)
    found = result_of(compared(drift)).detectable
    # Cohen's h = (z of 0.99 + z of 0.80) sqrt(2 / 10), at 0.1 / 5, from 2 asin sqrt 0.9.
    h = (2.326348 + 0.841621) * math.sqrt(0.2)
    assert found.drop == pytest.approx(math.sin(math.asin(math.sqrt(0.9)) - h / 2) ** 2, abs=1e-5)
    assert found.rise is None
    assert result_of(compared(drift, "exact", "A and B")).detectable.rise is None


def test_no_runs_and_one_run():
    assert compare_runs([]).comparisons == ()
    drift = compare_runs([run("1", 1, [])])
    assert (drift.runs[0].cases, drift.alarms) == (0, ())
    assert drift.runs[0].agreement.exact.reason == "no cases"


def test_the_packaged_canary_is_the_gold_with_published_codes():
    canary = packaged_canary(CODEBOOK)
    assert len(canary) > 40
    assert all(gold is not None for gold in canary.values())
    assert ("pid", parse("Ctl")) in {(case, gold) for (case, _), gold in canary.items()}


@settings(max_examples=15)
@given(outcomes(), outcomes(), st.floats(0.01, 0.5))
def test_anything_can_be_compared(first: list[Outcome], second: list[Outcome], level: float):
    canary: Canary = {(one.case, one.description_hash): one.gold_label for one in (*first, *second)}
    drift = compare_runs([run("1", 1, first, canary), run("2", 2, second, canary)], level=level)
    json.dumps(drift.content(), allow_nan=False)
    for row in drift.comparisons:
        if row.result is None:
            assert row.reason
            continue
        found = row.result
        assert 0 <= found.lost <= found.right_before <= row.cases
        assert found.right_before - found.lost + found.gained == found.right_after
        changed = found.lost + found.gained
        p = stats.binomtest(found.lost, changed).pvalue if changed else 1.0
        assert found.tests.mcnemar.p_value == pytest.approx(p)
        for test in (found.tests.two_proportion, found.tests.mcnemar):
            assert test.p_value <= test.holm <= 1 + 1e-12
            assert test.flagged is (test.holm <= level)
