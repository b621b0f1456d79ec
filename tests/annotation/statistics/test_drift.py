import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raylab.annotation.outcome import Outcome, Status
from raylab.annotation.statistics.drift import (
    ArchivedRun,
    Drift,
    DriftChange,
    DriftResult,
    compare_latest,
    compare_runs,
)
from tests.annotation.outcomes import (
    NOON,
    answer,
    archived,
    call,
    outcome,
    outcomes,
    report,
)

CASES = 10


def run(name: str, day: int, cases: Iterable[Outcome]) -> ArchivedRun:
    return archived(name, cases, day)


def answered(right: int, **changes: Any) -> list[Outcome]:
    """Both annotators have the first cases right, and take the others for search."""
    return [
        outcome(
            f"c{n}",
            answer("Lrn" if n < right else "Sch", [call(**changes)]),
            answer("Lrn" if n < right else "Sch", [call("classify-b", model="n")]),
            gold="Lrn",
        )
        for n in range(CASES)
    ]


def compared(drift: Drift, measure: str = "roots", side: str = "A") -> DriftChange:
    (row,) = [r for r in drift.comparisons if (r.measure, r.side) == (measure, side)]
    return row


def result_of(change: DriftChange) -> DriftResult:
    assert change.result is not None
    return change.result


def test_a_run_is_compared_with_the_one_before_it():
    drift = compare_runs([run("late", 2, answered(3)), run("early", 1, answered(9))])
    assert Drift.of_content(json.loads(json.dumps(drift.content(), allow_nan=False))) == drift
    assert [of.run for of in drift.runs] == ["early", "late"]
    assert drift.level == 0.05
    row = compared(drift)
    assert (row.before, row.after, row.models) == ("early", "late", ("m",))
    result = result_of(row)
    assert (row.cases, result.right_before, result.right_after) == (10, 9, 3)
    assert (result.lost, result.gained, row.changed) == (6, 0, ())
    # Fisher: tables with 12 right of 20 in all, no likelier than 3 and 9.
    ways = [math.comb(10, k) * math.comb(10, 12 - k) for k in range(2, 11)]
    p_value = sum(w for w in ways if w <= ways[3 - 2]) / sum(ways)
    assert result.tests["two_proportion"].p_value == pytest.approx(p_value)
    # Six changed, all for the worse: 2 / 2 ** 6.
    assert result.tests["mcnemar"].p_value == pytest.approx(1 / 32)


def test_flags_are_corrected_over_the_measures_of_a_run():
    drift = compare_runs([run("early", 1, answered(9)), run("late", 2, answered(3))])
    rows = {(r.measure, r.side): result_of(r).tests for r in drift.comparisons}
    assert len(rows) == 5
    # The two measures of roots have p, the other three 1; Holm takes 5 p and then 4 p, of which
    # none may be below the one before it.
    p = rows["roots", "A"]["two_proportion"].p_value
    for side in "AB":
        assert rows["roots", side]["two_proportion"].holm == pytest.approx(5 * p)
        assert rows["roots", side]["two_proportion"].flagged is (5 * p <= 0.05)
        assert rows["roots", side]["mcnemar"].holm == pytest.approx(5 / 32)
    assert rows["exact", "A and B"]["mcnemar"].holm == 1.0
    assert drift.alarms == ()
    drift = compare_runs([run("early", 1, answered(10)), run("late", 2, answered(1))])
    # Nine lost: 5 * 2 / 2 ** 9; Fisher's 5 * 2 * 10 / comb(20, 9) and the tail.
    tests = result_of(compared(drift)).tests
    assert tests["mcnemar"].holm == pytest.approx(5 / 256)
    assert tests["mcnemar"].flagged and tests["two_proportion"].flagged
    assert list(drift.alarms) == [
        "right roots, A (m): 10 of 10 shared cases in early, 1 in late (two_proportion, mcnemar)",
        "right roots, B (n): 10 of 10 shared cases in early, 1 in late (two_proportion, mcnemar)",
    ]


def test_a_later_run_changes_nothing_that_was_said_of_earlier_ones():
    runs = [run("1", 1, answered(9)), run("2", 2, answered(3)), run("3", 3, answered(3))]
    first, both = compare_runs(runs[:2]), compare_runs(runs)
    assert both.comparisons[:5] == first.comparisons
    later = both.comparisons[5:]
    assert {(row.before, row.after) for row in later} == {("2", "3")}
    assert {result_of(row).tests["mcnemar"].p_value for row in later} == {1.0}


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
    assert compared(drift, "pass_rate").changed == (*ours, "response_model of evaluator")
    assert compared(drift, "pass_rate", "B").changed == ()
    other = archived("2", answered(9), 1, "opt-2")
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
    # A code from the journal that an evaluator judged anew is a look at the evaluator.
    passed = next(r for r in drift.comparisons if (r.measure, r.side) == ("pass_rate", "A"))
    assert passed.cases == 10


def test_cases_are_shared_by_id_and_description():
    reworded = [
        one.model_copy(update={"description_hash": "another"}) if one.case == "c0" else one
        for one in answered(9)
    ]
    others = [outcome("x", "Lrn", answer("Lrn", [call(model="n")]), gold="Lrn")]
    drift = compare_runs([run("1", 1, answered(9)), run("2", 2, [*reworded, *others])])
    row = compared(drift)
    assert (drift.runs[1].cases, row.shared) == (11, 9)
    assert (row.cases, result_of(row).right_before) == (9, 8)
    row = compared(compare_runs([run("1", 1, answered(9)), run("2", 2, others)]))
    assert (row.shared, row.result) == (0, None)
    assert row.reason == "the runs share no case, equal in id and description"


def own(code: str, cases: int = 40) -> list[Outcome]:
    """Cases of one's own without gold, of which A gives the first two this code."""
    return [
        outcome(f"own-{n}", answer(code if n < 2 else "Lrn"), answer("Lrn", [call(model="n")]))
        for n in range(cases)
    ]


def test_own_cases_without_gold_are_compared():
    drift = compare_runs([run("1", 1, own("Lrn")), run("2", 2, own("Evo"))])
    roots, passed = compared(drift), compared(drift, "pass_rate")
    assert (roots.shared, roots.cases) == (40, 0)
    assert roots.reason == "none of the 40 shared cases has gold"
    assert (passed.cases, passed.recoded, compared(drift, "pass_rate", "B").recoded) == (40, 2, 0)
    # A and B had the same code in all cases, and have it in 38.
    same = result_of(compared(drift, "exact", "A and B"))
    assert (same.right_before, same.right_after, same.lost) == (40, 38, 2)


def test_a_run_with_which_none_can_be_compared_is_named():
    other = [outcome("c0", answer("Lrn", [call(model="x")]), answer("Lrn", [call(model="y")]))]
    drift = compare_runs([run("1", 1, answered(9)), run("2", 2, other)])
    assert drift.comparisons == ()
    assert drift.notes == ("2 is compared with no run: none before it asked the same models",)


def test_the_latest_run_that_shares_answered_cases_is_compared():
    runs = [run("1", 1, answered(9)), run("2", 2, own("Lrn")), run("3", 3, answered(4))]
    rows = [row for row in compare_runs(runs).comparisons if row.after == "3"]
    assert {row.before for row in rows} == {"1"}
    # A run that asked other models is not read.
    unread = ArchivedRun("0", NOON, None, {"A": "x", "B": "y"}, lambda: pytest.fail("was read"))
    latest = compare_latest(runs[2], [unread, *runs[:2]])
    assert latest == rows


def test_a_case_that_could_not_be_read_is_wrong_and_one_that_failed_is_left_out():
    lost = [
        outcome("c0", answer(None), answer("Lrn", [call(model="n")]), gold="Lrn",
                status=Status.HUMAN),
        outcome("c1", None, answer("Lrn", [call(model="n")]), gold="Lrn", status=Status.FAILED),
    ]  # fmt: skip
    drift = compare_runs([run("1", 1, answered(10)), run("2", 2, lost)])
    assert (compared(drift).cases, result_of(compared(drift)).lost) == (1, 1)
    reason = compared(drift, "exact", "A and B").reason
    assert reason == "none of the 2 shared cases was answered in both"


def test_the_gold_of_the_later_run_counts_in_both():
    def with_gold(gold: str, right: int) -> list[Outcome]:
        label = answer(gold).label
        return [one.model_copy(update={"gold_label": label}) for one in answered(right)]

    drift = compare_runs([run("1", 1, with_gold("Lrn", 9)), run("2", 2, with_gold("Sch", 0))])
    result = result_of(compared(drift))
    assert (result.right_before, result.right_after, result.gained) == (1, 10, 9)


def test_no_runs_and_one_run():
    assert compare_runs([]).comparisons == ()
    drift = compare_runs([run("1", 1, [])])
    assert (drift.runs[0].cases, drift.alarms, drift.notes) == (0, (), ())


@settings(max_examples=15)
@given(outcomes(), outcomes(), st.floats(0.01, 0.5))
def test_anything_can_be_compared(first: list[Outcome], second: list[Outcome], level: float):
    drift = compare_runs([run("1", 1, first), run("2", 2, second)], level=level)
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
        assert found.tests["mcnemar"].p_value == pytest.approx(p)
        for test in found.tests.values():
            assert test.p_value <= test.holm <= 1 + 1e-12
            assert test.flagged is (test.holm <= level)
