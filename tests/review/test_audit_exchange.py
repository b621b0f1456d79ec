"""A random sample of decided cases to a file and back by `jobs/review.py audit=`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from raylab.archive.store import Archive
from raylab.config.compose import load_config
from raylab.config.jobs import ReviewConfig
from raylab.errors import DataError, RunError
from raylab.report.annotation_run import conclude
from raylab.review.audit_exchange import export_or_import_audit
from raylab.runs.run import Run
from tests.archive.rows import NOON
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
    assert sorted(row["case"] for row in rows) == ["c0", "c1", "c2", "c3"]
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
    with Archive.open(storage / "archive.db", create=False) as archive:
        actions = Counter(entry.action for entry in archive.run("systems").audit().entries())
        assert actions == {"draw": 4, "code": 3}
        # A file that is imported again says nothing new.
        audit(storage, 1.0, f"import={path}", "reviewer=Ada")
        assert len(list(archive.run("systems").audit().entries())) == 7
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
    with Archive.open(storage / "archive.db", create=False) as archive:
        assert all(entry.action == "draw" for entry in archive.run("systems").audit().entries())


def test_audit_in_a_file_of_earlier_runs_is_archived_once(storage: Path, chat: str) -> None:
    said = {"case": "c1", "code": "OPT=Evo", "justification": "", "reviewer": "Ada"}
    record = {"schema_version": 1, "share": 1.0, "codes": [{**said, "decided": NOON.isoformat()}]}
    (storage / "systems" / "audit.json").write_text(json.dumps(record))
    config = annotation(storage, chat)
    run = Run.at(storage / "systems")
    with Archive.open(storage / "archive.db", create=False) as archive:
        for _ in range(2):
            conclude(config, run, archive)
        entries = list(archive.run("systems").audit().entries())
        assert Counter(entry.action for entry in entries) == {"draw": 4, "code": 1}
        assert (entries[-1].case, entries[-1].reviewer) == ("c1", "Ada")
    report = json.loads((storage / "systems" / "report.json").read_text())["audit"]
    assert (report["drawn"], report["audited"], report["right"]["value"]) == (4, 1, 0.0)
