import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.annotation.human.review_file import KEYS, read_decisions, review_rows
from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import HumanDecision, Outcome, Status, read_decision
from raylab.annotation.protocol import annotate
from raylab.annotation.stages import draw_order
from raylab.errors import DataError
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


def outcome_of(script: Script, case: Case = CASE) -> Outcome:
    return asyncio.run(annotate(case, ScriptedChat(script), settings_of()))


def waiting(number: int = 0) -> Outcome:
    """A case whose second code was refused."""
    case = Case(f"case-{number}", CASE.description, gold="Swm/Sym", gold_label=parse("Swm/Sym"))
    return outcome_of({**DISPUTED, "evaluate-b": BAD}, case)


OUTCOMES = {f"case-{number}": waiting(number) for number in range(4)}
UNPARSED = outcome_of({**DISPUTED, "classify-b": JUNK, "classify-b-repair": JUNK})
UNCONFIRMED = outcome_of({**DISPUTED, "confirm": BAD})
ACCEPTED = outcome_of(AGREED)


def row_of(outcome: Outcome, **filled: Any) -> dict[str, Any]:
    (row,) = review_rows([(outcome, CASE.description)], 307)
    return row.model_dump(mode="json") | filled


def file_of(path: Path, *rows: object) -> Path:
    """A review file of rows; text stands as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    file = path / "review.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def decisions_of(path: Path, *rows: object, reviewer: str | None = None) -> list[HumanDecision]:
    return read_decisions(file_of(path, *rows), OUTCOMES.get, CODEBOOK, reviewer)


def test_row_shows_what_a_person_needs() -> None:
    row = row_of(UNCONFIRMED)
    assert tuple(row) == KEYS
    assert (row["case"], row["description"]) == (CASE.id, CASE.description)
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
    assert (row["decision"], row["justification"], row["reviewer"]) == ("", "", "")


def test_row_of_a_code_that_could_not_be_read() -> None:
    row = row_of(UNPARSED)
    by_name = {candidate["name"]: candidate for candidate in row["candidates"]}
    assert by_name["B"]["opt"] is None and "no OPT-Code" in by_name["B"]["problem"]
    assert row["adjudicated"] is None


def test_rows_name_neither_models_nor_gold() -> None:
    for outcome in (*OUTCOMES.values(), UNCONFIRMED, UNPARSED):
        text = json.dumps(row_of(outcome))
        for name in ("alpha", "beta", "gamma", "delta", "model-1", "Swm/Sym"):
            assert name not in text


def test_candidates_stand_in_the_order_drawn() -> None:
    orders: set[tuple[str, ...]] = set()
    for outcome in OUTCOMES.values():
        order = tuple(candidate["name"] for candidate in row_of(outcome)["candidates"])
        assert order == draw_order(307, outcome.case)
        orders.add(order)
    assert len(orders) == 2


def test_only_waiting_cases_are_exported() -> None:
    failed = OUTCOMES["case-0"].model_copy(update={"status": Status.FAILED})
    pairs = [(one, CASE.description) for one in (ACCEPTED, failed, OUTCOMES["case-1"])]
    assert [row.case for row in review_rows(pairs, 307)] == ["case-1"]


def test_decisions_come_back(tmp_path: Path) -> None:
    rows = [
        row_of(OUTCOMES["case-0"], **FILLED),
        row_of(OUTCOMES["case-1"], **FILLED | {"decision": "B"}),
        row_of(OUTCOMES["case-2"], **FILLED | {"decision": " Evo/Lrn "}),
        row_of(OUTCOMES["case-3"], **FILLED | {"decision": "OPT=Sch+Lrn; Human=low"}),
    ]
    found = decisions_of(tmp_path, *rows)
    assert [(one.case, one.choice) for one in found] == [
        ("case-0", "A"),
        ("case-1", "B"),
        ("case-2", "own"),
        ("case-3", "own"),
    ]
    codes = [str(one.classification.label) for one in found if one.classification]
    assert codes == [
        f"OPT=Ctl{FIELDS}",
        f"OPT=Lrn{FIELDS}",
        "OPT=Evo/Lrn",
        "OPT=Lrn+Sch; Human=low",
    ]
    for one in found:
        assert one.action == "decide" and one.confirmation is None and one.reviewer == "Ada"
        assert one.classification is not None
        assert one.classification.rationale == one.justification == "the loop is closed"
        assert one.decided.tzinfo is not None
        assert read_decision(one.model_dump(mode="json"), CODEBOOK) == one


def test_rows_left_open_stay_open(tmp_path: Path) -> None:
    rows = [row_of(OUTCOMES["case-0"]), "", row_of(OUTCOMES["case-1"], reviewer="Ada"), "  "]
    assert decisions_of(tmp_path, *rows) == []
    assert decisions_of(tmp_path, {"case": "case-0", "decision": None}) == []


def test_undo_takes_a_decision_back(tmp_path: Path) -> None:
    (found,) = decisions_of(tmp_path, row_of(OUTCOMES["case-0"], **FILLED | {"decision": "Undo"}))
    assert (found.action, found.choice, found.classification) == ("undo", None, None)


def test_reviewer_of_the_run_stands_in(tmp_path: Path) -> None:
    rows = [
        row_of(OUTCOMES["case-0"], **FILLED | {"reviewer": ""}),
        row_of(OUTCOMES["case-1"], **FILLED),
    ]
    assert [one.reviewer for one in decisions_of(tmp_path, *rows, reviewer="Bo")] == ["Bo", "Ada"]


def test_short_rows_are_enough(tmp_path: Path) -> None:
    (found,) = decisions_of(tmp_path, {"case": "case-0", **FILLED})
    assert found.choice == "A"


PROBLEMS = [
    ({"case": "other", **FILLED}, 'the run has no case "other"'),
    ({**FILLED}, "case is missing"),
    ({"case": 7, **FILLED}, "case is 7, it should be text"),
    ({"case": "case-0", **FILLED, "justification": " "}, "is decided without justification"),
    ({"case": "case-0", "decision": "A"}, "without justification and reviewer"),
    ({"case": "case-0", "justification": "so"}, "has a justification and no decision"),
    ({"case": "case-0", **FILLED, "decision": "C"}, 'decision "C" is none of A, B, undo'),
    ({"case": "case-0", **FILLED, "decision": "Evo/Lern"}, "column 5"),
    ({"case": "case-0", **FILLED, "decision": "OPT=Evo; Rep"}, "column 13"),
    ({"case": "case-0", **FILLED, "decision": "The answer is OPT=Evo"}, "column 1"),
    ({"case": "case-0", **FILLED, "decision": ["A"]}, 'decision is ["A"], it should be text'),
    ({"case": "case-0", **FILLED, "decison": "A"}, "did you mean decision?"),
    ({"case": "case-0", **FILLED, "zzzz": 1}, "keys: case, reason"),
    ({"case": "case-0", **FILLED, "description": "another"}, "is not the one that was classified"),
    ("{", "not valid JSON: Expecting"),
    ("[" * 100_000, "more than 100 lists and objects"),
    ("3", "is 3, it should be an object"),
]


@pytest.mark.parametrize(("row", "problem"), PROBLEMS, ids=range(len(PROBLEMS)))
def test_row_that_cannot_be_used_is_named(tmp_path: Path, row: object, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        decisions_of(tmp_path, row_of(OUTCOMES["case-1"], **FILLED), "", row)
    message = str(caught.value)
    assert problem in message
    assert f"{tmp_path / 'review.jsonl'}:3: " in message and "none was imported" in message


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        decisions_of(tmp_path, *(row for row, _ in PROBLEMS))
    message = str(caught.value)
    assert all(problem in message for _, problem in PROBLEMS)
    with pytest.raises(DataError, match=r"and 10 rows more"):
        decisions_of(tmp_path, *["{"] * 60)


def test_case_is_decided_once(tmp_path: Path) -> None:
    row = row_of(OUTCOMES["case-0"], **FILLED)
    with pytest.raises(DataError, match=r":2: case case-0 is decided at .*:1 already"):
        decisions_of(tmp_path, row, row)


def test_case_that_no_person_was_asked_about(tmp_path: Path) -> None:
    file = file_of(tmp_path, {"case": "pid", **FILLED})
    with pytest.raises(DataError, match="case pid is accepted, no person was asked"):
        read_decisions(file, {"pid": ACCEPTED}.get, CODEBOOK)


def test_code_that_is_not_there_cannot_be_chosen(tmp_path: Path) -> None:
    file = file_of(tmp_path, {"case": "pid", **FILLED, "decision": "B"})
    with pytest.raises(DataError, match="decision B: B has no code; fill in a line"):
        read_decisions(file, {"pid": UNPARSED}.get, CODEBOOK)


@pytest.mark.parametrize("is_directory", [False, True])
def test_file_that_cannot_be_read(tmp_path: Path, is_directory: bool) -> None:
    file = tmp_path / "review.jsonl"
    if is_directory:
        file.mkdir()
    with pytest.raises(DataError, match=r"review\.jsonl cannot be read.*export="):
        read_decisions(file, OUTCOMES.get, CODEBOOK)


def test_byte_order_mark_of_an_editor_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "review.jsonl"
    file.write_text(json.dumps({"case": "case-0", **FILLED}) + "\r\n", encoding="utf-8-sig")
    assert len(read_decisions(file, OUTCOMES.get, CODEBOOK)) == 1


@given(
    decision=st.text(max_size=30) | st.sampled_from(["A", "B", "undo", "Evo", "OPT=Evo"]),
    justification=st.text(max_size=5),
)
def test_anything_filled_in_is_a_decision_or_a_problem(
    tmp_path_factory: pytest.TempPathFactory, decision: str, justification: str
) -> None:
    row = {"case": "case-0", "decision": decision, "justification": justification}
    file = file_of(tmp_path_factory.getbasetemp(), row)
    try:
        found = read_decisions(file, OUTCOMES.get, CODEBOOK, "Ada")
    except DataError as error:
        assert f"{file}:1: " in str(error)
    else:
        assert len(found) == bool(decision.strip())
