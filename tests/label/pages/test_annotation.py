import re
from collections.abc import Sequence

import pytest

from raylab.core.page import page as content_of
from raylab.core.page.page import render
from raylab.core.page.table import hues
from raylab.core.runs.records import Figure
from raylab.core.stats import proportion
from raylab.label.pages.annotation import FullCase, annotation_page, confusion_table
from raylab.label.protocol.outcome import HumanDecision, Status
from raylab.label.statistics.accuracy import AuditReport, ConfusionPanel
from raylab.label.statistics.people import people_report, substitute_report
from raylab.label.statistics.report import AnnotationReport, annotation_report
from tests.core.page.pages import Page, rows_of
from tests.core.runs.records import run_record
from tests.label.protocol.outcomes import CODEBOOK, answer, call, decision, outcome, tables
from tests.label.protocol.tickets import TICKETS, ticket
from tests.together.runs import content, full_cases

RECORD = run_record(job="annotate", config={"cases": {"take": 4}}, argv=("jobs/annotate.py",))


def page_of(shown: AnnotationReport, full: Sequence[FullCase] | None = None) -> content_of.Page:
    full = full_cases(shown) if full is None else full
    return annotation_page("/runs/systems", RECORD, shown, full)


def read(shown: AnnotationReport, full: Sequence[FullCase] | None = None) -> Page:
    return Page(render(page_of(shown, full)))


@pytest.fixture(scope="module")
def usual() -> Page:
    return read(content())


def share(estimate: Figure) -> str:
    """A share with its interval, as it is always shown."""
    assert estimate.value is not None and estimate.interval is not None
    low, high = estimate.interval
    return f"{100 * estimate.value:.1f} % {100 * low:.1f} to {100 * high:.1f}"


def test_the_figures_are_those_of_the_report(usual: Page):
    shown, rows = content(), {row[0]: row[1:] for row in usual.rows}
    assert rows["accepted"] == ["1", share(proportion(1, 4))]
    assert rows["left to a person"] == ["2", share(proportion(2, 4))]
    assert rows["One answer acceptable"] == ["1", "4: only B is acceptable"]
    # Three cases with both codes; A and B agree in one.
    same, words = rows["same code"]
    assert same == share(proportion(1, 3)) and len(words) > 20
    few = "no interval: 3 cases: an interval needs 20"
    pair = shown.agreement.pairs["AB"]
    assert rows["Cohen's kappa"][0] == f"{pair.kappa.value:.3f} {few}"
    # A was judged three times, of which one FAIL; B four times.
    assert rows["pass rate"] == [share(proportion(2, 3)), share(proportion(4, 4))]
    assert rows["verdict FAIL"] == ["1", "0"]
    assert rows["chose the first code shown"] == [share(proportion(1, 1))]
    # Of two traps A answered one, with the root it baits; B answered both.
    assert rows["traps taken"][0] == share(proportion(1, 1))
    assert rows["taken for Swm"][0] == "1"
    half = share(proportion(2, 4))
    assert ["A (m-1)", "4", half] in usual.rows
    assert rows["models' final code"] == ["2", share(proportion(2, 2))]
    # Of A's evaluated codes, the one refused is wrong, with a score of 40.
    assert rows["judged codes with gold"] == ["3", "4"]
    wrong = f"{share(proportion(0, 1))} of 1"
    assert rows["right under FAIL"] == rows["right, score of 40 to 49"] == [wrong, "-"]
    assert rows["calls sent"] == ["8", "8", "1", "17"] and rows["cost"][2] == "0.25"
    assert "Evaluator: m-1; adjudicator: m-1." in usual.text
    assert "Agreement of A (m-1) and B." in usual.text
    assert "Not in the score tree: 3 without gold." in usual.text
    assert "Rows: gold. Columns: models' final code." in usual.text and "smoke" not in usual.text


def test_confusion_is_shaded_by_the_share_of_the_row():
    matrix = ((3, 1, 0), (0, 0, 0), (0.5, 0.01, 1234.25))
    labels = ("Lrn", "Evo", "none")
    panel = ConfusionPanel(rows="A", columns="B", labels=labels, sets=matrix)
    table = confusion_table(panel, hues(()))
    # No case counts for Evo in a row.
    assert rows_of(table)[2] == ["none", "0.5", "<0.1", "1,234.2"]
    (rows,) = table.bodies
    assert [cell.shade for cell in rows[0]] == [None, 0.75, 0.25, 0.0]
    assert len(rows) == 2


def test_a_record_is_reported_by_field():
    cases = [
        ticket("1", "[billing] 3", "[billing] 4", gold="[billing] 4"),
        ticket("2", "[billing, login] 3", "[login] 3", gold="[billing, login] 5"),
        ticket("3", "[login] 5", "[login] 5"),
        ticket("4", "[login] 3", "[login] 3", gold="[login] 3"),
    ]
    report = annotation_report(tables(cases, codebook=TICKETS))
    page = read(report, full_cases(report, cases))
    assert (
        "Of the 3 with gold, 100.0 % have the right topics and 33.3 % have the right severity."
    ) in page.text
    assert (
        "4 final codes for 4 cases; most often topics: login (3) and severity: 3 (3)." in page.text
    )
    counts = [row[:2] for row in page.rows]
    for line in (["topics: billing", "2"], ["severity: 3", "3"], ["severity: 5", "1"]):
        assert line in counts
    assert ["severity: 4", "0"] not in counts
    assert "by field, the cases whose code has each label or number." in page.text
    # A in the rows; in case 2 only A names billing.
    assert ["topics", "billing", "login", "none"] in page.rows
    assert ["billing", "1", "0", "1"] in page.rows
    assert ["severity", "3", "4", "5"] in page.rows and ["3", "2", "1", "0"] in page.rows
    assert "Severity. Rows: annotator A (m-1). Columns: annotator B." in page.text
    # Labels alone make a code, so that the same labels are the same code.
    assert "same code" in [row[0] for row in page.rows] and "right labels" in page.text
    assert "same labels" not in page.text and "right first label" not in page.text


def test_a_disagreement_shows_both_sides_and_marks_what_differs():
    first, second = re.findall(r"<article.*?</article>", render(page_of(content())), re.DOTALL)
    # Swm against Sym .80 of .40: .32; Evo against Evo and Lrn .40 of .75: .30.
    assert "1. <bdi>4</bdi>" in first and "2. <bdi>2</bdi>" in second
    assert "distance 0.80, score of the second best code 40; left to a person" in first
    assert re.findall(r'class="chip hue-(\d)( alone)?"', second) == [
        ("1", ""), ("1", ""), ("0", " alone"), ("1", ""), ("1", ""), ("1", ""),
    ]  # fmt: skip
    text = Page(second).text
    assert "A system that does things." in text and "nearly" in text and "since" in text
    assert "chose the code of annotator A" in text and "WEAK_PASS 75" in text
    assert "Waits for a person" in Page(first).text


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (decision("4", "Ctl", justification="It steers."), "confirmed by the evaluator"),
        (decision("4", "Ctl", False), "the case stays open"),
        (decision("4", "Ctl", None), "not confirmed yet"),
        (decision("4", "Ctl", None, insisted=True), "Decided by a person over the evaluator."),
        (decision("4", None, None, choice="unclear"), "who found no code right."),
        (decision("4", None, None, choice=None), "R took a decision back"),
    ],
)
def test_what_a_person_decided_is_shown(made: HumanDecision, sentence: str):
    shown = content(decisions=[made])
    page = read(shown, full_cases(shown, decisions=[made]))
    assert sentence in page.text and made.justification in page.text
    assert ("Decided by R" in page.text) == (made.choice is not None)
    counts = {row[0]: row[1] for row in page.rows if row}
    # Each of the four cases has two evaluations, and the decision at most one confirmation.
    calls = next(row for row in page.rows if row[0] == "calls sent")
    assert calls[-1] == str(17 + bool(made.confirmation))
    assert sum(map(int, calls[1:-1])) == int(calls[-1])
    assert counts.get("decided by people") == ("1" if made.choice else None)


def test_final_codes_and_the_audit_stand_before_agreement(usual: Page):
    right, corrected = proportion(0, 3), proportion(5, 20)
    audit = AuditReport(
        decided=20, drawn=4, audited=3, judged=0.9, right=right, corrected=corrected, weight=0.5
    )
    page = read(content().model_copy(update={"audit": audit}))
    assert page.sections[:4] == ["codes", "endings", "gold", "agreement"]
    order = (
        "2 final codes for 4 cases: ",
        "People audited 3 decided cases and found 0",
        "alpha is",
    )
    places = [page.text.index(text) for text in order]
    assert places == sorted(places)
    rows = {row[0]: row[1:] for row in page.rows}
    assert ["Evo", "1", share(proportion(1, 2))] in page.rows
    assert rows["in the audited cases"] == [share(right)]
    assert rows["in all decided cases, corrected by the audit"] == [share(corrected)]
    assert "an estimated 25.0 % of the 20 that the protocol decided." in page.text
    assert "audit=0.05" not in page.text and "audit=0.05" in usual.text


def test_steps_are_named_in_words():
    again = answer("Lrn", [call(), call("classify-a-repair")])
    lost = outcome("2", "Lrn", None, status=Status.FAILED, path=("failed:classify-b-repair",))
    page = read(content([outcome("1", again, "Lrn"), lost]), [])
    rows = [row[:2] for row in page.rows]
    assert "annotator A, asked again: m-1" in page.text
    assert ["Call to annotator B, asked again failed", "1"] in rows


def test_too_few_people_say_nothing_of_the_models():
    people = {"audit": people_report([], CODEBOOK.distance, seed=1)}
    substitutes = {"final": substitute_report([], CODEBOOK.distance, 0.15, seed=1)}
    update = {"people": people, "substitutes": substitutes}
    page = read(content().model_copy(update=update))
    assert "stand in for people cannot be said: the test needs 3 people" in page.text


def test_a_run_without_answers_still_makes_a_page():
    page = read(content([outcome("1", None, None, status=Status.FAILED)]))
    assert "0 final codes for 1 case." in page.text
    assert "undefined no case with two answers" in page.text
    assert ["pass rate", "-", "-"] in page.rows
