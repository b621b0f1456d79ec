"""A random sample of decided cases to a file and back by `jobs/review.py audit=`."""

import json
from pathlib import Path
from typing import Any

import pytest

from raylab.config.compose import load_config
from raylab.config.jobs import ReviewConfig
from raylab.errors import ConfigError, DataError, RunError
from raylab.review.audit_exchange import export_or_import_audit
from tests.review.runs import AGREED, ONE, annotation, make_run


@pytest.fixture
def storage(tmp_path: Path, chat: str) -> Path:
    """Where run `systems` lies: four decided cases with the code Lrn, and one that waits."""
    decided = {f"c{n}": f"{AGREED} {n}" for n in range(4)}
    make_run(annotation(tmp_path, chat), {**decided, "open": ONE})
    return tmp_path


def audit(storage: Path, share: float, *more: str) -> None:
    given = [f"storage={storage}", "name=systems", f"audit={share}", *more]
    export_or_import_audit(load_config(ReviewConfig, given), share)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_people_classify_decided_cases_unseen_and_the_report_tells(storage: Path) -> None:
    path = storage / "audit.jsonl"
    audit(storage, 1.0, f"export={path}")
    rows = rows_of(path)
    assert [row["case"] for row in rows] == ["c0", "c1", "c2", "c3"]
    assert rows[0].keys() == {"case", "description", "code", "justification", "reviewer"}
    for row, code in zip(rows, ("Lrn", "OPT=Lrn; Rep=param", "Evo", ""), strict=True):
        row["code"] = code
    write(path, rows)
    audit(storage, 1.0, f"import={path}", "reviewer=Ada")
    report = json.loads((storage / "systems" / "report.json").read_text())["audit"]
    assert (report["decided"], report["drawn"], report["audited"]) == (4, 4, 3)
    assert report["right"]["value"] == pytest.approx(2 / 3)
    # All scores are 92, so they tell nothing about which codes are right.
    assert (report["judged"], report["weight"]) == (pytest.approx(0.92), 0.0)
    assert report["corrected"]["value"] == pytest.approx(2 / 3)
    assert "prediction-powered inference" in (storage / "systems" / "report.html").read_text()
    with pytest.raises(RunError, match="holds codes"):
        audit(storage, 1.0, f"export={path}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"case": "nobody"}, "the run has no case 'nobody'"),
        ({"case": "open"}, "case open is not in the sample of audit=1"),
        ({"description": "another"}, "has another description"),
        ({"code": "Foo"}, "Foo"),
        ({"reviewer": ""}, "a code and no reviewer"),
    ],
)
def test_bad_rows_are_named_and_none_is_taken(
    storage: Path, change: dict[str, str], problem: str
) -> None:
    path = storage / "audit.jsonl"
    audit(storage, 1.0, f"export={path}")
    first, *others = rows_of(path)
    write(path, [first | {"code": "Lrn", "reviewer": "Ada"} | change, *others])
    with pytest.raises(DataError, match=rf"audit.jsonl:1: .*{problem}"):
        audit(storage, 1.0, f"import={path}")
    assert not (storage / "systems" / "audit.json").exists()


def test_audit_needs_a_file() -> None:
    with pytest.raises(ConfigError, match="audit= goes with export="):
        load_config(ReviewConfig, ["name=systems", "audit=0.05"])
