"""Cases in a file for people to fill in, and their decisions back."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from raylab.annotation.exchange import Import, ReviewRow, import_rows, write_rows
from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import HumanDecision, read_decision
from raylab.annotation.protocol import draw_order
from raylab.annotation.reviews import Reviews, Typed, draw_audit
from raylab.archive.records import AUDIT, DECISION
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.errors import DataError, RunError
from raylab.opt.code import parse
from tests.annotation import chats
from tests.annotation.chats import BAD, CASE, DISPUTED, FIELDS
from tests.annotation.outcomes import CODEBOOK

JUNK = "I would rather not say."
FILLED = {"decision": "A", "justification": "the loop is closed", "reviewer": "Ada"}
SCRIPTS: dict[str, chats.Script] = {
    **{f"case-{number}": {**DISPUTED, "evaluate-b": BAD} for number in range(4)},
    "unparsed": {**DISPUTED, "classify-b": JUNK, "classify-b-repair": JUNK},
    "unconfirmed": {**DISPUTED, "confirm": BAD},
    "accepted": chats.AGREED,
}


ROWS = [
    chats.row_of(Case(name, CASE.description, "Swm/Sym", parse("Swm/Sym")), script)
    for name, script in SCRIPTS.items()
]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunArchive]:
    """A run whose cases wait for a person, but for the last."""
    with Archive.open(tmp_path / "archive.db") as archive:
        archived = archive.start_run("r", {}, {})
        archived.add_cases(ROWS)
        yield archived


@pytest.fixture
def reviews(run: RunArchive) -> Reviews:
    return Reviews(run, CODEBOOK, 307, timedelta(minutes=10))


def file_of(path: Path, *rows: object) -> Path:
    """A review file of rows; text stands as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    file = path / "review.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def exported(path: Path, reviews: Reviews, kind: str = "") -> dict[str, dict[str, Any]]:
    file = path / "review.jsonl"
    file.unlink(missing_ok=True)
    written = write_rows(file, reviews, kind)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == written
    return {row["case"]: row for row in rows}


def decisions(run: RunArchive, kind: str = DECISION) -> list[HumanDecision]:
    rows = [row for row in run.decisions(kind=kind) if row.action != "draw"]
    return [read_decision(row.body, CODEBOOK) for row in rows]


def test_a_row_shows_what_a_person_needs(tmp_path: Path, reviews: Reviews) -> None:
    rows = exported(tmp_path, reviews)
    assert rows.keys() == SCRIPTS.keys() - {"accepted"}
    row = rows["unconfirmed"]
    assert tuple(row) == tuple(ReviewRow.model_fields)
    assert (row["queue"], row["description"]) == ("decision", CASE.description)
    assert row["reason"] == "the adjudicated code is not acceptable: FAIL 40"
    by_name = {candidate["name"]: candidate for candidate in row["candidates"]}
    assert by_name["A"]["code"] == f"OPT=Ctl{FIELDS}" and by_name["B"]["rationale"] == "it adapts"
    assert by_name["B"]["report"] == {
        "verdict": "WEAK_PASS",
        "score": 75,
        "issues": [],
        "summary": "so it seems",
        "contradictory": False,
        "caps": [],
    }
    assert row["adjudicated"]["code"] == f"OPT=Lrn+Ctl{FIELDS}"
    assert row["adjudicated"]["report"]["score"] == 40
    unparsed = {answer["name"]: answer for answer in rows["unparsed"]["candidates"]}
    assert unparsed["B"]["code"] is None and unparsed["B"]["problem"]
    assert rows["unparsed"]["adjudicated"] is None
    orders = {name: tuple(one["name"] for one in row["candidates"]) for name, row in rows.items()}
    assert orders == {name: draw_order(307, name, "AB") for name in rows}
    for word in ("alpha", "beta", "gamma", "delta", "model-1", "Swm/Sym"):
        assert word not in json.dumps(rows)
    # Whoever filled the file in loses nothing.
    with pytest.raises(RunError, match="exists: archive the decisions in it by import="):
        write_rows(tmp_path / "review.jsonl", reviews)
    with pytest.raises(RunError, match="cannot be written"):
        write_rows(tmp_path / "gone" / "review.jsonl", reviews)


def test_decisions_come_back(tmp_path: Path, run: RunArchive, reviews: Reviews) -> None:
    rows = exported(tmp_path, reviews)
    filled = {
        "case-0": {},
        "case-1": {"decision": "B", "reviewer": ""},
        "case-2": {"decision": " Evo/Lrn "},
        "case-3": {"decision": "OPT=Sch+Lrn; Human=low", "insist": True},
        "unparsed": {"decision": "unclear"},
    }
    short = ["", {"case": "case-2", "decision": None}, rows["unconfirmed"] | {"reviewer": "Ada"}]
    decided = [rows[name] | FILLED | more for name, more in filled.items()]
    file = file_of(tmp_path, *short, *decided)
    assert import_rows(file, reviews, "Bo") == Import(5, 5, 3, ())
    made = decisions(run)
    said = [(one.case, one.choice, one.insisted, one.reviewer) for one in made]
    assert said == [
        ("case-0", "A", False, "Ada"),
        ("case-1", "B", False, "Bo"),
        ("case-2", "own", False, "Ada"),
        ("case-3", "own", True, "Ada"),
        ("unparsed", "unclear", False, "Ada"),
    ]
    assert [str(one.label) for one in made if one.label] == [
        f"OPT=Ctl{FIELDS}",
        f"OPT=Lrn{FIELDS}",
        "OPT=Evo/Lrn",
        "OPT=Lrn+Sch; Human=low",
    ]
    assert {one.justification for one in made} == {"the loop is closed"}
    assert run.counts(now=True) == {"unconfirmed": 3, "accepted": 2, "unclear": 1, "human": 1}
    # A file that is imported again says nothing new.
    assert import_rows(file, reviews, "Bo") == Import(5, 0, 0, ())
    assert exported(tmp_path, reviews).keys() == {"unconfirmed"}


def test_a_decision_is_corrected_and_taken_back_by_its_reviewer_alone(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    def imported(**filled: str) -> Import:
        return import_rows(file_of(tmp_path, {"case": "case-0", **FILLED, **filled}), reviews)

    reviews.submit(1, "Ada", Typed(choice="A", justification="on the page"))
    left_out = imported(decision="B", reviewer="Bo")
    assert (left_out.new, left_out.left_out) == (0, ("case case-0 is decided by Ada",))
    for decision, reviewer in (("B", "Ada"), ("Undo", "Ada"), ("B", "Bo")):
        assert imported(decision=decision, reviewer=reviewer).new == 1
    said = [(one.choice, one.reviewer) for one in decisions(run)]
    assert said == [("A", "Ada"), ("B", "Ada"), (None, "Ada"), ("B", "Bo")]
    assert [row.action for row in run.decisions()] == ["decide", "decide", "undo", "decide"]


PROBLEMS: list[tuple[object, str]] = [
    ({"case": "other", **FILLED}, "run r has no case 'other'"),
    ({**FILLED}, "case"),
    ({"case": "case-0", **FILLED, "justification": " "}, "case case-0: Say why"),
    ({"case": "case-0", "decision": "A", "justification": "so"}, "name has 1 to 60 letters"),
    ({"case": "case-0", "justification": "so"}, "has a justification and no decision"),
    ({"case": "case-0", **FILLED, "decision": "C"}, "'C' is none of A, B, unclear, undo"),
    ({"case": "case-0", **FILLED, "decision": "The answer is OPT=Evo"}, "is none of A, B"),
    ({"case": "case-0", **FILLED, "insist": "perhaps"}, "insist"),
    ({"case": "case-0", **FILLED, "decison": "A"}, "decision"),
    ({"case": "case-0", **FILLED, "description": "another"}, "is not the one that was classified"),
    ({"case": "accepted", **FILLED}, "case accepted is accepted, no person was asked"),
    ({"case": "unparsed", **FILLED, "decision": "B"}, "B has no code"),
    ({"case": "case-1", **FILLED}, "in an earlier row already"),
    ("{", "the row: not valid JSON"),
    ("3", "leave the rows as they were exported"),
]


def test_rows_that_cannot_be_used_are_named_and_none_is_taken(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    file = file_of(tmp_path, {"case": "case-1", **FILLED}, "", *(row for row, _ in PROBLEMS))
    with pytest.raises(DataError, match="so none was imported; mend them") as caught:
        import_rows(file, reviews)
    _, *told = str(caught.value).split(f"\n  {file}:")
    for line, text, (_, problem) in zip(range(3, 3 + len(PROBLEMS)), told, PROBLEMS, strict=True):
        assert text.startswith(f"{line}: ") and problem in text
    assert decisions(run) == []
    with pytest.raises(DataError, match=r"and 10 rows more"):
        import_rows(file_of(tmp_path, *["{"] * 60), reviews)
    with pytest.raises(DataError, match=r"gone\.jsonl cannot be read.*export="):
        import_rows(tmp_path / "gone.jsonl", reviews)
    # An editor may leave its marks.
    file.write_text(json.dumps({"case": "case-0", **FILLED}) + "\r\n", encoding="utf-8-sig")
    assert import_rows(file, reviews).new == 1


def test_drawn_cases_go_out_blind_and_come_back_as_codes(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    draw_audit(run, 1.0, seed=5)
    (row,) = exported(tmp_path, reviews, AUDIT).values()
    assert (row["case"], row["queue"]) == ("accepted", "audit")
    assert row["description"] == CASE.description and "Ctl" not in json.dumps(row)
    assert (row["reason"], row["candidates"], row["adjudicated"]) == (None, [], None)
    file = file_of(tmp_path, row | {"decision": "A", "reviewer": "Ada"})
    with pytest.raises(DataError, match="'A' is none of"):
        import_rows(file, reviews)
    file = file_of(tmp_path, row | {"decision": "Evo", "reviewer": "Ada", "insist": True})
    assert import_rows(file, reviews) == Import(1, 1, 0, ())
    assert import_rows(file, reviews) == Import(1, 0, 0, ())
    (made,) = decisions(run, AUDIT)
    assert str(made.label) == "OPT=Evo"
    assert (made.insisted, decisions(run), run.counts(now=True)["accepted"]) == (False, [], 1)
    assert exported(tmp_path, reviews, AUDIT) == {}
