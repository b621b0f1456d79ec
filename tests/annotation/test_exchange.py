"""Cases in a file for people to fill in, and their decisions back."""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raylab.annotation.exchange import Import, ReviewRow, import_rows, write_rows
from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import HumanDecision, Outcome, read_decision
from raylab.annotation.protocol import annotate, draw_order
from raylab.annotation.reviews import Reviews, Typed, draw_audit
from raylab.annotation.worker import case_row
from raylab.archive.records import AUDIT, DECISION
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.errors import DataError, RunError
from raylab.opt.code import parse
from tests.annotation.chats import (
    AGREED,
    BAD,
    CASE,
    DISPUTED,
    FIELDS,
    Script,
    ScriptedChat,
    settings_of,
)
from tests.annotation.outcomes import CODEBOOK

JUNK = "I would rather not say."
FILLED = {"decision": "A", "justification": "the loop is closed", "reviewer": "Ada"}
SCRIPTS: dict[str, Script] = {
    **{f"case-{number}": {**DISPUTED, "evaluate-b": BAD} for number in range(4)},
    "unparsed": {**DISPUTED, "classify-b": JUNK, "classify-b-repair": JUNK},
    "unconfirmed": {**DISPUTED, "confirm": BAD},
    "accepted": AGREED,
}


def outcome_of(name: str, script: Script) -> tuple[Case, Outcome]:
    case = Case(name, CASE.description, gold="Swm/Sym", gold_label=parse("Swm/Sym"))
    return case, asyncio.run(annotate(case, ScriptedChat(script), settings_of()))


ROWS = [case_row(*outcome_of(name, script)) for name, script in SCRIPTS.items()]


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
    rows = (
        [json.loads(line) for line in file.read_text().splitlines()]
        if write_rows(file, reviews, kind)
        else []
    )
    return {row["case"]: row for row in rows}


def decisions(run: RunArchive, kind: str = DECISION) -> list[HumanDecision]:
    rows = [row for row in run.decisions(kind=kind) if row.action != "draw"]
    return [read_decision(row.body, CODEBOOK) for row in rows]


# The rows


def test_a_row_shows_what_a_person_needs(tmp_path: Path, run: RunArchive, reviews: Reviews) -> None:
    rows = exported(tmp_path, reviews)
    assert rows.keys() == SCRIPTS.keys() - {"accepted"}
    row = rows["unconfirmed"]
    assert tuple(row) == tuple(ReviewRow.model_fields)
    assert (row["queue"], row["description"]) == ("decision", CASE.description)
    assert row["reason"] == "the adjudicated code is not acceptable: FAIL 40"
    by_name = {candidate["name"]: candidate for candidate in row["candidates"]}
    assert by_name["A"]["opt"] == f"OPT=Ctl{FIELDS}" and by_name["B"]["rationale"] == "it adapts"
    assert by_name["B"]["report"] == {
        "verdict": "WEAK_PASS",
        "score": 75,
        "issues": [],
        "summary": "so it seems",
        "contradictory": False,
        "caps": [],
    }
    assert row["adjudicated"]["opt"] == f"OPT=Lrn+Ctl{FIELDS}"
    assert row["adjudicated"]["report"]["score"] == 40
    unparsed = {one["name"]: one for one in rows["unparsed"]["candidates"]}
    assert unparsed["B"]["opt"] is None and unparsed["B"]["problem"]
    assert rows["unparsed"]["adjudicated"] is None


def test_answers_stand_in_the_order_drawn_without_models_or_gold(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    orders: set[tuple[str, ...]] = set()
    for name, row in exported(tmp_path, reviews).items():
        order = tuple(candidate["name"] for candidate in row["candidates"])
        assert order == draw_order(307, name)
        orders.add(order)
        for word in ("alpha", "beta", "gamma", "delta", "model-1", "Swm/Sym"):
            assert word not in json.dumps(row)
    assert len(orders) == 2


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path, reviews: Reviews) -> None:
    file = file_of(tmp_path, {"case": "case-0", **FILLED})
    with pytest.raises(RunError, match="exists: archive the decisions in it by import="):
        write_rows(file, reviews)
    with pytest.raises(RunError, match="cannot be written"):
        write_rows(tmp_path / "gone" / "review.jsonl", reviews)


# Decisions


def test_decisions_come_back(tmp_path: Path, run: RunArchive, reviews: Reviews) -> None:
    rows = exported(tmp_path, reviews)
    filled = {
        "case-0": {},
        "case-1": {"decision": "B"},
        "case-2": {"decision": " Evo/Lrn "},
        "case-3": {"decision": "OPT=Sch+Lrn; Human=low", "insist": True},
        "unparsed": {"decision": "unclear"},
    }
    file = file_of(tmp_path, *(rows[name] | FILLED | more for name, more in filled.items()))
    assert import_rows(file, reviews) == Import(5, 5, 3, ())
    made = decisions(run)
    assert [(one.case, one.choice, one.insisted) for one in made] == [
        ("case-0", "A", False),
        ("case-1", "B", False),
        ("case-2", "own", False),
        ("case-3", "own", True),
        ("unparsed", "unclear", False),
    ]
    assert [str(one.classification.label) for one in made if one.classification] == [
        f"OPT=Ctl{FIELDS}",
        f"OPT=Lrn{FIELDS}",
        "OPT=Evo/Lrn",
        "OPT=Lrn+Sch; Human=low",
    ]
    for one in made:
        assert one.action == "decide" and one.confirmation is None and one.reviewer == "Ada"
        assert one.justification == "the loop is closed" and one.decided.tzinfo is not None
    assert run.counts(now=True) == {"unconfirmed": 3, "accepted": 2, "unclear": 1, "human": 1}
    # A file that is imported again says nothing new.
    assert import_rows(file, reviews) == Import(5, 0, 0, ())
    assert exported(tmp_path, reviews).keys() == {"unconfirmed"}


def test_rows_left_open_stay_open_and_short_ones_are_enough(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    rows = exported(tmp_path, reviews)
    file = file_of(
        tmp_path,
        rows["case-0"],
        "",
        rows["case-1"] | {"reviewer": "Ada"},
        {"case": "case-2", "decision": None},
        {"case": "case-3", **FILLED, "reviewer": ""},
    )
    assert import_rows(file, reviews, "Bo") == Import(1, 1, 1, ())
    assert [(one.case, one.reviewer) for one in decisions(run)] == [("case-3", "Bo")]


def test_a_decision_is_corrected_and_taken_back_by_its_reviewer_alone(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    def imported(**filled: str) -> Import:
        return import_rows(file_of(tmp_path, {"case": "case-0", **FILLED, **filled}), reviews)

    assert imported().new == 1
    left_out = imported(decision="B", reviewer="Bo")
    assert (left_out.new, left_out.left_out) == (0, ("case case-0 is decided by Ada",))
    assert imported(decision="B").new == 1
    assert imported(decision="Undo").new == 1
    assert imported(decision="B", reviewer="Bo").new == 1
    said = [(one.action, one.choice, one.reviewer) for one in decisions(run)]
    assert said == [
        ("decide", "A", "Ada"),
        ("decide", "B", "Ada"),
        ("undo", None, "Ada"),
        ("decide", "B", "Bo"),
    ]


def test_a_decision_on_the_page_stands_against_that_of_a_file(
    tmp_path: Path, run: RunArchive, reviews: Reviews
) -> None:
    reviews.submit(1, "Bo", Typed(choice="B", justification="so"))
    file = file_of(tmp_path, {"case": "case-0", **FILLED}, {"case": "case-1", **FILLED})
    done = import_rows(file, reviews)
    assert (done.read, done.new) == (2, 1)
    assert done.left_out == ("case case-0 is decided by Bo",)


PROBLEMS: list[tuple[object, str]] = [
    ({"case": "other", **FILLED}, "run r has no case 'other'"),
    ({**FILLED}, "case"),
    ({"case": 7, **FILLED}, "case"),
    ({"case": "case-0", **FILLED, "justification": " "}, "case case-0: Say why"),
    ({"case": "case-0", "decision": "A", "justification": "so"}, "name has 1 to 60 letters"),
    ({"case": "case-0", "justification": "so"}, "has a justification and no decision"),
    ({"case": "case-0", **FILLED, "decision": "C"}, "'C' is none of a, b, unclear, undo"),
    ({"case": "case-0", **FILLED, "decision": "Evo/Lern"}, "Lern"),
    ({"case": "case-0", **FILLED, "decision": "The answer is OPT=Evo"}, "is none of a, b"),
    ({"case": "case-0", **FILLED, "decision": ["A"]}, "decision"),
    ({"case": "case-0", **FILLED, "reviewer": "A\0"}, "name has 1 to 60 letters"),
    ({"case": "case-0", **FILLED, "insist": "perhaps"}, "insist"),
    ({"case": "case-0", **FILLED, "decison": "A"}, "decision"),
    ({"case": "case-0", **FILLED, "description": "another"}, "is not the one that was classified"),
    ({"case": "accepted", **FILLED}, "case accepted is accepted, no person was asked"),
    ({"case": "unparsed", **FILLED, "decision": "B"}, "B has no code"),
    ({"case": "case-1", **FILLED}, "in an earlier row already"),
    ("{", "the row: not valid JSON"),
    ("[" * 100_000, "maximum recursion depth"),
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


def test_a_file_that_cannot_be_read(tmp_path: Path, reviews: Reviews) -> None:
    with pytest.raises(DataError, match=r"review\.jsonl cannot be read.*export="):
        import_rows(tmp_path / "review.jsonl", reviews)


def test_the_byte_order_mark_of_an_editor_is_passed_over(tmp_path: Path, reviews: Reviews) -> None:
    file = tmp_path / "review.jsonl"
    file.write_text(json.dumps({"case": "case-0", **FILLED}) + "\r\n", encoding="utf-8-sig")
    assert import_rows(file, reviews).new == 1


@given(
    decision=st.text(max_size=30) | st.sampled_from(["A", "B", "undo", "unclear", "OPT=Evo"]),
    justification=st.text(max_size=5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_anything_filled_in_is_a_decision_or_a_problem(
    tmp_path: Path, run: RunArchive, reviews: Reviews, decision: str, justification: str
) -> None:
    row = {"case": "case-0", "decision": decision, "justification": justification}
    file = file_of(tmp_path, row)
    try:
        read = import_rows(file, reviews, "Ada").read
    except DataError as error:
        assert f"{file}:1: " in str(error)
    else:
        assert read == bool(decision.strip() or justification.strip())


# The audit


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
    assert [import_rows(file, reviews).new for _ in range(2)] == [1, 0]
    (made,) = decisions(run, AUDIT)
    assert made.classification is not None and str(made.classification.label) == "OPT=Evo"
    assert (made.insisted, decisions(run), run.counts(now=True)["accepted"]) == (False, [], 1)
    assert exported(tmp_path, reviews, AUDIT) == {}
