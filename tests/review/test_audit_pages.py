"""The audit on the page: a drawn case is coded unseen, and the report is corrected by the code."""

import json
from pathlib import Path

import pytest

from raylab.annotation.human.audit_sample import draw_audit
from raylab.report.annotation_run import conclude
from raylab.runs.run import Run
from tests.review.office import LEASE, Office


@pytest.fixture
def drawn(office: Office) -> Office:
    """The office with its one decided case, 6, drawn."""
    assert draw_audit(office.archive.run("systems"), 1.0, seed=5) == 1
    return office


def test_nothing_is_drawn_until_somebody_asks(office: Office):
    ada = office.browser("Ada")
    assert ada.get("/audit").status_code == 200 and "No audit is drawn" in ada.page.text
    assert ada.get("/audit/6").status_code == 404
    assert ada.follow(ada.get("/audit/next")).status_code == 200


def test_a_drawn_case_is_coded_unseen_and_corrects_the_report(drawn: Office):
    ada = drawn.browser("Ada")
    ada.get("/audit")
    assert "0 of 1 drawn cases" in ada.page.text
    assert ada.follow(ada.get("/audit/next")).status_code == 200
    assert "A model is fitted" in ada.page.within["description"]
    assert not {"verdict", "answers", "report", "proposal", "rationale"} & ada.page.within.keys()
    assert not any(word in ada.page.text for word in ("PASS", " 92", "quux", "OPT=Lrn"))
    # The page of open cases, which shows codes, sends them here.
    assert ada.get("/cases/6").headers["location"] == "/audit/6"
    assert ada.post("/cases/6/decide", choice="A", justification="x").status_code == 303
    answer = ada.post("/audit/6/draft", code="Evo", page="p", edit="1")
    assert answer.status_code == 200 and "Reads as" in ada.page.text
    ada.get("/audit/6")
    assert ada.page.field("code")["value"] == "Evo"
    assert ada.post("/audit/6/code", code="Foo").status_code == 422
    done = ada.post("/audit/6/code", code="Evo", justification="It breeds.")
    assert done.headers["location"] == "/audit"
    # The same form sent twice.
    assert ada.post("/audit/6/code", code="Evo", justification="It breeds.").status_code == 303
    entries = list(drawn.archive.run("systems").audit().entries())
    assert [(one.action, one.reviewer) for one in entries] == [("draw", ""), ("code", "Ada")]
    assert entries[1].body["code"].startswith("OPT=Evo")
    run = Run.at(f"{drawn.config.storage}/systems")
    conclude(drawn.config, run, drawn.archive)
    report = json.loads(Path(run.path, "report.json").read_text())["audit"]
    assert (report["drawn"], report["audited"], report["right"]["value"]) == (1, 1, 0.0)


def test_a_code_is_taken_back_by_its_reviewer_alone(drawn: Office):
    ada, bo = drawn.browser("Ada"), drawn.browser("Bo")
    ada.get("/audit/6")
    ada.post("/audit/6/code", code="Evo")
    bo.get("/audit/6")
    assert "OPT=Evo" in bo.page.text and "Undo" not in bo.page.text
    assert bo.post("/audit/6/undo").status_code == 409
    assert bo.post("/audit/6/code", code="Lrn").status_code == 409
    ada.get("/audit")
    assert "Undo" in ada.page.text
    assert ada.post("/audit/6/undo").headers["location"] == "/audit/6"
    # What Bo had typed was kept.
    bo.follow(bo.get("/audit/next"))
    assert bo.page.field("code")["value"] == "Lrn"


def test_a_drawn_case_is_one_reviewers_at_a_time(drawn: Office):
    ada, bo = drawn.browser("Ada"), drawn.browser("Bo")
    ada.get("/audit/6")
    bo.get("/audit/6")
    assert "Ada works on this case" in bo.page.text
    assert bo.post("/audit/6/code", code="Evo").status_code == 409
    assert bo.get("/audit/next").headers["location"] == "/audit"
    drawn.clock.pass_by(LEASE)
    bo.get("/audit/6")
    assert ada.post("/audit/6/code", code="Evo").status_code == 409
    assert bo.post("/audit/6/skip", code="Evo").status_code == 303
    assert ada.get("/audit/next").headers["location"] == "/audit/6"


def test_forms_need_a_session_and_their_token(drawn: Office):
    stranger, ada = drawn.browser(), drawn.browser("Ada")
    stranger.get("/audit/6")
    assert "Sign in" in stranger.page.text and "A model is fitted" not in stranger.page.text
    assert stranger.post("/audit/6/code", code="Evo").status_code == 401
    for action in ("draft", "skip", "code", "undo"):
        assert ada.post(f"/audit/6/{action}", csrf="forged", code="Evo").status_code == 403
    assert len(list(drawn.archive.run("systems").audit().entries())) == 1
