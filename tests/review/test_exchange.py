"""Open cases to a file and back by `jobs/review.py`."""

import json
from pathlib import Path
from typing import Any

import pytest

from raylab.annotation.human.open_cases import Typed
from raylab.archive.store import Archive
from raylab.config.compose import load_config
from raylab.config.jobs import ReviewConfig
from raylab.errors import CallError, RunError
from raylab.review.exchange import export_cases, import_decisions
from tests.review.office import Office
from tests.review.runs import AGREED, ONE, annotation, make_run


@pytest.fixture
def storage(tmp_path: Path, chat: str) -> Path:
    """Where run `systems` lies, of whose cases two wait for a person."""
    make_run(annotation(tmp_path, chat), {"c0": AGREED, "c1": ONE, "c2": ONE})
    return tmp_path


def config(storage: Path, *more: str) -> ReviewConfig:
    return load_config(ReviewConfig, [f"storage={storage}", "name=systems", *more])


def export(storage: Path, path: Path) -> list[dict[str, Any]]:
    export_cases(config(storage), path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def statuses(storage: Path) -> dict[str, int]:
    with Archive.open(storage / "archive.db", create=False) as archive:
        return archive.run("systems").counts(now=True)


def test_people_settle_cases_in_a_file_and_the_evaluator_confirms(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = storage / "open.jsonl"
    rows = export(storage, path)
    assert {row["case"] for row in rows} == {"c1", "c2"}
    assert f"python jobs/review.py name=systems import={path}" in capsys.readouterr().out
    # The evaluator is content with A's code and not with B's.
    for row, choice in zip(rows, "AB", strict=True):
        row |= {"decision": choice, "justification": "I know the system."}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    back = config(storage, f"import={path}", "reviewer=ada")
    import_decisions(back, path)
    assert statuses(storage) == {"accepted": 2, "human": 1}
    assert "stays open, the evaluator refuses the code (FAIL 40)" in capsys.readouterr().out
    decisions = json.loads((storage / "systems" / "report.json").read_text())["decisions"]
    assert (decisions["confirmed"], decisions["refused"], decisions["waiting"]) == (1, 1, 1)
    import_decisions(back, path)
    with Archive.open(storage / "archive.db") as archive:
        made = list(archive.run("systems").decisions())
        assert [row.reviewer for row in made] == ["ada", "ada"]


def submit(storage: Path, case: int, reviewer: str, choice: str = "A") -> None:
    """Has a decision wait as the page does."""
    with Archive.open(storage / "archive.db") as archive:
        made = annotation(storage, "http://127.0.0.1:9/v1")
        reviews = Office(archive, made).reviews()
        reviews.submit(case, reviewer, Typed(choice, "", "I know it."))


def import_all(storage: Path, path: Path, rows: list[dict[str, Any]], reviewer: str) -> None:
    for row in rows:
        row |= {"decision": "A", "justification": "I know the system."}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_decisions(config(storage, f"import={path}", f"reviewer={reviewer}"), path)


def test_a_case_with_a_decision_that_waits_is_decided_once(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = storage / "open.jsonl"
    rows = export(storage, path)
    (second,) = [number for number, row in enumerate(rows, 2) if row["case"] == "c2"]
    submit(storage, second, "Bo")
    assert [row["case"] for row in export(storage, storage / "later.jsonl")] == ["c1"]
    import_all(storage, path, rows, "ada")
    told = capsys.readouterr().out
    assert "case c2: a decision of Bo waits for the evaluator" in told and "is left out" in told
    with Archive.open(storage / "archive.db") as archive:
        run = archive.run("systems")
        assert [(row.case, row.reviewer) for row in run.decisions()] == [("c1", "ada")]
        assert [waits.reviewer for waits in run.pending().all()] == ["Bo"]


def test_a_corrected_decision_replaces_what_waits_of_its_reviewer(storage: Path) -> None:
    path = storage / "open.jsonl"
    rows = export(storage, path)
    for case in (2, 3):
        submit(storage, case, "ada", "B")
    import_all(storage, path, rows, "ada")
    with Archive.open(storage / "archive.db") as archive:
        run = archive.run("systems")
        assert [row.status for row in run.decisions()] == ["accepted"] * 2
        assert run.pending().all() == []


def test_an_import_that_fails_leaves_nothing_waiting(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = storage / "open.jsonl"
    rows = export(storage, path)

    async def away(*_: object) -> None:
        raise CallError("nobody answers")

    with monkeypatch.context() as patch, pytest.raises(CallError):
        patch.setattr("raylab.review.exchange.confirmed", away)
        import_all(storage, path, rows, "ada")
    with Archive.open(storage / "archive.db") as archive:
        run = archive.run("systems")
        assert run.pending().all() == [] and list(run.decisions()) == []
    import_all(storage, path, rows, "ada")
    assert statuses(storage) == {"accepted": 3}


def test_a_file_with_decisions_is_not_written_over(storage: Path) -> None:
    path = storage / "open.jsonl"
    export(storage, path)
    rows = export(storage, path)
    rows[0]["decision"] = "A"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RunError, match="holds decisions: archive them first by import="):
        export_cases(config(storage), path)


def test_a_file_that_cannot_be_written_is_told(storage: Path) -> None:
    with pytest.raises(RunError, match=r"cannot be written.*give export= another file"):
        export_cases(config(storage), storage / "nowhere" / "open.jsonl")


def test_a_run_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no annotation run: check name= and storage="):
        export_cases(config(tmp_path), tmp_path / "open.jsonl")
