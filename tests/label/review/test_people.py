"""Two people judge each case by its description alone, and a third settles a disagreement."""

from pathlib import Path

import pytest

from raylab.core.errors import LeaseError
from raylab.label.archive.reviews import Queue
from raylab.label.conclusions.audit import draw_audit
from raylab.label.judgement import AUDIT, DECISION
from tests.label.review.office import RECORDS, TICKETS, Browser, Office, make_study, open_office

EVO, SCH = ({"choice": "own", "code": code} for code in ("Evo", "Sch"))
UNCLEAR = {"choice": "unclear"}
TAKEN = {"choice": "second", "justification": "It searches."}
HIDDEN = ".verdict, .answers, .report, .proposal, .rationale, .decisions"


def judge(office: Office, name: str, filled: dict[str, str], case: int = 1) -> Browser:
    """A browser in which a reviewer has just sent what they say of a case."""
    browser = office.browser(name)
    browser.get(f"/cases/{case}")
    assert browser.post(f"/cases/{case}/decide", **filled).status_code == 303, browser.text()
    return browser


def statuses(office: Office, kind: str = DECISION) -> list[tuple[str, str, str]]:
    return [(row.reviewer, row.action, row.status) for row in office.run.decisions(kind=kind)]


def test_two_who_agree_decide_and_the_evaluator_confirms(pair: Office) -> None:
    judge(pair, "Ada", EVO)
    pair.judge()  # A run that is resumed in between finds nothing to confirm.
    assert statuses(pair) == [("Ada", "judge", "human")]
    bo = judge(pair, "Bo", {"choice": "own", "code": "OPT=Evo; Rep=param"})
    assert statuses(pair)[1:] == [("Bo", "judge", "unconfirmed")]
    bo.get("/cases/1")
    assert "by Ada and Bo waits for the evaluator" in bo.text(".decision")
    pair.judge()
    assert statuses(pair)[1:] == [("Bo", "judge", "accepted")]
    assert [case.status for case in pair.run.cases(places=[1])] == ["accepted"]


def test_nobody_sees_an_answer_before_both_have_judged(pair: Office) -> None:
    for name, said in (("Ada", EVO), ("Bo", SCH)):
        browser = pair.browser(name)
        browser.get("/")
        assert "5 cases wait for you." in browser.text()
        assert "acceptable" not in browser.text(".queue")
        browser.get("/cases/1")
        assert browser.text(".reason").endswith("Two people judge it by the description alone.")
        assert not browser.page.select(HIDDEN) and "PASS" not in browser.text("body")
        options = [option["value"] for option in browser.page.select("[name=choice]")]
        assert options == ["own", "unclear"] and not browser.value("code")
        assert browser.go(browser.post("/cases/1/decide", **said)) == "/cases/2?done=1"
        assert browser.post("/cases/2/skip").status_code == 303
        # Nor afterwards: a judgement could still be withdrawn.
        browser.get("/cases/1")
        assert not browser.page.select(HIDDEN) and "You have judged this case" in browser.text()
        browser.get("/")
        assert "4 cases wait for you." in browser.text()
    cy = pair.browser("Cy")
    cy.get("/")
    assert "Waits for a judgement 4 Two people differ 1" in cy.text(".filters")
    assert cy.text(".queue .tag:not([hidden], .held)") == "Two people differ"


def test_a_third_settles_with_everything_in_sight(pair: Office) -> None:
    judge(pair, "Ada", {**EVO, "justification": "It breeds."})
    judge(pair, "Bo", SCH)
    cy = pair.browser("Cy")
    assert cy.go(cy.get("/next?kind=settle")) == "/cases/1?kind=settle"
    shown = cy.text("main")
    assert "It breeds." in shown and "PASS 90" in shown
    assert not {"Ada", "Bo"} & set(shown.split())
    options = {str(option["value"]) for option in cy.page.select("[name=choice]")}
    assert options == {"first", "second", "A", "B", "own", "unclear"}
    assert cy.post("/cases/1/decide", choice="first").status_code == 422  # Say why.
    assert cy.post("/cases/1/decide", **TAKEN).status_code == 303
    assert statuses(pair)[2:] == [("Cy", "decide", "unconfirmed")]
    settled = pair.decisions()[-1]
    assert (settled.choice, str(settled.label), settled.independent) == ("own", "OPT=Sch", False)
    # A refusal of the evaluator leaves the case to a third person again, who may insist.
    pair.judge()
    assert statuses(pair)[2:] == [("Cy", "decide", "human")]
    di = pair.browser("Di")
    di.get("/cases/1")
    assert di.text(".reason .tag") == "The evaluator refused"
    section = di.text("section:has(#judgements-title)")
    assert "A third person settled this as OPT=Sch, which the evaluator refused." in section
    assert "Evaluator FAIL 40" in section and "Cy" not in section
    judge(pair, "Di", {**TAKEN, "insist": "true"})
    assert [case.status for case in pair.run.cases(places=[1])] == ["accepted"]
    ada = pair.browser("Ada")
    ada.get("/cases/1")
    assert "Ada" in ada.text(".decisions") and ada.page.select(".answers")


def test_people_and_models_are_compared_with_each_other(tmp_path: Path) -> None:
    # People agree on three parcels, models on two: each answer is marked, and each option says it.
    models = [{**RECORDS[0], "topic": topic, "quote": "a"} for topic in ("tracking", "damage")]
    config = make_study(tmp_path, TICKETS, "Two parcels are lost.", models, people=2)
    same = {"answer-areas": "web", "answer-level": "high", "answer-parcels": "3"}
    with open_office(config) as office:
        for name, topic in (("Ada", "tracking"), ("Bo", "damage")):
            judge(office, name, {"choice": "own", "answer-topic": topic, **same})
        cy = office.browser("Cy")
        cy.get("/cases/1")
    for article in ("#answer-A", "#answer-B", "#judgement-1", "#judgement-2"):
        marked = cy.text(f"article:has({article}) .differs th")
        assert marked == "topic ≠ (differs) parcels ≠ (differs) quote ≠ (differs)"
    choices = ("first", "second", "A", "B")
    assert {name: cy.text(f"label:has([value={name}]) .brief") for name in choices} == {
        "first": "topic tracking · parcels 3 · quote empty",
        "second": "topic damage · parcels 3 · quote empty",
        "A": "topic tracking · parcels 2 · quote a",
        "B": "topic damage · parcels 2 · quote a",
    }


def test_a_code_of_both_that_the_evaluator_refuses_goes_to_a_third(pair: Office) -> None:
    judge(pair, "Ada", SCH)
    bo = judge(pair, "Bo", SCH)
    pair.judge()
    assert statuses(pair)[1:] == [("Bo", "judge", "human")]
    bo.get("/")
    assert "came back" not in bo.text() and "4 cases wait for you." in bo.text()
    bo.get("/decided")
    assert "A third person decides." in bo.text()
    ada = pair.browser("Ada")
    ada.get("/cases/1")
    assert "The evaluator refused what was decided. It waits for a third" in ada.text(".decision")
    cy = pair.browser("Cy")
    cy.get("/")
    assert "Waits for a judgement 4 The evaluator refused 1" in cy.text(".filters")
    assert "differ" not in cy.text()
    assert cy.go(cy.get("/next?kind=settle")) == "/?kind=settle"
    assert cy.go(cy.get("/next?kind=refused")) == "/cases/1?kind=refused"
    assert cy.text(".reason") == "The evaluator refused A third person decides anew."
    assert "Both agree, and the evaluator refused it." in cy.text()
    assert "FAIL 40" in cy.text("#judgement-2 ~ .report")


def test_two_who_find_no_code_agree(pair: Office) -> None:
    judge(pair, "Ada", UNCLEAR)
    judge(pair, "Bo", UNCLEAR)
    assert statuses(pair)[1:] == [("Bo", "judge", "unclear")]
    judge(pair, "Ada", UNCLEAR, 2)
    judge(pair, "Bo", EVO, 2)
    judge(pair, "Cy", {"choice": "first", "justification": "Two systems."}, 2)
    assert statuses(pair)[2:] == [
        ("Ada", "judge", "human"),
        ("Bo", "judge", "human"),
        ("Cy", "decide", "unclear"),
    ]


@pytest.mark.parametrize("same", ["Ada", "\uff21DA "])
def test_one_person_never_counts_twice(pair: Office, same: str) -> None:
    first, second = pair.browser("Ada"), pair.browser(same)
    first.get("/cases/1")
    second.get("/cases/1")
    for _ in range(2):  # Sent twice it is one.
        assert first.post("/cases/1/decide", **EVO).status_code == 303
    # The other tab still shows the form.
    assert second.post("/cases/1/decide", **SCH).status_code == 409
    assert "you have judged case pool" in second.text(".notice")
    assert second.go(second.get("/next")) in ("/cases/2", "/cases/3")
    second.post("/cases/1/keep", **SCH)
    assert "no longer waits for you" in second.text("#held")
    judge(pair, "Bo", SCH)
    # Nor is a third person one of the two.
    for browser in (first, second):
        assert browser.post("/cases/1/decide", **TAKEN).status_code == 409
        assert browser.go(browser.get("/next?kind=settle")) == "/?kind=settle"
    assert statuses(pair) == [("Ada", "judge", "human"), ("Bo", "judge", "human")]
    reviews = pair.run.reviews()
    row = next(iter(pair.run.decisions()))
    with pytest.raises(LeaseError, match="you have judged case pool"):
        reviews.add(type(row)("pool", "decide", same, "accepted", {}))


def test_a_third_settles_what_was_shown_alone(pair: Office) -> None:
    ada = judge(pair, "Ada", EVO)
    bo = judge(pair, "Bo", SCH)
    cy, di = pair.browser("Cy"), pair.browser("Di")
    for browser in (cy, di):
        browser.get("/cases/1")
    shown = cy.page
    # The second changes from Sch to Ctl while the third reads.
    assert bo.post("/cases/1/undo").status_code == 303
    assert cy.post("/cases/1/decide", **TAKEN).status_code == 409
    assert "the second person changed their answer meanwhile: look again" in cy.text(".notice")
    judge(pair, "Bo", {"choice": "own", "code": "Ctl"})
    cy.page = shown
    assert cy.post("/cases/1/decide", **TAKEN).status_code == 409
    assert "the second person changed their answer" in cy.text(".notice")
    assert (cy.value("choice"), cy.value("justification")) == (None, "It searches.")
    assert "Ctl" in cy.text("label:has([value=second])")
    # Nor is what was typed to the answers of two taken for a judgement of the description alone.
    assert ada.post("/cases/1/undo").status_code == 409
    assert bo.go(bo.post("/cases/1/undo")) == "/cases/1"
    assert di.post("/cases/1/decide", **EVO, justification="so").status_code == 409
    judge(pair, "Bo", SCH)
    cy.get("/cases/1")
    for _ in range(2):  # Sent twice it is one.
        assert cy.post("/cases/1/decide", **TAKEN).status_code == 303
    assert str(pair.decisions()[-1].label) == "OPT=Sch"
    assert [action for _, action, _ in statuses(pair)].count("decide") == 1


def test_two_people_audit_a_case_blind_to_the_models_and_each_other(pair: Office) -> None:
    draw_audit(pair.run, 1.0, seed=5)
    judge(pair, "Ada", {"code": "Evo"}, 6)
    assert Queue(pair.run.reviews()).look(AUDIT)[0] == [6]
    judge(pair, "Bo", {"code": "Lrn"}, 6)
    cy = pair.browser("Cy")
    assert cy.go(cy.get("/next?kind=audit")) == "/cases/6?kind=audit"
    assert "Judgement 1" in cy.text() and "PASS" not in cy.text() and "adjud" not in cy.text()
    options = [option["value"] for option in cy.page.select("[name=choice]")]
    assert options == ["first", "second", "own"]
    cy.post("/cases/6/decide?kind=audit", choice="second")
    assert [row[1:] for row in statuses(pair, AUDIT)] == [
        ("draw", "human"),
        ("judge", "human"),
        ("judge", "human"),
        ("decide", "accepted"),
    ]
    assert str(pair.decisions(AUDIT)[-1].label) == "OPT=Lrn"
