"""What reviewers see and do, page by page."""

from datetime import timedelta
from typing import Any

import pytest

from raylab.annotation.outcome import HumanDecision, current_label, read_decision
from raylab.annotation.stages import draw_order
from raylab.archive.records import HUMAN
from raylab.config.jobs import AnnotateConfig
from tests.annotation.outcomes import CODEBOOK
from tests.archive.rows import NOON
from tests.review.browser import Browser
from tests.review.office import GOLD, HOSTILE, LEASE, LONG, Office

EVO = "OPT=Evo; Rep=param; Obj=loss; Data=sim; Time=iter; Human=low"
FILLED = {"choice": "A", "justification": "It breeds."}


def decisions(office: Office) -> list[HumanDecision]:
    rows = office.archive.run("systems").decisions()
    return [read_decision(row.body, CODEBOOK) for row in rows]


def held(office: Office) -> dict[int, str]:
    leases = office.archive.run("systems").leases().leases(office.clock())
    return {case: lease.reviewer for case, lease in leases.items()}


def options(browser: Browser) -> list[str | None]:
    return [attrs["value"] for _, attrs in browser.page.tags if attrs.get("name") == "choice"]


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


def test_the_queue_shows_who_is_at_which_case(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.get("/cases/2")
    ada.post("/cases/2/draft", justification="so")
    bo.get("/")
    assert "Ada is at it until 12:10 UTC" in bo.page.text and "your draft" not in bo.page.text
    ada.get("/")
    assert "you are at it until 12:10 UTC" in ada.page.text and "your draft" in ada.page.text


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


def test_a_case_that_is_settled_in_the_meantime_is_not_handed_out(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviews = office.reviews()
    ada, before = office.browser("Ada", reviews), reviews.queue()
    for case in (1, 4):
        ada.post(f"/cases/{case}/decide", **FILLED)
    monkeypatch.setattr(reviews, "queue", lambda: before)
    for _ in range(2):  # While they wait, and when they are settled.
        assert reviews.take_next("Bo") == 3
        assert reviews.take_next("Bo", "one-acceptable") is None
        office.judge()


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
    assert options(browser) == [first, second, "own"]
    assert "Sym Symbion only here" in shown and "PASS 90" in shown and "PASS 85" in shown
    assert "Prb Probion" in within["proposal"] and "FAIL 20" in within["proposal"]
    assert ("details", {"class": "proposal"}) in browser.page.tags
    browser.get("/cases/1")
    assert "adjudicator's proposal" not in browser.page.within["main"]


def test_answers_stand_in_the_order_drawn(office: Office) -> None:
    browser = office.browser("Ada")
    orders: set[tuple[str | None, ...]] = set()
    for number, case in enumerate(("pool", "valve/hybrid", "<b>bold</b>", "long", "code"), 1):
        browser.get(f"/cases/{number}")
        orders.add(tuple(options(browser)))
        assert tuple(options(browser)) == (*draw_order(5, case), "own")
    assert len(orders) == 2


def test_neither_models_nor_gold_are_named(office: Office) -> None:
    browser = office.browser("Ada")
    for number in range(1, 6):
        text = browser.get(f"/cases/{number}").text
        assert "quux" not in text and GOLD not in text


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


def test_a_long_line_is_shown_whole(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/4")
    assert LONG in browser.page.within["description"]


def test_source_code_is_coloured(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/5")
    (case,) = office.archive.run("systems").cases_at([5])
    assert browser.page.within["description"].strip() == case.case.description.strip()
    assert ("span", {"class": "k"}) in browser.page.tags
    assert browser.page.within["nf"].startswith("correlation")


@pytest.mark.parametrize("path", ["/cases/99", "/cases/0", "/cases/x", f"/cases/{2**64}", "/no"])
def test_what_is_not_there_is_told(office: Office, path: str) -> None:
    browser = office.browser("Ada")
    assert browser.get(path).status_code in (400, 404)
    assert "That did not work" in browser.page.text


# Drafts


def test_a_draft_is_there_again_on_every_device_of_its_reviewer(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/1")
    assert browser.page.choice is None
    browser.post("/cases/1/draft", choice="own", code="Evo/L", justification="a < b\r\n & \0")
    for one in (browser, office.browser("Ada")):
        one.get("/cases/1")
        assert one.page.choice == "own" and one.page.field("code")["value"] == "Evo/L"
        assert one.page.within["justification"] == "\na < b\n & \0"
    bo = office.browser("Bo")
    bo.get("/cases/1")
    assert bo.page.choice is None and bo.page.field("code")["value"] == ""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("Evo/Lrn", "Reads as"),
        ("OPT=Lrn+Evo; Human=low", "OPT=Lrn+Evo; Human=low"),
        ("Evo/Lern", "column 5: expected"),
        ("OPT=Evo; Rep", "column 13: expected"),
        ("<script>", "found '<'"),
        ("[" * 40 + "Evo", "more than 16 brackets"),
        ("x" * 5000, "at most 4,096 are read"),
        (" ", ""),
    ],
)
def test_a_code_is_read_while_it_is_typed(office: Office, code: str, says: str) -> None:
    browser = office.browser("Ada")
    browser.post("/cases/1/draft", choice="own", code=code)
    shown = browser.page.within["reading"]
    assert says in shown and bool(shown.strip()) == bool(says)
    assert "Draft saved." in browser.page.within["kept"]
    assert browser.page.count("script") == 0


def test_a_draft_that_comes_late_never_replaces_a_newer_one(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/1")
    of_page = {"page": browser.page.field("page")["value"], "choice": "A"}
    browser.post("/cases/1/draft", **of_page, edit="2", justification="It breeds.")
    browser.post("/cases/1/draft", **of_page, edit="1", justification="It br")
    browser.get("/cases/1")
    assert browser.page.within["justification"].strip() == "It breeds."
    # An emptied one neither.
    browser.post("/cases/1/draft", page="other", edit="2")
    browser.post("/cases/1/draft", page="other", edit="1", justification="It")
    browser.get("/cases/1")
    assert browser.page.within["justification"].strip() == ""


def test_a_tab_where_nothing_was_typed_since_only_keeps_the_case(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/1")
    browser.post("/cases/1/draft", choice="A", justification="on the phone")
    office.clock.pass_by(LEASE - timedelta(seconds=1))
    browser.post("/cases/1/draft", edit="0", choice="own", code="Evo/Lrn", justification="old")
    # How its own code reads is told, whatever the draft has.
    assert "Evo/Lrn" in browser.page.within["reading"]
    office.clock.pass_by(timedelta(seconds=1))
    assert held(office) == {1: "Ada"}
    browser.get("/cases/1")
    assert browser.page.within["justification"].strip() == "on the phone"
    browser.post("/cases/1/decide", edit="0", choice="own", code="Evo")
    assert browser.page.field("code")["value"] == "Evo"


# Leases


def test_a_case_is_on_one_desk_at_a_time(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.get("/cases/1")
    bo.get("/cases/1")
    assert "Ada works on this case" in bo.page.within["notice"]
    answer = bo.post("/cases/1/decide", **FILLED)
    assert answer.status_code == 409 and "Ada works on case pool now" in bo.page.within["notice"]
    assert held(office) == {1: "Ada"} and decisions(office) == []
    assert bo.page.choice == "A" and bo.page.within["justification"].strip() == "It breeds."
    ada.follow(ada.post("/cases/1/decide", **FILLED))
    office.judge()
    assert [one.reviewer for one in decisions(office)] == ["Ada"]
    answer = bo.post("/cases/1/decide", **FILLED)
    assert answer.status_code == 409
    assert "case pool does not wait any more" in bo.page.within["notice"]
    assert len(decisions(office)) == 1


def test_a_lease_that_ran_out_goes_to_who_asks_next(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.get("/cases/1")
    office.clock.pass_by(LEASE / 2)
    ada.post("/cases/1/draft", **FILLED)
    office.clock.pass_by(LEASE - timedelta(seconds=1))
    bo.get("/cases/1")
    assert held(office) == {1: "Ada"}
    office.clock.pass_by(timedelta(seconds=1))
    bo.get("/cases/1")
    assert held(office) == {1: "Bo"}
    answer = ada.post("/cases/1/decide", **FILLED)
    assert answer.status_code == 409
    assert "kept for 10 min after the last sign of a tab" in ada.page.within["notice"]
    ada.post("/cases/1/draft", **FILLED, code="Evo")
    assert "Bo works on this case until 12:25 UTC" in ada.page.within["kept"]
    bo.post("/cases/1/skip")
    ada.get("/cases/1")
    assert held(office)[1] == "Ada" and ada.page.field("code")["value"] == "Evo"
    assert ada.post("/cases/1/decide", **FILLED).status_code == 303


def test_skipping_gives_the_case_back_and_keeps_what_was_typed(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.get("/cases/1")
    answer = ada.post("/cases/1/skip", choice="B", justification="not sure")
    assert answer.headers["location"] == "/cases/2" and held(office) == {2: "Ada"}
    bo.get("/cases/1")
    assert held(office) == {1: "Bo", 2: "Ada"}
    ada.get("/cases/1")
    assert ada.page.choice == "B"


def test_an_open_tab_leaves_no_draft_where_nothing_is_typed(office: Office) -> None:
    browser = office.browser("Ada")
    browser.post("/cases/1/draft")
    browser.get("/")
    assert "you are at it" in browser.page.text and "your draft" not in browser.page.text
    browser.post("/cases/1/draft", justification="so")
    browser.post("/cases/1/draft", justification="")
    browser.get("/")
    assert "your draft" not in browser.page.text


# Decisions


def test_a_decision_waits_is_confirmed_and_archived(office: Office) -> None:
    browser = office.browser("Ada")
    browser.get("/cases/1")
    answer = browser.post("/cases/1/decide", **FILLED)
    assert answer.headers["location"] == "/cases/2?done=1" and decisions(office) == []
    browser.follow(answer)
    assert f"pool waits for the evaluator: {EVO}" in browser.page.within["sent"]
    office.judge()
    (made,) = decisions(office)
    assert (made.case, made.action, made.choice, made.reviewer) == ("pool", "decide", "A", "Ada")
    assert made.classification is not None and str(made.classification.label) == EVO
    assert made.justification == "It breeds." and made.decided == NOON
    assert made.confirmation is not None and made.confirmation.score == 90
    assert made.confirmation.acceptable and made.confirmation.calls[0].stage == "confirm"
    (case,) = office.archive.run("systems").cases_at([1])
    assert (case.status, str(current_label(case, CODEBOOK))) == ("accepted", EVO)
    assert held(office) == {2: "Ada"}
    browser.follow(answer)
    assert f"pool is settled: {EVO}, confirmed" in browser.page.within["sent"]


def test_a_decision_that_waits_is_shown_wherever_its_reviewer_looks(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", **FILLED)
    for path in ("/", "/cases/2", "/decided", "/sent"):
        ada.get(path)
        assert "pool waits for the evaluator" in " ".join(ada.page.text.split())
        (poll,) = [attrs for _, attrs in ada.page.tags if attrs.get("data-poll")]
        assert ada.get(poll["data-poll"] or "").status_code == 200 and poll["data-cases"] == "1"
    ada.get("/")
    assert "4 cases wait for a person." in ada.page.text
    ada.get("/cases/1")
    assert "Your decision waits for the evaluator" in ada.page.text
    assert ada.page.count("textarea") == 0 and "It breeds." in ada.page.text
    bo.get("/cases/1")
    assert "Ada's decision waits for the evaluator" in bo.page.text
    assert "Cancel" not in bo.page.text and bo.page.count("textarea") == 0
    bo.get("/")
    assert bo.page.within["sent"].strip() == ""
    assert bo.get("/next").headers["location"] == "/cases/3"
    office.judge()
    for path in ("/", "/cases/2", "/decided", "/sent"):
        ada.get(path)
        assert not [attrs for _, attrs in ada.page.tags if attrs.get("data-poll")]


def test_few_of_many_decisions_are_shown_beside_a_case(office: Office) -> None:
    browser = office.browser("Ada")
    for case in (1, 2, 3, 4):
        browser.post(f"/cases/{case}/decide", choice="own", code="Evo", justification="so")
    browser.get("/cases/5")
    assert browser.page.within["sent"].count("waits for the evaluator") == 3
    assert "1 more wait for the evaluator or came back" in browser.page.text
    browser.get("/decided")
    assert browser.page.within["sent"].count("waits for the evaluator") == 4


def test_a_decision_can_be_cancelled_until_it_is_judged(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", **FILLED)
    assert bo.post("/cases/1/cancel").status_code == 409
    answer = ada.post("/cases/1/cancel")
    assert answer.headers["location"] == "/cases/1"
    ada.follow(answer)
    assert ada.page.choice == "A" and ada.page.within["justification"].strip() == "It breeds."
    office.judge()
    assert decisions(office) == [] and held(office) == {1: "Ada", 2: "Ada"}
    ada.post("/cases/1/decide", **FILLED)
    office.judge()
    assert ada.post("/cases/1/cancel").status_code == 409
    assert "no decision of Ada on case 1 waits any more" in ada.page.text
    assert len(decisions(office)) == 1


def test_the_filter_stays_on_the_way(office: Office) -> None:
    browser = office.browser("Ada")
    answer = browser.post("/cases/1/decide", kind="one-acceptable", **FILLED)
    assert answer.headers["location"] == "/cases/4?kind=one-acceptable&done=1"
    answer = browser.post("/cases/4/decide", kind="one-acceptable", **FILLED)
    assert answer.headers["location"] == "/decided?kind=one-acceptable"
    assert browser.get("/next?kind=one-acceptable").headers["location"] == "/?kind=one-acceptable"
    assert browser.post("/cases/2/skip", kind="a b").status_code == 400


def test_a_code_of_ones_own_is_settled_like_the_others(office: Office) -> None:
    browser = office.browser("Ada")
    answer = browser.post(
        "/cases/2/decide", choice="own", code=" OPT=Ctl; Human=low ", justification="A\0B"
    )
    assert answer.status_code == 303
    office.judge()
    (made,) = decisions(office)
    assert made.choice == "own" and made.justification == "A\ufffdB"
    assert made.classification is not None
    assert str(made.classification.label) == "OPT=Ctl; Human=low"


INCOMPLETE: list[tuple[dict[str, Any], str, str]] = [
    ({"justification": "so"}, "choice", "Choose A or B"),
    ({"choice": "C", "justification": "so"}, "choice", "Choose A or B"),
    ({"choice": "A", "justification": " \n"}, "justification", "Say why"),
    ({"choice": "A", "justification": "x" * 10_001}, "justification", "10,001 characters"),
    ({"choice": "own", "code": "Evo/Lern", "justification": "so"}, "code", "column 5"),
    ({"choice": "own", "justification": "so"}, "code", "column 1"),
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
    assert decisions(office) == [] and held(office) == {1: "Ada"}


def test_a_code_that_the_evaluator_refuses_comes_back(office: Office) -> None:
    browser = office.browser("Ada")
    answer = browser.post("/cases/1/decide", choice="B", justification="It searches.")
    browser.follow(answer)
    office.judge()
    for path in ("/", "/cases/2?done=1", "/decided"):
        browser.get(path)
        told = " ".join(browser.page.within["sent"].split())
        assert "pool came back: the evaluator refuses OPT=Sch" in told and "FAIL 40" in told
    browser.get("/cases/1")
    told = browser.page.within["decisions"]
    assert "Ada" in told and "OPT=Sch" in told and "FAIL 40" in told
    assert "The evaluator refuses this code, so the case stays open." in told
    assert browser.page.choice == "B" and held(office) == {1: "Ada", 2: "Ada"}
    assert browser.post("/cases/1/decide", **FILLED).status_code == 303
    browser.get("/")
    assert "came back" not in browser.page.text
    office.judge()
    assert [one.choice for one in decisions(office)] == ["B", "A"]
    assert office.archive.run("systems").waiting() == [2, 3, 4, 5]
    browser.get("/")
    assert "came back" not in browser.page.text


def test_a_refused_case_that_its_reviewer_leaves_is_open_to_all(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", choice="B", justification="It searches.")
    office.judge()
    bo.get("/cases/1")
    assert "Ada works on this case" in bo.page.text
    office.clock.pass_by(LEASE)
    assert bo.post("/cases/1/decide", **FILLED).status_code == 303
    office.judge()
    ada.get("/")
    assert "came back" not in ada.page.text
    assert [one.reviewer for one in decisions(office)] == ["Ada", "Bo"]


def test_a_decision_waits_for_an_evaluator_that_is_away(
    office: Office, unreached: AnnotateConfig
) -> None:
    browser = office.browser("Ada")
    assert browser.post("/cases/1/decide", **FILLED).status_code == 303
    office.judge(unreached)
    browser.get("/decided")
    told = " ".join(browser.page.within["sent"].split())
    assert "pool waits for the evaluator" in told and "Not judged yet: " in told
    assert "127.0.0.1:9" in told and "The evaluator is asked again at 12:00 UTC." in told
    pending = office.archive.run("systems").pending()
    for tries in range(1, 11):
        (waits,) = pending.all()
        assert waits.tries == tries
        office.judge(unreached)  # It is not due yet.
        assert pending.all() == [waits]
        # After 2 s, 4 s, and so on, at last after five minutes.
        pause = timedelta(seconds=min(2**tries, 300))
        office.clock.pass_by(pause)
        assert waits.due == office.clock()
        if tries < 10:
            office.judge(unreached)
    assert decisions(office) == []
    office.judge()
    assert [one.case for one in decisions(office)] == ["pool"] and pending.all() == []


def test_a_decision_that_is_sent_twice_is_one(office: Office) -> None:
    browser = office.browser("Ada")
    for _ in range(3):
        answer = browser.post("/cases/1/decide", **FILLED)
        assert answer.headers["location"] == "/cases/2?done=1"
    assert len(office.archive.run("systems").pending().all()) == 1
    answer = browser.post("/cases/1/decide", choice="B", justification="It searches.")
    assert answer.status_code == 409
    assert "a decision of Ada on case pool waits for the evaluator" in browser.page.text
    office.judge()
    assert browser.post("/cases/1/decide", **FILLED).status_code == 409
    assert len(decisions(office)) == 1


def test_a_case_that_no_person_was_asked_about_is_shown_and_left_alone(office: Office) -> None:
    browser = office.browser("Ada")
    assert browser.get("/cases/6").status_code == 200
    assert "Settled as OPT=Lrn" in browser.page.text and "Send" not in browser.page.text
    assert browser.post("/cases/6/decide", **FILLED).status_code == 409
    assert browser.post("/cases/6/undo").status_code == 409
    assert decisions(office) == [] and held(office) == {}


# Undo


def test_undo_writes_a_record_and_opens_the_case_again(office: Office) -> None:
    browser = office.browser("Ada")
    browser.post("/cases/1/decide", **FILLED)
    office.judge()
    browser.get("/decided")
    assert "pool" in browser.page.text and "Undo" in browser.page.text
    answer = browser.post("/cases/1/undo")
    assert answer.headers["location"] == "/cases/1"
    browser.follow(answer)
    assert browser.page.choice == "A"
    assert browser.page.within["justification"].strip() == "It breeds."
    assert "took the decision back" in browser.page.within["decisions"]
    assert [one.action for one in decisions(office)] == ["decide", "undo"]
    assert 1 in office.archive.run("systems").waiting()
    browser.get("/decided")
    assert "taken back" in browser.page.text and "Undo" not in browser.page.text
    browser.post("/cases/1/decide", choice="A", justification="It does breed.")
    office.judge()
    assert [one.action for one in decisions(office)] == ["decide", "undo", "decide"]


def test_only_ones_own_decision_that_stands_can_be_undone(office: Office) -> None:
    ada, bo = office.browser("Ada"), office.browser("Bo")
    ada.post("/cases/1/decide", **FILLED)
    office.judge()
    bo.get("/cases/1")
    assert f"Settled as {EVO} by Ada." in bo.page.text and "Undo" not in bo.page.text
    assert bo.post("/cases/1/undo").status_code == 409
    assert ada.post("/cases/2/undo").status_code == 409
    assert ada.post("/cases/99/undo").status_code == 404
    ada.post("/cases/2/decide", choice="A", justification="so")
    office.judge()
    assert office.archive.run("systems").cases_at([2])[0].status == HUMAN
    assert ada.post("/cases/2/undo").status_code == 409
    assert ada.post("/cases/1/undo").status_code == 303
    assert ada.post("/cases/1/undo").status_code == 409
    assert [one.action for one in decisions(office)] == ["decide", "decide", "undo"]


def test_when_all_is_settled_the_page_says_so(office: Office) -> None:
    browser = office.browser("Ada")
    codes = {1: "Evo", 2: "Ctl", 3: "Sym", 4: "Evo", 5: "Ctl"}
    places = [
        browser.post(f"/cases/{case}/decide", choice="own", code=code, justification="so").headers[
            "location"
        ]
        for case, code in codes.items()
    ]
    assert places[0] == "/cases/2?done=1" and places[-1] == "/decided"
    office.judge()
    browser.get("/")
    assert "No case waits for a person." in browser.page.text
    assert browser.get("/next").headers["location"] == "/"
    assert len(decisions(office)) == 5
