"""Annotation as a user runs it, with all that it reads and leaves on object storage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raylab.archive.store import Archive
from raylab.files import Place
from tests.jobs.test_annotate import Store, arguments, write_cases
from tests.jobs.test_train import ROOT
from tests.llm.scripted_server import server_process
from tests.object_storage import ObjectStorage, assert_no_secret

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def annotate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"{ROOT}/jobs/annotate.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def finished(*arguments: str) -> str:
    done = annotate(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_annotation_keeps_its_archive_on_disk(s3: ObjectStorage, tmp_path: Path) -> None:
    runs = Place.at(s3.uri) / "opt"
    cases = runs / "systems.jsonl"
    cases.write(write_cases(tmp_path, 20).read_bytes())
    store = Store(str(tmp_path / "archive.db"), None)
    with server_process() as chat:
        order = [*arguments(tmp_path, chat, store, tmp_path), f"storage={runs}"]
        order += [f"cases.path={cases}", "actors=1"]
        refused = annotate(*order, "archive=null")
        assert refused.returncode == 2 and "give archive=" in refused.stderr
        assert not (runs / "run").exists()
        assert "20/20 cases" in finished(*order)
        finished(*order, "resume=true", "export=parquet")
    report = json.loads((runs / "run/report.json").read())
    assert report["cases"]["total"] == 20
    assert {"cases.parquet", "confusion.png", "record.json", "scores"} <= set(
        (runs / "run").names()
    )
    with Archive.open(store.location) as archive:
        assert archive.run("run").verify() == []
    assert_no_secret(s3, runs)
