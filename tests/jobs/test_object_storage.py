"""Annotation as a user runs it, with all that it reads and leaves on object storage."""

import json
from pathlib import Path

import pytest

from raylab.core.files import Place
from tests.conftest import RunScript
from tests.jobs.test_annotate import Store, arguments, write_cases
from tests.object_storage import ObjectStorage, assert_no_secret

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_an_annotation_keeps_its_archive_on_disk(
    s3: ObjectStorage, run_script: RunScript, tmp_path: Path, chat: str
) -> None:
    runs = Place.at(s3.uri) / "opt"
    cases = runs / "systems.jsonl"
    cases.write(write_cases(tmp_path, 20).read_bytes())
    store = Store(str(tmp_path / "archive.db"), None)
    order = [*arguments(tmp_path, chat, store, tmp_path), f"storage={runs}"]
    order += [f"cases.path={cases}", "actors=1"]
    refused = run_script("annotate", *order, "archive=null")
    assert refused.returncode == 2 and "give archive=" in refused.stderr
    assert not (runs / "run").exists()
    made = run_script("annotate", *order)
    assert made.returncode == 0 and "20/20 cases" in made.stdout, made.stderr
    again = run_script("annotate", *order, "resume=true", "export=parquet")
    assert again.returncode == 0, again.stderr
    report = json.loads((runs / "run/report.json").read())
    assert report["cases"]["total"] == 20
    assert {"cases.parquet", "report.html", "record.json", "scores"} <= set((runs / "run").names())
    assert_no_secret(s3, runs)
