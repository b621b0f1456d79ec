"""What reviewers see and do, page by page."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from raylab.annotation.outcome import current_label
from raylab.annotation.protocol import draw_order
from raylab.annotation.reviews import draw_audit
from raylab.archive.records import AUDIT, DECISION, HUMAN
from tests.annotation.outcomes import CODEBOOK
from tests.archive.rows import NOON
from tests.review.browser import Browser
from tests.review.office import GOLD, HOSTILE, LEASE, LONG, Office

EVO = "OPT=Evo; Rep=param; Obj=loss; Data=sim; Time=iter; Human=low"
FILLED = {"choice": "A", "justification": "It breeds."}
REFUSED = {"choice": "B", "justification": "It searches."}


def options(browser: Browser) -> list[str | None]:
    return [attrs["value"] for _, attrs in browser.page.tags if attrs.get("name") == "choice"]


def words(browser: Browser) -> str:
    return " ".join(browser.page.text.split())


# The queue


def test_the_queue_has_the_open_cases_and_can_be_filtered(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/")
    text = browser.page.text
    assert "5 cases wait for a person." in text and "agreed" not in text
    assert text.index("pool") < text.index("valve/hybrid") < text.index("<b>bold</b>")
    assert "One answer acceptable 2" in text and "Neither acceptable 2" in text
    assert "only A is acceptable: A PASS 90, B FAIL 40" in text
    browser.get("/?kind=unconfirmed")
    assert "<b>bold</b>" in browser.page.text and "valve/hybrid" not in browser.page.text
    browser.get("/?kind=unparsable")
    assert "No case is open for this reason." in browser.page.text


def test_a_long_queue_comes_in_pages(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylab.review.app.PAGE_LENGTH", 2)
    browser = office.browser("Ada")
    for page, case in (("1", "pool"), ("2", "long"), ("3", "code"), ("9", "code"), ("-1", "pool")):
        browser.get(f"/?page={page}")
        assert case in [text for text in browser.page.text.split("\n") if text]
        assert browser.page.within["queue"].count("acceptable") <= 4


def test_one_case_waits_and_none_does(office: Office) -> None:
    browser = office.browser("Ada")
    codes = {1: "Evo", 2: "Ctl", 3: "Sym", 4: "Evo"}
    for case, code in codes.items():
        browser.post(f"/cases/{case}/decide", choice="own", code=code, justification="so")
    browser.get("/")
    assert "1 case waits for a person." in browser.page.text
    assert "4 of your decisions wait for the evaluator" in words(browser)
    answer = browser.post("/cases/5/decide", choice="own", code="Ctl", justification="so")
    assert answer.headers["location"] == "/decided?done=5"
    browser.get("/")
    assert "No case waits for a person." in browser.page.text
    assert browser.get("/next").headers["location"] == "/"
    assert len(office.decisions()) == 5


def test_next_passes_over_cases_that_others_are_at(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    assert ada.get("/next").headers["location"] == "/cases/1"
    assert bo.get("/next").headers["location"] == "/cases/2"
    assert bo.get("/next?after=2").headers["location"] == "/cases/3"
    assert ada.get("/next?after=5").headers["location"] == "/cases/1"
    assert ada.get("/next?kind=one-acceptable&after=1").headers["location"] == (
        "/cases/4?kind=one-acceptable"
    )
    assert bo.get("/next?kind=one-acceptable").headers["location"] == "/?kind=one-acceptable"
    bo.get("/")
    assert "Ada is at it until 12:10 UTC" in bo.page.text
    assert "you are at it until 12:10 UTC" in bo.page.text


def test_the_filter_stays_on_the_way(office: Office) -> None:
    browser = office.browser("Ada")
    answer = browser.post("/cases/1/decide?kind=one-acceptable", **FILLED)
    assert answer.headers["location"] == "/cases/4?kind=one-acceptable&done=1"
    answer = browser.post("/cases/4/decide?kind=one-acceptable", **FILLED)
    assert answer.headers["location"] == "/decided?kind=one-acceptable&done=4"
    assert browser.post("/cases/2/skip?kind=a b").status_code == 400


@pytest.mark.parametrize(
    "path", ["/", "/?kind=audit", "/next", "/cases/1", "/cases/6", "/decided", "/cases/5/keep"]
)
def test_a_page_asks_the_archive_as_often_for_many_decisions_as_for_none(
    office: Office, path: str
) -> None:
    browser = office.browser("Ada")
    draw_audit(office.run, 1.0, seed=5)

    def statements() -> int:
        asked: list[str] = []

        def ask(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            asked.append(statement)

        engine = office.archive._database._engine
        event.listen(engine, "before_cursor_execute", ask)
        try:
            answer = browser.post(path) if path.endswith("keep") else browser.get(path)
        finally:
            event.remove(engine, "before_cursor_execute", ask)
        assert answer.status_code in (200, 303)
        return sum(not one.startswith(("PRAGMA", "BEGIN")) for one in asked)

    statements()  # The first look at a case is remembered.
    before = statements()
    for case in (1, 2, 3, 4):
        browser.post(f"/cases/{case}/decide", choice="own", code="Evo", justification="so")
    browser.post("/cases/6/decide", code="Evo")
    office.judge()
    assert statements() <= before <= 8


# A case


def test_a_case_shows_all_that_a_person_needs(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/3")
    within = browser.page.within
    assert "Adjudication refused" in within["reason"]
    assert "the adjudicated code is not acceptable: FAIL 20" in within["reason"]
    assert "Only A names Sym." in within["differences"]
    first, second = draw_order(5, "<b>bold</b>")
    shown = within["answers"]
    assert shown.index(f"Answer {first}") < shown.index(f"Answer {second}")
    assert options(browser) == [first, second, "own", "unclear"]
    assert "Sym Symbion only here" in shown and "PASS 90" in shown and "PASS 85" in shown
    assert "Prb Probion" in within["proposal"] and "FAIL 20" in within["proposal"]
    assert ("details", {"class": "proposal"}) in browser.page.tags
    browser.get("/cases/1")
    assert "adjudicator's proposal" not in browser.page.within["main"]


def test_answers_stand_in_the_order_drawn_without_models_or_gold(office: Office) -> None:
    browser = office.browser("Ada")
    orders: set[tuple[str | None, ...]] = set()
    for number, case in enumerate(("pool", "valve/hybrid", "<b>bold</b>", "long", "code"), 1):
        text = browser.get(f"/cases/{number}").text
        orders.add(tuple(options(browser)))
        assert tuple(options(browser)) == (*draw_order(5, case), "own", "unclear")
        assert "quux" not in text and GOLD not in text
    assert len(orders) == 2


def test_markup_in_a_description_or_an_id_is_text(office: Office) -> None:
    browser = office.browser("Ada")
    plain, _ = browser.get("/cases/1"), browser.page
    counts = {tag: browser.page.count(tag) for tag in ("script", "img", "h1", "form")}
    answer = browser.get("/cases/3")
    assert {tag: browser.page.count(tag) for tag in counts} == counts
    assert HOSTILE in browser.page.within["description"]
    assert "<b>bold</b>" in browser.page.text and "<script>document" not in answer.text
    assert plain.status_code == answer.status_code == 200
    browser.get("/")
    assert HOSTILE[:80] in browser.page.text and browser.page.count("script") == 1


def test_what_people_write_is_made_printable(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", choice="own", code="Evo", justification="a\u202eb\x1b]0;c\0d")
    for browser in (ada, bo):
        text = browser.get("/cases/1").text
        assert r"a\u202eb\x1b]0;c" in text and not {"\u202e", "\x1b", "\0"} & set(text)
    assert office.decisions()[0].justification == "a\u202eb\x1b]0;c\ufffdd"


def test_descriptions_are_shown_whole_and_source_code_coloured(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/4")
    assert LONG in browser.page.within["description"]
    browser.get("/cases/5")
    (case,) = office.run.cases_at([5])
    assert browser.page.within["description"].strip() == case.case.description.strip()
    assert ("span", {"class": "k"}) in browser.page.tags
    assert browser.page.within["nf"].startswith("correlation")


@pytest.mark.parametrize("path", ["/cases/99", "/cases/0", "/cases/x", f"/cases/{2**64}", "/no"])
def test_what_is_not_there_is_told(office: Office, path: str) -> None:
    browser = office.browser("Ada")
    assert browser.get(path).status_code in (400, 404)
    assert "That did not work" in browser.page.text


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("Evo/Lrn", "Reads as"),
        ("OPT=Lrn+Evo; Human=low", "OPT=Lrn+Evo; Human=low"),
        ("Evo/Lern", "Lern"),
        ("OPT=Evo; Rep", "Rep"),
        ("<script>", "<"),
        ("[" * 40 + "Evo", "16"),
        ("x" * 5000, "4,096"),
        (" ", ""),
    ],
)
def test_a_code_is_read_while_it_is_typed(office: Office, code: str, says: str) -> None:
    browser = office.browser("Ada")
    browser.post("/cases/1/keep", choice="own", code=code)
    shown = browser.page.within["reading"]
    assert says in shown and bool(shown.strip()) == bool(says)
    assert browser.page.count("script") == 0


# Leases


def test_a_case_is_on_one_desk_at_a_time(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.get("/cases/1")
    bo.get("/cases/1")
    assert "Ada works on this case" in bo.page.within["notice"]
    answer = bo.post("/cases/1/decide", **FILLED)
    assert answer.status_code == 409 and "Ada works on case pool now" in bo.page.within["notice"]
    assert office.held() == {1: "Ada"} and office.decisions() == []
    assert bo.page.choice == "A" and bo.page.within["justification"].strip() == "It breeds."
    ada.follow(ada.post("/cases/1/decide", **FILLED))
    answer = bo.post("/cases/1/decide", **FILLED)
    assert answer.status_code == 409
    assert "case pool does not wait any more" in bo.page.within["notice"]
    assert [one.reviewer for one in office.decisions()] == ["Ada"]


def test_a_lease_that_ran_out_goes_to_who_asks_next(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.get("/cases/1")
    office.clock.pass_by(LEASE / 2)
    ada.post("/cases/1/keep")
    office.clock.pass_by(LEASE - timedelta(seconds=1))
    bo.get("/cases/1")
    assert office.held() == {1: "Ada"}
    office.clock.pass_by(timedelta(seconds=1))
    bo.get("/cases/1")
    assert office.held() == {1: "Bo"}
    answer = ada.post("/cases/1/decide", **FILLED)
    assert answer.status_code == 409
    assert "Bo works on case pool now: your text stays" in ada.page.within["notice"]
    ada.post("/cases/1/keep", **FILLED)
    assert "Bo works on this case until 12:25 UTC" in ada.page.within["held"]
    assert bo.post("/cases/1/skip").headers["location"] == "/cases/2"
    ada.get("/cases/1")
    assert office.held() == {1: "Ada", 2: "Bo"}
    assert ada.post("/cases/1/decide", **FILLED).status_code == 303


# Decisions


def test_a_decision_is_archived_at_once_and_confirmed_later(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/1")
    answer = browser.post("/cases/1/decide", **FILLED)
    assert answer.headers["location"] == "/cases/2?done=1"
    browser.follow(answer)
    assert "Your decision on the case before is archived." in browser.page.text
    (made,) = office.decisions()
    assert (made.case, made.action, made.choice, made.reviewer) == ("pool", "decide", "A", "Ada")
    assert made.classification is not None and str(made.classification.label) == EVO
    assert made.justification == "It breeds." and made.decided == NOON
    assert office.statuses() == ["unconfirmed"] and made.confirmation is None
    (case,) = office.run.cases_at([1])
    assert current_label(case, CODEBOOK) is None
    office.judge()
    (judged,) = office.decisions()
    assert judged.confirmation is not None and judged.confirmation.score == 90
    assert judged.confirmation.calls[0].stage == "confirm"
    assert judged == made.model_copy(update={"confirmation": judged.confirmation})
    (case,) = office.run.cases_at([1])
    assert (case.status, str(current_label(case, CODEBOOK))) == ("accepted", EVO)
    browser.get("/cases/1")
    assert f"{EVO} by Ada confirmed PASS 90" in words(browser)


def test_the_page_says_what_waits_and_what_was_refused_and_why(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", **REFUSED)
    ada.get("/")
    assert "1 of your decisions waits for the evaluator" in words(ada)
    assert "4 cases wait for a person." in ada.page.text
    for browser in (ada, bo):
        browser.get("/cases/1")
        assert "by Ada waits for the evaluator" in words(browser)
        assert browser.page.count("textarea") == 0 and "It searches." in browser.page.text
    assert "Undo" in ada.page.text and "Undo" not in bo.page.text
    office.judge()
    assert office.statuses() == [HUMAN] and office.run.reviews().waiting(DECISION)[0] == 1
    ada.get("/")
    assert "pool came back: the evaluator refuses OPT=Sch" in words(ada)
    assert "FAIL 40 As scripted." in words(ada)
    ada.get("/decided")
    assert "refused FAIL 40 OPT=Sch" in words(ada)
    assert "The evaluator refuses this code: As scripted." in words(ada)
    ada.get("/cases/1")
    told = ada.page.within["decisions"]
    assert "Ada" in told and "OPT=Sch" in told and "FAIL 40" in told
    assert ada.page.choice == "B" and ada.page.within["justification"].strip() == "It searches."
    # Anybody may decide anew.
    ada.post("/cases/1/skip")
    assert bo.post("/cases/1/decide", **FILLED).status_code == 303
    office.judge()
    ada.get("/")
    assert "came back" not in ada.page.text and office.statuses() == [HUMAN, "accepted"]


def test_a_person_decides_over_the_evaluator(office: Office) -> None:
    browser = office.browser("Ada")
    browser.post("/cases/1/decide", **REFUSED)
    office.judge()
    answer = browser.post("/cases/1/decide", **REFUSED, insist="true")
    assert answer.status_code == 303
    office.judge()
    assert office.statuses() == [HUMAN, "accepted"]
    assert [one.insisted for one in office.decisions()] == [False, True]
    assert office.decisions()[1].confirmation is None
    (case,) = office.run.cases_at([1])
    assert str(current_label(case, CODEBOOK)).startswith("OPT=Sch")
    browser.get("/decided")
    assert "decided over the evaluator" in browser.page.text


def test_a_person_finds_no_code_right(office: Office) -> None:
    browser = office.browser("Ada")
    assert browser.post("/cases/1/decide", choice="unclear").status_code == 422
    assert "Say why" in browser.page.within["justification-problem"]
    answer = browser.post("/cases/1/decide", choice="unclear", justification="Two systems.")
    assert answer.status_code == 303
    office.judge()
    (made,) = office.decisions()
    assert office.statuses() == ["unclear"]
    assert (made.choice, made.classification, made.confirmation) == ("unclear", None, None)
    (case,) = office.run.cases_at([1])
    assert current_label(case, CODEBOOK) is None
    assert 1 not in office.run.reviews().waiting(DECISION)
    browser.get("/cases/1")
    assert "No code is right. by Ada" in words(browser) and "Undo my decision" in words(browser)


def test_a_decision_that_is_sent_twice_is_one(office: Office) -> None:
    browser = office.browser("Ada")
    for _ in range(3):
        answer = browser.post("/cases/1/decide", **FILLED)
        assert answer.headers["location"] == "/cases/2?done=1"
        office.clock.pass_by(timedelta(seconds=1))
    assert len(office.decisions()) == 1
    assert browser.post("/cases/1/decide", **REFUSED).status_code == 409
    office.judge()
    assert browser.post("/cases/1/decide", **FILLED).status_code == 303
    assert len(office.decisions()) == 1


INCOMPLETE: list[tuple[dict[str, Any], str, str]] = [
    ({"justification": "so"}, "choice", "Choose A or B"),
    ({"choice": "A", "justification": " \n"}, "justification", "Say why"),
    ({"choice": "A", "justification": "x" * 10_001}, "justification", "10,001 characters"),
    ({"choice": "own", "code": "Evo/Lern", "justification": "so"}, "code", "Lern"),
    ({"choice": "own", "justification": "so"}, "code", ""),
]


@pytest.mark.parametrize(("filled", "field", "says"), INCOMPLETE)
def test_an_incomplete_decision_is_told_and_kept(
    office: Office, filled: dict[str, Any], field: str, says: str
) -> None:
    browser = office.browser("Ada")
    answer = browser.post("/cases/1/decide", **filled)
    assert answer.status_code == 422 and says in browser.page.within[f"{field}-problem"]
    (described,) = [attrs for _, attrs in browser.page.tags if attrs.get("aria-invalid") == "true"]
    assert described["id"] == field
    assert f"{field}-problem" in (described["aria-describedby"] or "")
    assert browser.page.within["justification"].strip() == filled["justification"].strip()
    assert office.decisions() == []


def test_a_case_that_no_person_was_asked_about_is_shown_and_left_alone(office: Office) -> None:
    browser = office.browser("Ada")
    assert browser.get("/cases/6").status_code == 200
    assert "Settled as OPT=Lrn" in browser.page.text and "Send" not in browser.page.text
    assert browser.post("/cases/6/decide", **FILLED).status_code == 409
    assert browser.post("/cases/6/undo").status_code == 409
    assert office.decisions() == [] and office.held() == {}


# Undo


@pytest.mark.parametrize("judge", [lambda _: None, Office.judge], ids=["waiting", "judged"])
def test_undo_writes_a_record_and_opens_the_case_again(
    office: Office, judge: Callable[[Office], None]
) -> None:
    browser = office.browser("Ada")
    browser.post("/cases/1/decide", **FILLED)
    judge(office)
    browser.get("/decided")
    assert "pool" in browser.page.text and "Undo" in browser.page.text
    answer = browser.post("/cases/1/undo")
    assert answer.headers["location"] == "/cases/1"
    browser.follow(answer)
    assert browser.page.choice == "A"
    assert browser.page.within["justification"].strip() == "It breeds."
    assert "taken back" in browser.page.within["decisions"]
    assert [one.action for one in office.decisions()] == ["decide", "undo"]
    assert 1 in office.run.reviews().waiting(DECISION)
    browser.get("/decided")
    assert "taken back" in browser.page.text and "Undo" not in browser.page.text
    office.judge()
    browser.post("/cases/1/decide", **FILLED)
    assert [one.action for one in office.decisions()] == ["decide", "undo", "decide"]


def test_only_ones_own_decision_that_holds_can_be_undone(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", **FILLED)
    assert bo.post("/cases/1/undo").status_code == 409
    assert ada.post("/cases/2/undo").status_code == 409
    assert ada.post("/cases/99/undo").status_code == 404
    ada.post("/cases/2/decide", choice="A", justification="so")
    office.judge()
    assert office.run.cases_at([2])[0].status == HUMAN
    assert ada.post("/cases/2/undo").status_code == 409
    assert ada.post("/cases/1/undo").status_code == 303
    assert ada.post("/cases/1/undo").status_code == 409
    assert [one.action for one in office.decisions()] == ["decide", "decide", "undo"]


# The audit


@pytest.fixture
def drawn(office: Office) -> Office:
    """The office with its one decided case, 6, drawn."""
    assert [draw_audit(office.run, 1.0, seed=5) for _ in range(2)] == [1, 0]
    return office


def codes(office: Office) -> list[tuple[str, str]]:
    return [(row.action, row.reviewer) for row in office.run.decisions(kind=AUDIT)]


def test_nothing_is_drawn_until_somebody_asks(office: Office) -> None:
    ada = office.browser("Ada")
    assert ada.get("/?kind=audit").status_code == 200 and "No audit is drawn" in ada.page.text
    assert ada.get("/next?kind=audit").headers["location"] == "/?kind=audit"


def test_a_drawn_case_is_coded_unseen(drawn: Office) -> None:
    ada = drawn.browser("Ada")
    ada.get("/?kind=audit")
    assert "1 of 1 drawn cases waits for a code." in words(ada)
    assert "acceptable" not in ada.page.within["queue"]
    ada.follow(ada.get("/next?kind=audit"))
    assert "A model is fitted" in ada.page.within["description"]
    assert not {"verdict", "answers", "report", "proposal", "rationale"} & ada.page.within.keys()
    assert not any(word in ada.page.text for word in ("PASS", " 92", "quux", "OPT=Lrn"))
    assert ada.post("/cases/6/keep", code="Evo").status_code == 200
    assert "Reads as" in ada.page.text
    assert ada.post("/cases/6/decide", code="Foo").status_code == 422
    # Neither another choice nor insisting means anything here.
    for _ in range(2):
        done = ada.post("/cases/6/decide?kind=audit", choice="A", insist="true", code="Evo")
        assert done.headers["location"] == "/decided?kind=audit&done=6"
    assert codes(drawn) == [("draw", ""), ("decide", "Ada")]
    drawn.judge()
    assert drawn.decisions() == [] and drawn.run.counts(now=True)["accepted"] == 1
    ada.get("/?kind=audit")
    assert "All 1 drawn cases are classified." in words(ada)


def test_a_code_of_an_audit_is_taken_back_by_its_reviewer_alone(drawn: Office) -> None:
    ada, bo = drawn.browser("Ada"), drawn.browser("Bo")
    ada.get("/cases/6")
    bo.get("/cases/6")
    assert "Ada works on this case" in bo.page.text
    assert bo.post("/cases/6/decide", code="Evo").status_code == 409
    ada.post("/cases/6/decide", code="Evo")
    bo.get("/cases/6")
    assert "OPT=Evo" in bo.page.text and "Undo" not in bo.page.text
    assert bo.post("/cases/6/undo").status_code == 409
    assert bo.post("/cases/6/decide", code="Lrn").status_code == 409
    ada.get("/decided")
    assert "Classified for the audit" in ada.page.text and "Undo" in ada.page.text
    assert ada.post("/cases/6/undo").headers["location"] == "/cases/6"
    # Whoever codes it next does not see the code that was taken back.
    bo.follow(bo.get("/next?kind=audit"))
    assert "Decisions so far" not in bo.page.text and bo.page.field("code")["value"] == ""
    assert codes(drawn) == [("draw", ""), ("decide", "Ada"), ("undo", "Ada")]
