import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from raylab.core.errors import ArchiveError
from raylab.label.archive.records import CaseRow, RunRow
from raylab.label.archive.store import Archive
from raylab.label.judgement import Decision
from raylab.label.protocol.outcome import Outcome, Status
from raylab.label.statistics.columns import export_columns
from raylab.label.statistics.frame import export_run
from tests.label.archive.rows import execute, sha256
from tests.label.protocol.outcomes import CODEBOOK, answer, call, decision, outcome

SYSTEM = sha256("a system")
WHOLE = outcome(
    "whole",
    answer("Lrn", [call(response_model="m-1")]),
    answer("Evo", [call(response_model="m-2")], format="repaired"),
    status=Status.HUMAN,
    gold="Evo",
    reason="unlike codes",
    meta={"source": "é\0", "n": [1, None]},
    cost=0.125,
    started=datetime(2026, 3, 1, 12, tzinfo=UTC),
    finished=datetime.fromisoformat("2026-03-01T14:00:01.5+02:00"),
)
FLAT = {
    "run": "r",
    "case": "whole",
    "sequence": 1,
    "status": "accepted",
    "run_status": "human",
    "code": "OPT=Swm",
    "run_code": None,
    "gold": "Evo",
    "generation": "published",
    "reason": "unlike codes",
    "reviewer": "ada",
    "code_a": "OPT=Lrn",
    "format_b": "repaired",
    "model_a": "m-1",
    "score_a": 90,
    "cost": 0.125,
    "description_hash": SYSTEM,
    "description": "a system",
}


def row_of(made: Outcome, description: str = "a system") -> CaseRow:
    body = made.model_dump(mode="json")
    return CaseRow(made.case, sha256(description), description, made.status, body)


def accepted(case: str, description: str = "a system", **changes: Any) -> CaseRow:
    return row_of(outcome(case, "Lrn", "Lrn", **changes), description)


def decided(case: str, code: str) -> Decision:
    made = decision(case, code, None, justification="since", reviewer="ada")
    return Decision(case, "decide", "ada", "accepted", made.model_dump(mode="json"))


def read(path: Path) -> list[dict[str, Any]]:
    rows = parquet.read_table(path).to_pylist()
    for row in rows:
        row |= {name: json.loads(row[name]) for name in ("meta", "decisions", "body")}
    return rows


def test_an_export_has_every_case_with_its_numbers_and_decisions(archive: Archive, tmp_path: Path):
    failed = outcome("failed", None, None, status=Status.FAILED)
    archive.run("r").add_cases([row_of(WHOLE), accepted("bare"), row_of(failed)])
    for code in ("Sym", "Swm"):
        archive.run("r").reviews().add(decided("whole", code))
    path = tmp_path / "deep" / "cases.parquet"
    export_run(archive.run("r"), path, CODEBOOK, "AB")
    rows = whole, plain, failed = read(path)
    assert {name: whole[name] for name in FLAT} == FLAT
    assert whole["started"] == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert whole["finished"] == datetime(2026, 3, 1, 12, 0, 1, 500_000, tzinfo=UTC)
    stored = next(archive.run("r").cases()).case
    assert whole["created"] == stored.created
    assert (whole["meta"], whole["body"]) == (WHOLE.meta, stored.body)
    assert [decision["body"]["label"] for decision in whole["decisions"]] == ["OPT=Sym", "OPT=Swm"]
    assert (plain["status"], plain["code"], plain["decisions"]) == ("accepted", "OPT=Lrn", [])
    assert (failed["status"], failed["code_a"], failed["jaccard"]) == ("failed", None, None)
    for row in rows:
        names = ("case", "description", "description_hash", "sequence")
        record = {name: row[name] for name in names} | {"status": row["run_status"]}
        created = row["created"].astimezone(UTC).isoformat(timespec="microseconds")
        record |= {"created": created, "body": row["body"]}
        content = json.dumps(record, sort_keys=True, separators=(",", ":"))
        assert row["sha256"] == sha256(content)
    # The file says what its columns hold.
    meanings = {each.name: each.metadata[b"meaning"].decode() for each in parquet.read_schema(path)}
    assert meanings == {name: own.meaning for name, own in export_columns("AB").items()}
    assert meanings["score_b"] == "score from 0 to 100, after the caps"


def test_a_spreadsheet_computes_no_cell_of_an_export(archive: Archive, tmp_path: Path):
    mark, formulas = b"\xef\xbb\xbf", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"]
    archive.run("r").add_cases([accepted(f"{text} {n}", text) for n, text in enumerate(formulas)])
    archive.run("r").add_cases([accepted("plain", 'a "quoted", long\ntext', meta={"é": "\ud800"})])
    export_run(archive.run("r"), tmp_path / "cases.csv", CODEBOOK, "AB")
    with (tmp_path / "cases.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["description"] for row in rows[:6]] == [f"'{text}" for text in formulas]
    assert [row["case"] for row in rows[:6]] == [f"'{t} {n}" for n, t in enumerate(formulas)]
    plain = rows[6]
    assert (plain["case"], plain["description"]) == ("plain", 'a "quoted", long\ntext')
    assert (plain["code"], plain["score_a"], plain["gold"]) == ("OPT=Lrn", "90", "")
    assert json.loads(plain["meta"]) == {"é": "\ud800"}
    # With its mark, Excel reads the é.
    assert (tmp_path / "cases.csv").read_bytes().startswith(mark)


def test_an_export_replaces_a_file_whole_or_not_at_all(
    archive: Archive, archive_url: str, tmp_path: Path
):
    run, path = archive.run("r"), tmp_path / "cases.parquet"
    run.add_cases([accepted(f"c{n}") for n in range(250)])
    path.write_text("older")
    ((whole,),) = execute(archive_url, "SELECT body FROM cases WHERE sequence = 201")
    execute(archive_url, "UPDATE cases SET body = 'no JSON' WHERE sequence = 201")
    with pytest.raises(ArchiveError, match="did not write so"):
        export_run(run, path, CODEBOOK, "AB")
    assert path.read_text() == "older"
    execute(archive_url, "UPDATE cases SET body = :body WHERE sequence = 201", body=whole)
    export_run(run, path, CODEBOOK, "AB")
    assert len(read(path)) == 250
    assert [entry.name for entry in tmp_path.iterdir() if "cases" in entry.name] == [path.name]


def test_what_is_added_during_an_export_is_left_out(
    archive: Archive, archive_url: str, tmp_path: Path
):
    run = archive.run("r")
    run.add_cases([accepted(f"c{n}", status=Status.HUMAN) for n in range(3)])
    read_row = run.row

    def read_row_and_write() -> RunRow:
        row = read_row()
        run.add_cases([accepted("late")])
        run.reviews().add(decided("c0", "Evo"))
        return row

    run.row = read_row_and_write
    export_run(run, tmp_path / "cases.parquet", CODEBOOK, "AB")
    first, _, _ = read(tmp_path / "cases.parquet")
    assert (first["case"], first["status"], first["decisions"]) == ("c0", "human", [])
