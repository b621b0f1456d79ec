import re
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.statistics.audit import AuditReport
from raylab.annotation.statistics.drift import ArchivedRun, compare_runs
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.annotation.statistics.report import AnnotationReport
from raylab.annotation.statistics.scores import ScoreTreeReport
from raylab.llm.embedded import SMOKE_NOTICE
from raylab.report.annotation_page import (
    AnnotationPage,
    FullCase,
    OverTime,
    TimedRun,
    render_annotation,
    summary,
)
from raylab.runs.records import Part
from raylab.runs.run_record import RunRecord
from tests.annotation.outcomes import (
    NOON,
    adjudication,
    answer,
    archived,
    call,
    decision,
    outcome,
    report,
)
from tests.report.pages import Page
from tests.report.runs import content, full_cases
from tests.runs.records import run_record

EVIL = "<script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>&\"$y$"
ALONE = OverTime(level=0.05)


RECORD = run_record(job="annotate", config={"cases": {"take": 4}}, argv=("jobs/annotate.py",))


def html_of(
    found: AnnotationReport,
    over_time: OverTime = ALONE,
    record: RunRecord = RECORD,
    full: Sequence[FullCase] | None = None,
) -> str:
    full = full_cases(found) if full is None else full
    html = render_annotation(AnnotationPage("/runs/systems", found, over_time, record, full))
    assert Page(html).open == []
    return html


@pytest.fixture(scope="module")
def usual() -> Page:
    return Page(html_of(content()))


def share(estimate: Estimate) -> str:
    """An estimate as the issue asks for it: with its interval."""
    assert estimate.value is not None and estimate.interval is not None
    low, high = estimate.interval
    return f"{100 * estimate.value:.1f} % {100 * low:.1f} to {100 * high:.1f}"


def test_the_figures_are_those_of_the_report(usual: Page):
    found, rows = content(), {row[0]: row[1:] for row in usual.rows}
    assert rows["accepted"] == ["1", share(proportion(1, 4))]
    assert rows["left to a person"] == ["2", share(proportion(2, 4))]
    # Three cases with both codes; A and B agree in one.
    assert rows["equal composition (consensus)"][0] == share(proportion(1, 3))
    kappa, jaccard = found.agreement.kappa, found.agreement.jaccard
    few = "no interval: 3 cases: an interval needs 20"
    assert rows["Cohen's kappa, primary root"][0] == f"{kappa.value:.3f} {few}"
    assert rows["Jaccard of the sets"][0] == f"{jaccard.value:.3f} {few}"
    # A was judged three times, of which one FAIL; B four times.
    assert rows["pass rate"] == [share(proportion(2, 3)), share(proportion(4, 4))]
    assert rows["verdict FAIL"] == ["1", "0"]
    assert rows["right roots"] == [
        share(proportion(2, 4)), share(proportion(2, 4)), share(proportion(2, 2))
    ]  # fmt: skip
    assert ["m", "published", f"{share(proportion(1, 1))} of 1"] in usual.rows
    assert (
        "4 cases, classified by m-1 and nobody, judged by m-1, and settled by m-1 where they "
        in usual.text
    )


def test_the_judge_stands_against_gold(usual: Page):
    rows, judges = {row[0]: row[1:] for row in usual.rows}, content().judge
    assert rows["evaluated codes with gold"] == [str(judges[side].codes) for side in "AB"]
    # Of A's evaluated codes, the one refused is wrong.
    assert rows["right, given FAIL"][0] == f"{share(proportion(0, 1))} of 1"
    failed = judges["A"].right_by_score[40]
    assert ["right, score from 40", f"{share(failed)} of 1", "-"] in usual.rows
    assert "audit=0.05" in usual.text


def test_every_measure_is_said_in_words(usual: Page):
    measures = next(row for row in usual.rows if row[:2] == ["measure", "figure"])
    start = usual.rows.index(measures) + 1
    assert len(usual.rows[start : start + 9]) == 9
    assert all(len(row[2]) > 20 for row in usual.rows[start : start + 9])
    assert "95 % interval" in usual.text


def test_traps_and_reasons_are_told(usual: Page):
    # Of two traps A answered one, with the root it baits; B answered both.
    rows = {row[0]: row[1] for row in usual.rows if len(row) == 4}
    assert rows["answered"] == "1"
    assert rows["traps that were taken"] == rows["wrong in any way"] == share(proportion(1, 1))
    assert rows["taken for Swm"] == "1"
    reasons = {row[0]: row[1:] for row in usual.rows}
    assert reasons["only one of the two codes was acceptable"] == ["1", "4: only B is acceptable"]
    assert reasons["an answer held no code that could be read"][0] == "1"


def test_costs_stand_by_role_and_model(usual: Page):
    (row,) = [row for row in usual.rows if row[0] == "adjudicator"]
    assert row[1:3] == ["m-1", "adjudicate@1 h"]
    assert row[3:8] == ["1", "0", "100", "10", "0.2500"]
    assert next(row for row in usual.rows if row[0] == "all" and len(row) > 3)[3] == str(
        content().usage.total.sent
    )


def test_confusion_stands_in_a_table_for_each_pair(usual: Page):
    assert "Rows: annotator A. Columns: annotator B." in usual.text
    assert "Rows: gold. Columns: final code." in usual.text
    # Gold Lrn and Evo were found, Sym has no final code.
    assert ["Lrn", "1", "0", "0", "0", "0", "0", "0", "0"] in usual.rows


def test_a_disagreement_shows_both_sides_and_marks_what_differs():
    html = html_of(content())
    first, second = re.findall(r"<article.*?</article>", html, re.DOTALL)
    # Swm against Sym .80 of .40: .32; Evo against Evo and Lrn .40 of .75: .30.
    assert "1. <bdi>4</bdi>" in first and "2. <bdi>2</bdi>" in second
    assert "distance 0.80, lower score 40; left to a person" in first
    assert re.findall(r'class="root root-(\w+)( alone)?"', second) == [
        ("Evo", ""), ("Evo", ""), ("Lrn", " alone"), ("Evo", ""), ("Evo", ""), ("Evo", ""),
    ]  # fmt: skip
    text = Page(second).text
    assert "A system that does things." in text and "nearly" in text and "since" in text
    assert "chose the code of annotator A" in text
    assert "WEAK_PASS 75" in text
    assert "Waits for a person" in Page(first).text


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (decision("4", "Ctl", justification="It steers."), "confirmed by the evaluator"),
        (decision("4", "Ctl", False), "the case stays open"),
        (decision("4", "Ctl", None), "not confirmed yet"),
        (decision("4", None, None, action="undo", choice=None), "R took a decision back"),
    ],
)
def test_what_a_person_decided_is_shown(made: HumanDecision, told: str):
    found = content(decisions=[made])
    text = Page(html_of(found, full=full_cases(found, decisions=[made]))).text
    assert told in text
    assert ("Decided by R" in text) == (made.action == "decide")
    assert made.justification in text


def test_what_people_and_models_wrote_is_inert_and_bounded():
    long = EVIL * 2000
    calls = [call(response_model=long, model=long, prompt=long, prompt_hash=long)]
    case = outcome(
        long, answer("Evo", calls, rationale=long), answer("Ctl", calls, rationale=long),
        status=Status.HUMAN, reason=long, path=(f"human:{long}-unreadable",),
        evaluation_a=report(summary=long, calls=calls), evaluation_b=report(summary=long),
        adjudication=adjudication(("A", "B"), "A", "Evo", report(summary=long)),
    )  # fmt: skip
    made = decision(long, "Swm", justification=long, reviewer=long)
    found = content([case] * 50, [made])
    html = html_of(found, full=full_cases(found, [case], [made], long))
    page = Page(html)
    assert not {"script", "img"} & set(page.tags)
    assert "<script>alert" in page.text
    assert len(html.encode()) < 3_000_000


def test_final_codes_and_the_audit_stand_before_agreement():
    audit = AuditReport(
        decided=20,
        drawn=4,
        audited=3,
        judged=0.9,
        right=proportion(0, 3),
        corrected=Estimate(value=0.125, interval=(0.0, 0.5), count=20, reason=None),
        weight=0.5,
    )
    report = content().model_copy(update={"audit": audit})
    page = Page(html_of(report))
    assert page.sections[:3] == ["codes", "endings", "agreement"]
    order = ("Final codes: ", "People audited 3 decided codes: 0 are right", "alpha is")
    places = [page.text.index(text) for text in order]
    assert places == sorted(places)
    rows = {row[0]: row[1:] for row in page.rows}
    assert ["Evo", "1", share(proportion(1, 2))] in page.rows
    assert rows["of the audited cases"] == [share(proportion(0, 3))]
    assert rows["of all, scores corrected by the audit"] == ["12.5 % 0.0 to 50.0"]
    assert "audit=0.05" not in page.text


def test_a_smoke_test_says_so():
    html = html_of(content(smoke=True))
    assert SMOKE_NOTICE in Page(html).text
    assert "smoke test" in Page(re.findall(r"<h1>.*?</h1>", html, re.DOTALL)[0]).text
    assert "smoke" not in html_of(content())


@pytest.mark.parametrize(
    ("alpha", "words"),
    [(0.8, "reliable"), (0.7, "good for tentative conclusions"), (0.5, "too low to rely on")],
)
def test_alpha_is_judged_by_the_convention(alpha: float, words: str):
    found = content()
    estimate = Estimate(value=alpha, interval=None, count=3, reason="x")
    agreement = found.agreement.model_copy(update={"alpha": estimate})
    found = found.model_copy(update={"agreement": agreement})
    assert f"Krippendorff's alpha is {alpha:.2f}, by convention {words}." in list(summary(found))


@pytest.mark.parametrize("cases", [[], [outcome("1", None, None, status=Status.FAILED)]])
def test_a_run_without_answers_still_makes_a_page(cases: list[Outcome]):
    empty = ScoreTreeReport(files=0, left_out=(), notes=(), scores=())
    text = Page(html_of(content(cases, score_tree=empty))).text
    assert "no disagreement to learn from" in text
    assert "undefined no case with both answers" in text


# Over time


def counted(name: str, right: int) -> ArchivedRun:
    codes = ["Lrn"] * right + ["Sch"] * (10 - right)
    cases = [outcome(f"c{n}", code, "Lrn", gold="Lrn") for n, code in enumerate(codes)]
    return archived(name, cases)


def over_time(*runs: tuple[str, int], without: str = "") -> OverTime:
    drift = compare_runs(counted(*run) for run in runs)
    return OverTime(
        level=drift.level,
        runs=[
            TimedRun(name, NOON.isoformat(), None if name == without else content())
            for name, _ in runs
        ],
        earlier=3,
        comparisons=drift.comparisons,
        alarms=drift.alarms,
    )


def test_one_run_shows_how_to_see_drift():
    text = Page(html_of(content(), over_time=over_time(("systems", 9)))).text
    assert "the only run of the archive" in text and "fresh=true" in text


def test_runs_stand_beside_each_other_with_their_alarms():
    html = html_of(content(), over_time=over_time(("january", 10), ("systems", 1)))
    page = Page(html)
    assert "right roots, A (m): 10 of 10 shared cases in january, 1 in systems" in page.text
    assert "less 3 earlier ones" in page.text
    rate, alpha = share(proportion(2, 3)), content().agreement.alpha
    row = next(row for row in page.rows if row[0] == "systems (this run)")
    assert row[1:4] == ["2026-03-01 12:00", "4", rate]
    assert row[6].startswith(f"{alpha.value:.3f}")
    change = next(row for row in page.rows if row[0] == "right roots, A")
    assert change[1:7] == ["january", "systems", "10 of 10", "1 of 10", "9", "0"]
    assert change[8] == "0.00391*"


def test_no_alarm_is_said_and_a_run_without_a_report_is_dashed():
    runs = (("january", 9), ("systems", 9))
    page = Page(html_of(content(), over_time=over_time(*runs, without="january")))
    assert "No change raises an alarm at the level 0.05" in page.text
    assert next(row for row in page.rows if row[0] == "january")[2:] == ["-"] * 5


def test_a_page_of_a_hundred_thousand_cases_fits_in_three_megabytes():
    many = partial(call, prompt_tokens=1000)
    cases = [
        outcome(
            f"case-{n}",
            answer("Evo+Lrn", [many(response_model=f"m-{n % 9}")], rationale="r" * 5000),
            answer("Ctl/Swm", [many(response_model=f"n-{n % 9}")], rationale="r" * 5000),
            gold="Sym", generation=f"g-{n % 5}", status=Status.HUMAN, reason="x" * 5000,
            path=(f"human:{n % 9}",), trap=True,
        )
        for n in range(300)
    ]  # fmt: skip
    found = content(cases)
    full = full_cases(found, cases, description="d" * 100_000)

    def larger(value: Any) -> Any:
        """The same aggregates, as of a thousand times the cases."""
        if isinstance(value, Part):
            return value.model_copy(update={name: larger(item) for name, item in value})
        if isinstance(value, dict):
            return {key: larger(item) for key, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, tuple):
            return tuple(larger(item) for item in cast("tuple[Any, ...]", value))
        return value * 1000 if isinstance(value, int) and not isinstance(value, bool) else value

    parts = ("cases", "annotators", "gold", "confusion", "usage", "sensitivity")
    found = found.model_copy(update={part: larger(getattr(found, part)) for part in parts})
    html = html_of(found, over_time(*((f"run-{n}", 9) for n in range(12))), full=full)
    assert "300,000" in html
    assert len(html.encode()) < 3_000_000
