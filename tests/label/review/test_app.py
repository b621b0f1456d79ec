"""What reviewers see and do, page by page."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from raylab.label.archive.reviews import Queue
from raylab.label.conclusions.audit import draw_audit
from raylab.label.judgement import AUDIT, DECISION, HUMAN
from raylab.label.protocol.protocol import draw_order
from tests.label.archive.rows import NOON
from tests.label.review.office import (
    GOLD,
    RECORDS,
    TICKETS,
    Office,
    annotation,
    make_run,
    make_study,
    open_office,
)

FILLED = {"choice": "A", "justification": "It breeds."}
REFUSED = {"choice": "B", "justification": "It searches."}
OWN = {"choice": "own", "code": "Evo", "justification": "so"}
UNCLEAR = {"choice": "unclear", "justification": "so"}


# The queue


def test_the_queue_has_the_open_cases_and_can_be_filtered(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = office.browser("Ada")
    browser.get("/")
    text = browser.text()
    assert "5 cases wait for a person." in text and "agreed" not in text
    assert text.index("pool") < text.index("valve/hybrid") < text.index("<b>bold</b>")
    assert "One answer acceptable 2" in text and "No answer acceptable 2" in text
    assert "only A is acceptable: A PASS 90, B FAIL 40" in text
    browser.get("/?kind=unconfirmed")
    assert browser.text("h2") == "<b>bold</b>"
    browser.get("/?kind=unparsable")
    assert "No case is open for this reason." in browser.text()
    monkeypatch.setattr("raylab.label.review.app.PAGE_LENGTH", 2)
    browser.get("/")
    assert browser.text("h2") == "pool valve/hybrid" and "the first 2" in browser.text()
    answers = [browser.post(f"/cases/{case}/decide", **OWN) for case in range(1, 6)]
    assert browser.go(answers[-1]) == "/decided?done=5"
    assert browser.go(browser.get("/next")) == "/"
    assert "No case waits for a person." in browser.text()
    assert "5 of your decisions wait for the evaluator" in browser.text()


def test_next_passes_over_cases_that_others_are_at(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    assert ada.go(ada.get("/next")) == "/cases/1"
    assert bo.go(bo.get("/next")) == "/cases/2"
    assert bo.go(bo.get("/next?after=2")) == "/cases/3"
    assert ada.go(ada.get("/next?after=5")) == "/cases/1"
    one = "kind=one-acceptable"
    assert ada.go(ada.get(f"/next?{one}&after=1")) == f"/cases/4?{one}"
    assert bo.go(bo.get(f"/next?{one}")) == f"/?{one}"
    bo.get("/")
    assert "reserved for Ada until 12:10 UTC" in bo.text()
    assert "reserved for you until 12:10 UTC" in bo.text()
    # The filter stays on the way.
    answer = ada.post(f"/cases/1/decide?{one}", **FILLED)
    assert ada.go(answer) == f"/cases/4?{one}&done=1"
    assert ada.page.select("#decision")[0]["action"] == f"/cases/4/decide?{one}"
    assert ada.go(ada.post(f"/cases/4/decide?{one}", **FILLED)) == f"/decided?{one}&done=4"
    notice = "archived. No further case is free under One answer acceptable: all open cases."
    assert notice in ada.text(".notice")
    assert ada.page.select(".notice a")[0]["href"] == "/"


# A case


def test_a_case_shows_all_that_a_person_needs_without_models_or_gold(office: Office) -> None:
    browser = office.browser("Ada")
    orders: set[Any] = set()
    for number, case in enumerate(("pool", "valve/hybrid", "<b>bold</b>", "joined"), 1):
        text = browser.get(f"/cases/{number}").text
        orders.add(order := draw_order(5, case, "AB"))
        first = str(browser.value("code")).partition(";")[0]
        assert first == ["OPT=Evo", "OPT=Lrn", "OPT=Sym+Sch", "OPT=Evo/Lrn"][number - 1]
        choices = [option["value"] for option in browser.page.select("[name=choice]")]
        assert choices == [*order, "own", "unclear"]
        assert browser.text("article h3") == f"Answer {order[0]} Answer {order[1]}"
        assert "quux" not in text and GOLD not in text
        assert ("adjudicator's proposal" in browser.text()) == (number == 3)
    assert len(orders) == 2
    assert browser.text(".answers").count("joined differently") == 2
    browser.get("/cases/3")
    assert "Adjudication refused" in browser.text(".reason")
    assert "the adjudicated code is not acceptable: FAIL 20" in browser.text(".reason")
    shown = browser.text(".answers")
    assert "Sym Symbion only here" in shown and "PASS 90" in shown and "PASS 85" in shown
    assert "Prb Probion" in browser.text("details.proposal:not([open])")
    assert "FAIL 20" in browser.text(".proposal")


def test_the_answers_of_three_annotators_can_be_chosen(chat: str, tmp_path: Path) -> None:
    models = "llm.annotators=[{model: quux-a}, {model: quux-b}, {model: quux-c}]"
    config = annotation(tmp_path, chat, models)
    mark = "[[gold=Ctl;a=Lrn;b=Lrn/Ctl;c=Ctl;eval_a=30;eval_b=55;eval_c=90]]"
    make_run(config, {"one": f"A valve is regulated. {mark}"})
    with open_office(config) as office:
        browser = office.browser("Ada")
        browser.get("/cases/1")
        assert "only C is acceptable: A FAIL 30, B FAIL 50, C PASS 90" in browser.text(".reason")
        answers = [f"Answer {name}" for name in draw_order(5, "one", "ABC")]
        assert browser.text("article h3") == " ".join(answers)
        keys = [option["data-key"] for option in browser.page.select("[name=choice]")]
        assert sorted(map(str, keys)) == ["a", "b", "c", "o", "u"]
        assert browser.post("/cases/1/decide", choice="C", justification="So.").status_code == 303
        (made,) = office.decisions()
        assert (made.choice, made.label and made.label.composition) == ("C", "Ctl")


def test_what_people_write_is_made_printable(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", choice="own", code="Evo", justification="a\u202eb\x1b]0;c\0d")
    for browser in (ada, bo):
        text = browser.get("/cases/1").text
        assert r"a\u202eb\x1b]0;c" in text and not {"\u202e", "\x1b", "\0"} & set(text)
    assert office.decisions()[0].justification == "a\u202eb\x1b]0;c\ufffdd"


@pytest.mark.parametrize("path", ["/cases/99", "/cases/0", "/cases/x", "/next?kind=a b", "/no"])
def test_what_is_not_there_is_told(office: Office, path: str) -> None:
    browser = office.browser("Ada")
    assert browser.get(path).status_code in (400, 404)
    assert browser.text("h1") == "That did not work"


# Leases


def test_a_case_is_on_one_desk_at_a_time(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.get("/cases/1")
    bo.get("/cases/1")
    assert "Ada works on this case" in bo.text(".notice")
    assert bo.post("/cases/1/decide", **FILLED).status_code == 409
    assert "Not sent: Ada works on case pool now: your text stays" in bo.text(".notice")
    assert office.held() == {1: "Ada"} and office.decisions() == []
    assert (bo.value("choice"), bo.value("justification")) == ("A", "It breeds.")
    ada.go(ada.post("/cases/1/decide", **FILLED))
    assert bo.post("/cases/1/decide", **FILLED).status_code == 409
    assert "case pool does not wait any more" in bo.text(".notice")
    assert [made.reviewer for made in office.decisions()] == ["Ada"]


# Decisions


@pytest.mark.parametrize(
    ("filled", "before", "after", "says"),
    [
        (FILLED, "unconfirmed", "accepted", "confirmed PASS 90 OPT=Evo"),
        (REFUSED, "unconfirmed", HUMAN, "refused FAIL 40 OPT=Sch"),
        (REFUSED | {"insist": "true"}, "accepted", "accepted", "over the evaluator OPT=Sch"),
        (OWN, "unconfirmed", "accepted", "confirmed PASS 90 OPT=Evo so"),
        (UNCLEAR, "unclear", "unclear", "no code is right"),
    ],
)
def test_a_decision_is_archived_at_once_and_judged_by_the_next_run(
    office: Office, filled: dict[str, str], before: str, after: str, says: str
) -> None:
    browser = office.browser("Ada")
    assert browser.go(browser.post("/cases/1/decide", **filled)) == "/cases/2?done=1"
    assert [row.status for row in office.run.decisions()] == [before]
    assert 1 not in Queue(office.run.reviews()).look(DECISION)[0]
    (decided,) = office.decisions()
    assert (decided.case, decided.reviewer, decided.decided) == ("pool", "Ada", NOON)
    assert (decided.choice, decided.justification) == (filled["choice"], filled["justification"])
    assert decided.insisted == ("insist" in filled) and decided.confirmation is None
    office.judge()
    (judged,) = office.decisions()
    assert judged == decided.model_copy(update={"confirmation": judged.confirmation})
    assert (judged.confirmation is None) == (before != "unconfirmed")
    assert [case.status for case in office.run.cases(places=[1])] == [after]
    browser.get("/decided")
    assert says in browser.text()


def test_the_page_says_what_waits_and_what_was_refused_and_why(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", **REFUSED)
    for browser in (ada, bo):
        browser.get("/cases/1")
        assert "by Ada waits for the evaluator" in browser.text()
        assert "It searches." in browser.text() and not browser.page.select("textarea")
    assert "Undo" in ada.text() and "Undo" not in bo.text()
    office.judge()
    ada.get("/")
    assert "pool came back: the evaluator refuses OPT=Sch" in ada.text()
    ada.get("/cases/1")
    assert "FAIL 40" in ada.text(".decisions")
    assert (ada.value("choice"), ada.value("justification")) == ("B", "It searches.")
    # Anybody may decide anew.
    ada.post("/cases/1/skip")
    assert bo.post("/cases/1/decide", **FILLED).status_code == 303
    ada.get("/")
    assert "came back" not in ada.text()


def test_a_decision_that_is_sent_twice_is_one(office: Office) -> None:
    browser = office.browser("Ada")
    for _ in range(3):
        assert browser.go(browser.post("/cases/1/decide", **FILLED)) == "/cases/2?done=1"
        office.time += timedelta(seconds=1)
    assert browser.post("/cases/1/decide", **REFUSED).status_code == 409
    office.judge()
    assert browser.post("/cases/1/decide", **FILLED).status_code == 303
    assert len(office.decisions()) == 1


@pytest.mark.parametrize(
    ("filled", "field", "says"),
    [
        ({"justification": "so"}, "choice", "Choose an answer"),
        ({"choice": "A", "justification": " "}, "justification", "Say why"),
        ({"choice": "own", "code": "Evo/Lern", "justification": "so"}, "code", "Lern"),
    ],
)
def test_an_incomplete_decision_is_told_and_kept(
    office: Office, filled: dict[str, str], field: str, says: str
) -> None:
    browser = office.browser("Ada")
    assert browser.post("/cases/1/decide", **filled).status_code == 422
    assert says in browser.text(f"#{field}-problem")
    (invalid,) = browser.page.select("[aria-invalid=true]")
    assert invalid["id"] == field and f"{field}-problem" in str(invalid["aria-describedby"])
    assert browser.value("justification") == filled["justification"].strip()
    assert office.decisions() == []


def test_a_case_that_no_person_was_asked_about_is_shown_and_left_alone(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/6")
    assert "Settled as OPT=Lrn" in browser.text() and "Send" not in browser.text()
    assert browser.post("/cases/6/decide", **FILLED).status_code == 409
    assert browser.post("/cases/6/undo").status_code == 409
    assert office.decisions() == [] and office.held() == {}


def test_undo_writes_a_record_and_opens_the_case_again(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    for judge in (lambda: None, office.judge):
        assert ada.post("/cases/1/decide", **FILLED).status_code == 303
        judge()
        ada.get("/decided")
        assert "pool" in ada.text() and "Undo" in ada.text()
        assert bo.post("/cases/1/undo").status_code == 409
        assert ada.go(ada.post("/cases/1/undo")) == "/cases/1"
        assert (ada.value("choice"), ada.value("justification")) == ("A", "It breeds.")
        assert "taken back" in ada.text(".decisions")
        ada.get("/decided")
        assert "taken back" in ada.text() and "Undo" not in ada.text()
        assert ada.post("/cases/1/undo").status_code == 409
    assert [made.choice for made in office.decisions()] == ["A", None] * 2
    # What nobody decided, or the evaluator refused, cannot be taken back.
    assert ada.post("/cases/2/undo").status_code == 409
    ada.post("/cases/2/decide", choice="A", justification="so")
    office.judge()
    assert ada.post("/cases/2/undo").status_code == 409


# The audit


def test_a_drawn_case_is_coded_unseen(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.get("/?kind=audit")
    assert "No audit is drawn" in ada.text()
    assert [draw_audit(office.run, 1.0, seed=5) for _ in range(2)] == [1, 0]
    ada.get("/?kind=audit")
    assert "1 of 1 drawn cases waits for a code." in ada.text()
    assert "acceptable" not in ada.text(".queue")
    assert ada.go(ada.get("/next?kind=audit")) == "/cases/6?kind=audit"
    assert "A model is fitted" in ada.text(".description")
    assert not ada.page.select(".verdict, .answers, .report, .proposal, .rationale")
    assert not any(word in ada.text("body") for word in ("PASS", " 92", "quux"))
    assert "OPT=Lrn" not in ada.text(".material")
    ada.post("/cases/6/keep", code="Evo")
    assert "Reads as" in ada.page.text
    assert ada.post("/cases/6/decide", code="Foo").status_code == 422
    assert bo.post("/cases/6/decide", code="Evo").status_code == 409
    # Neither another choice nor insisting means anything here.
    for _ in range(2):
        done = ada.post("/cases/6/decide?kind=audit", choice="A", insist="true", code="Evo")
        assert ada.go(done) == "/decided?kind=audit&done=6"
    (coded,) = office.decisions(AUDIT)
    assert (str(coded.label), coded.choice, coded.insisted) == ("OPT=Evo", "own", False)
    office.judge()
    assert office.decisions() == [] and office.run.counts(now=True)["accepted"] == 1
    ada.get("/?kind=audit")
    assert "All 1 drawn cases are classified." in ada.text()
    # Its reviewer alone takes the code back, and whoever codes the case next does not see it.
    bo.get("/cases/6")
    assert "OPT=Evo" in bo.text() and "Undo" not in bo.text()
    assert bo.post("/cases/6/undo").status_code == 409
    ada.get("/decided")
    assert "Classified for the audit" in ada.text() and "Undo" in ada.text()
    ada.post("/cases/6/undo")
    bo.go(bo.get("/next?kind=audit"))
    assert "Decisions so far" not in bo.text() and not bo.value("code")
    assert [made.choice for made in office.decisions(AUDIT)] == ["own", None]


# Forms of a codebook


@pytest.fixture
def tickets(tmp_path: Path) -> Iterator[Office]:
    """A case whose answers are records of six fields."""
    with open_office(make_study(tmp_path, TICKETS, "Two parcels are lost.", RECORDS)) as office:
        yield office


def test_a_record_is_filled_in_field_by_field(tickets: Office) -> None:
    ada = tickets.browser("Ada")
    ada.get("/cases/1")
    assert "the codes differ in topic, areas and amount: A PASS 90" in ada.text(".reason")
    assert (
        ada.text("article:has(#answer-B) .differs th")
        == "topic ≠ (differs) areas ≠ (differs) amount ≠ (differs) quote ≠ (differs)"
    )
    assert "A parcel came broken." in ada.text("#answer-topic label")
    assert ada.text("#answer-topic legend").startswith("topic: what the customer wants")
    # Another code begins as that of A.
    assert (ada.value("answer-topic"), ada.value("answer-parcels")) == ("tracking", "2")
    (amount,) = ada.page.select("[name=answer-amount]")
    assert (amount["type"], amount["min"], amount["max"]) == ("number", "0.5", "99")
    assert "What to do." in ada.text(".material") and not ada.page.select("[name=code]")
    filled: dict[str, Any] = {"choice": "own", "justification": "so"}
    wrong = {"answer_topic": "cake", "answer_amount": "100", "answer_quote": "<lost>"}
    assert ada.post("/cases/1/decide", **filled, **wrong).status_code == 422
    assert "'damage', found 'cake'" in ada.text("#answer-topic-problem")
    assert "should be at most 99" in ada.text("#answer-amount-problem")
    assert "This is empty" in ada.text("#answer-parcels-problem")
    told = "Not sent yet: parcels is empty, correct topic, correct amount."
    assert ada.text(".notice") == told
    ada.post("/cases/1/decide", **filled)
    assert ada.text(".notice") == "Not sent yet: topic and parcels are empty."
    ada.post("/cases/1/decide", **filled, **wrong)
    # What may be empty has no problem, and what was typed stays.
    assert not ada.page.select("#answer-areas-problem, #answer-level-problem")
    assert (ada.value("answer-amount"), ada.value("answer-quote")) == ("100", "<lost>")
    right = {"answer_topic": "damage", "answer_parcels": "2", "answer_areas": ["web", "depot"]}
    assert ada.post("/cases/1/decide", **filled, **right).status_code == 303
    (decision,) = tickets.decisions()
    assert decision.label == tickets.codebook.parse_own(
        {**RECORDS[0], "topic": "damage", "areas": ["depot", "web"], "level": None, "quote": ""}
    )
    ada.get("/decided")
    assert "topic damage · areas depot, web · level empty · parcels 2" in ada.text()
    ada.post("/cases/1/undo")
    ada.get("/cases/1")
    boxes = ada.page.select("[name=answer-areas][checked]")
    assert [box["value"] for box in boxes] == ["depot", "web"]
    assert (ada.value("answer-topic"), ada.value("answer-parcels")) == ("damage", "2")
