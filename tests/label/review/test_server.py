"""The job of review: a run's cases to a file and back, and what it takes from the run's record."""

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from raylab.core.config.compose import load_config
from raylab.core.runs.run_record import RECORD
from raylab.label.archive.store import Archive
from raylab.label.config.jobs import ReviewConfig
from raylab.label.review.server import export_cases, import_decisions, open_reviews
from tests.label.review.office import AGREED, ONE, annotation, make_run, submission
from tests.llm.scripted_server import server_process

ROOT = Path(__file__).parents[3]
FILLED = {"decision": "A", "justification": "It breeds.", "reviewer": "Ada"}


@pytest.fixture
def storage(tmp_path: Path, chat: str) -> Path:
    """Where run `systems` lies: four decided cases with the code Lrn, and one that waits."""
    decided = {f"c{n}": f"{AGREED} {n}" for n in range(4)}
    make_run(annotation(tmp_path, chat), {**decided, "open": ONE})
    return tmp_path


def review(storage: Path, *more: str) -> ReviewConfig:
    return load_config(ReviewConfig, [f"storage={storage}", "name=systems", *more])


def test_the_page_listens_on_loopback_alone_and_needs_no_ray(storage: Path) -> None:
    command = [sys.executable, f"{ROOT}/jobs/review.py", f"storage={storage}", "name=systems"]
    # As in a submitted job, here of a cluster that is gone.
    submitted = os.environ | {"RAY_ADDRESS": "127.0.0.1:1"}
    with subprocess.Popen(
        [*command, "port=0"], env=submitted, stdout=subprocess.PIPE, text=True
    ) as page:
        assert page.stdout is not None
        address = re.search(r"http://\S+", page.stdout.readline())
        connections: list[Any] = psutil.Process(page.pid).net_connections("tcp")
        page.send_signal(signal.SIGINT)
    listening = [at.laddr for at in connections if at.status == psutil.CONN_LISTEN]
    assert [f"http://{at.ip}:{at.port}/" for at in listening] == [address and address[0]]
    assert listening[0].ip == "127.0.0.1" and page.returncode == 0


def fill_in(path: Path, *filled: dict[str, str]) -> None:
    """Annotates the tasks of a file, in order, in the form that Label Studio exports."""
    tasks = json.loads(path.read_text())
    for task, fields in zip(tasks, filled, strict=True):
        task["annotations"] = [submission(**fields)]
    path.write_text(json.dumps(tasks))


def test_the_printed_next_command_works_as_it_is_printed(
    storage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = storage / "review file, a=b (1).jsonl"
    # From another directory than that of the project.
    monkeypatch.setattr(sys, "argv", [f"{ROOT}/jobs/review.py"])
    export_cases(review(storage), path)
    told, *_, command = capsys.readouterr().out.strip().splitlines()
    assert told == f"1 case waits for a person -> {path}"
    fill_in(path, FILLED)
    words = shlex.split(command)
    assert words[:3] == ["python", f"{ROOT}/jobs/review.py", "name=systems"]
    monkeypatch.chdir(storage)
    monkeypatch.setattr(sys, "argv", words[1:])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(words[1], run_name="__main__")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "1 decision, 1 new, 1 unconfirmed" in printed
    assert "1 decision waits for the evaluator" in printed


def test_nothing_of_a_record_is_asked_or_read_from_the_environment(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "sk-secret")
    path, record = storage / "review.jsonl", storage / "systems" / RECORD
    export_cases(review(storage), path)
    fill_in(path, FILLED)
    with server_process("--log", str(storage / "calls.jsonl")) as url:
        altered = json.loads(record.read_text())
        for endpoint in altered["config"]["llm"]["endpoints"].values():
            endpoint |= {"base_url": url, "api_key_env": "MY_SECRET"}
        record.write_text(json.dumps(altered))
        import_decisions(review(storage), path)
        with open_reviews(review(storage)) as (reviews, *_):
            assert len(reviews.made_by("Ada")) == 1
    calls = storage / "calls.jsonl"
    assert not calls.exists() or calls.read_text() == ""


def test_people_classify_decided_cases_unseen_and_the_report_tells(storage: Path) -> None:
    path = storage / "audit.jsonl"
    export_cases(review(storage, "audit=1.0"), path)
    fill_in(path, *({"decision": code} for code in ("Lrn", "OPT=Lrn; Rep=param", "Evo", "")))
    for _ in range(2):  # A file that is imported again says nothing new.
        import_decisions(review(storage, f"import={path}", "reviewer=Ada"), path)
        report = json.loads((storage / "systems" / "report.json").read_text())["audit"]
        assert (report["decided"], report["drawn"], report["audited"]) == (4, 4, 3)
        assert report["right"]["value"] == pytest.approx(2 / 3)
        # All scores are 92, so they tell nothing about which codes are right.
        assert (report["judged"], report["weight"]) == (pytest.approx(0.92), 0.0)
        assert report["corrected"]["value"] == pytest.approx(2 / 3)
    assert "prediction-powered inference" in (storage / "systems" / "report.html").read_text()
    with Archive.open(storage / "archive.db", create=False) as archive:
        rows = list(archive.run("systems").decisions(kind="audit"))
    assert [row.action for row in rows] == ["draw"] * 4 + ["decide"] * 3
