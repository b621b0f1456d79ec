"""Open cases to a file and back by `jobs/review.py`."""

import json
from pathlib import Path
from typing import Any

import pytest

from raylab.archive.store import Archive
from raylab.config.compose import load_config
from raylab.config.jobs import ReviewConfig
from raylab.errors import RunError
from raylab.review.exchange import export_cases, import_decisions
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
        assert archive.verify() == []


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
