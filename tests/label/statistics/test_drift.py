import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from scipy import stats

from raylab.core.errors import ArchiveError
from raylab.label.protocol.outcome import Annotator, Outcome, Verdict
from raylab.label.statistics.drift import (
    ArchivedRun,
    Drift,
    DriftChange,
    alarms,
    compare_runs,
    explain_uncompared,
)
from raylab.label.statistics.frame import Tables
from tests.label.protocol.outcomes import NOON, answer, call, outcome, outcomes, report, tables


def run(name: str, day: int, cases: list[Outcome], codebook: str = "opt-code 1.0") -> ArchivedRun:
    """A run of an archive; its models are those of the calls."""
    answers = [item for each in cases for item in each.answers.items()]
    models: dict[Annotator, str] = {
        side: calls[0].model for side, each in answers if (calls := each.classification.calls)
    }
    started = NOON + timedelta(days=day)
    return ArchivedRun(name, started, codebook, models, lambda: tables(cases, annotators=3))


def answered(right: int, judge: str = "m-1", **changes: Any) -> list[Outcome]:
    """Ten cases: both annotators have the first right, and take the others for search."""
    return [
        outcome(
            f"c{n}",
            answer(code, [call(**changes)]),
            answer(code, [call("classify-b", model="n")]),
            gold="Lrn",
            evaluation_a=report(calls=(call(response_model=judge),)),
        )
        for n, code in enumerate(["Lrn"] * right + ["Sch"] * (10 - right))
    ]


def compared(drift: Drift, measure: str = "labels", names: str = "A") -> DriftChange:
    (row,) = [r for r in drift.comparisons if (r.measure, *r.annotators) == (measure, *names)]
    return row


def test_a_run_is_compared_with_the_one_before_it():
    drift = compare_runs([run("late", 2, answered(3)), run("early", 1, answered(9))])
    assert Drift.from_content(json.loads(json.dumps(drift.content(), allow_nan=False))) == drift
    row = compared(drift)
    assert (row.before, row.after, row.models, row.changed) == ("early", "late", ("m",), ())
    assert (row.cases, row.right_before, row.right_after) == (10, 9, 3)
    # Six changed, all for the worse: 2 / 2 ** 6. The two measures of labels have this p, the other
    # three 1; Holm takes 5 p and then 4 p, of which none may be below the one before it.
    for side in "AB":
        change = compared(drift, names=side)
        assert (change.p_value, change.holm) == (1 / 32, 5 / 32)
    assert compared(drift, "exact", "AB").holm == 1.0
    assert not [*alarms(drift.comparisons)]


def test_three_annotators_are_compared_alone_and_together():
    def three(right: int) -> list[Outcome]:
        codes = ["Lrn"] * right + ["Sch"] * (10 - right)
        return [outcome(f"c{n}", "Lrn", "Lrn", code, gold="Lrn") for n, code in enumerate(codes)]

    drift = compare_runs([run("1", 1, three(9)), run("2", 2, three(3)), run("3", 3, answered(9))])
    labels = [row.label for row in drift.comparisons if row.after == "2"]
    assert labels[:2] == ["right labels, A", "right labels, B"]
    assert len(labels) == 7
    row = compared(drift, "exact", "ABC")
    assert (row.right_before, row.right_after, row.models) == (9, 3, ("m", "m", "m"))
    assert compared(drift, names="C").lost == 6
    # A has the model of the runs before, B another, so that both cannot be compared together.
    assert [row.annotators for row in drift.comparisons if row.after == "3"] == [("A",), ("A",)]


def test_a_change_that_is_no_chance_raises_an_alarm_whatever_comes_later():
    runs = [run("1", 1, answered(10)), run("2", 2, answered(1)), run("3", 3, answered(1))]
    drift = compare_runs(runs)
    # Nine lost: 5 * 2 / 2 ** 9.
    assert compared(compare_runs(runs[:2])).holm == 5 / 256
    assert [*alarms(drift.comparisons[:5])] == [
        f"right labels, {who}: 10 of 10 shared cases in 1, 1 in 2" for who in ("A (m)", "B (n)")
    ]
    assert drift.comparisons[:5] == compare_runs(runs[:2]).comparisons
    assert {(row.before, row.after) for row in drift.comparisons[5:]} == {("2", "3")}


def test_what_else_changed_is_named():
    after = answered(9, "e-2", response_model="m-2", prompt_hash="i", seed=7)
    drift = compare_runs([run("1", 1, answered(9)), run("2", 2, after)])
    ours = ("response_model of A", "prompt of A", "seed of A")
    assert compared(drift).changed == ours
    assert compared(drift, "exact", "AB").changed == ours
    judged = (*ours, "response_model of evaluator")
    assert compared(drift, "pass_rate").changed == judged
    assert compared(drift, "pass_rate", "B").changed == ()


def test_the_latest_run_of_the_same_models_that_shares_answered_cases_is_compared():
    strangers = [outcome("x", "Lrn", answer("Lrn", [call(model="n")]), gold="Lrn")]
    runs = [
        run("1", 1, answered(9)),
        run("2", 2, answered(2, model="other")),
        run("3", 3, strangers),
        run("other codebook", 3, answered(3), "sentiment 1"),
        run("4", 4, answered(8)),
    ]
    rows = [row for row in compare_runs(runs).comparisons if row.after == "4"]
    assert [row.before for row in rows if row.annotators == ("A",)] == ["1", "1"]
    assert [row.before for row in rows if row.annotators == ("B",)] == ["2", "2"]
    other = compare_runs([runs[0], run("2", 2, answered(9, model="x"))])
    assert [row.annotators for row in other.comparisons] == [("B",), ("B",)]
    assert other.unpaired == {
        "2": "no earlier run of its codebook asked x as A; 1 asked m as A: jobs/report.py "
        "'runs=[1,2]' compares other models"
    }
    empty = compare_runs([runs[0], run("2", 2, [])])
    assert (empty.comparisons, empty.unpaired) == ((), {"2": "it asked no annotator"})


def test_what_cannot_be_compared_says_why():
    copied = answered(9, cached=True)
    drift = compare_runs([run("1", 1, answered(9)), run("2", 2, copied), run("3", 3, answered(4))])
    first, second = [r for r in drift.comparisons if (r.measure, *r.annotators) == ("labels", "A")]
    assert (first.p_value, first.holm) == (None, None)
    assert first.reason == (
        "no shared case with gold was answered anew in both runs: annotate with fresh=true"
    )
    # The third is compared with the last run that was asked.
    assert (second.before, second.lost) == ("1", 5)
    alone = [outcome(f"case-{n}", answer("Lrn", [call()]), None, gold="Lrn") for n in range(9)]
    drift = compare_runs([run("1", 1, alone), run("2", 2, alone)])
    assert [row.measure for row in drift.comparisons] == ["labels", "pass_rate"]
    bare = [each.model_copy(update={"gold": None, "gold_label": None}) for each in alone]
    drift = compare_runs([run("1", 1, bare), run("2", 2, bare)])
    assert [row.reason for row in drift.comparisons] == ["no shared case has gold", None]
    assert [*explain_uncompared(drift.comparisons)] == [
        "right labels, A (m) cannot be compared in 1 and 2: no shared case has gold"
    ]
    reworded = [each.model_copy(update={"description_hash": "new"}) for each in answered(9)]
    row = compared(compare_runs([run("1", 1, answered(9)), run("2", 2, reworded)]))
    assert (row.shared, row.reason) == (0, "the runs share no case (equal id and description)")


def test_a_run_that_cannot_be_read_ends_no_other_and_strangers_are_explained() -> None:
    def broken() -> Tables:
        raise ArchiveError("the archived case 'a' has another form")

    runs = [run("1", 1, answered(9)), replace(run("2", 2, answered(9)), read=broken)]
    drift = compare_runs([*runs, run("3", 3, answered(3)), run("4", 4, answered(3), "mine 2")])
    assert drift.unread == {"2": "the archived case 'a' has another form"}
    assert {(row.before, row.after) for row in drift.comparisons} == {("1", "3")}
    assert drift.unpaired == {"4": "no earlier run has its codebook mine 2; 3 has opt-code 1.0"}


# Against plain computation


def right(each: Outcome, measure: str, sides: Sequence[str], gold: Any) -> bool | None:
    """The result of a case, None if there is none or no model was asked anew for it."""
    given = [answer for own in sides if (answer := each.classification(own)) is not None]
    labels = [label for own in sides if (label := each.labels.get(own)) is not None]
    fresh = not all(x.calls and all(c.reply.cached for c in x.calls) for x in given)
    if len(given) < len(sides):
        return None
    if measure == "exact":
        same = len(labels) == 2 and labels[0].composition == labels[1].composition
        return same if fresh and len(labels) == 2 else None
    if measure == "labels":
        same = [label.categories for label in labels] == [gold and gold.categories]
        return same if fresh and gold is not None else None
    judged = each.evaluation(sides[0])
    if judged is None or not (fresh or judged.calls):
        return None
    return judged.verdict is not Verdict.FAIL


@settings(max_examples=8)
@given(outcomes(), outcomes())
def test_changes_are_what_plain_loops_find(first: list[Outcome], second: list[Outcome]):
    drift = compare_runs([run("1", 1, first), run("2", 2, second)])
    json.dumps(drift.content(), allow_nan=False)
    earlier = {(each.case, each.description_hash): each for each in first}
    pairs = [
        (earlier[key], own)
        for own in second
        if (key := (own.case, own.description_hash)) in earlier
    ]
    for row in drift.comparisons:
        results = [
            tuple(
                right(own, row.measure, row.annotators, after.gold_label) for own in (before, after)
            )
            for before, after in pairs
        ]
        both = [pair for pair in results if None not in pair]
        assert (row.shared, row.cases) == (len(pairs), len(both))
        if not both:
            assert row.p_value is row.holm is None and row.reason
            continue
        assert (row.right_before, row.right_after) == tuple(map(sum, zip(*both, strict=True)))
        assert row.lost == both.count((True, False))
        assert row.gained == both.count((False, True))
        changed = row.lost + row.gained
        p = stats.binomtest(row.lost, changed).pvalue if changed else 1.0
        assert row.p_value is not None and row.holm is not None
        assert row.p_value == pytest.approx(p) and row.p_value <= row.holm <= 1 + 1e-12
        assert row.is_flagged is (row.holm <= 0.05)
