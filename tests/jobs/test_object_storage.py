"""The jobs as a user runs them, with all that they read and leave on object storage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import fs

from raylab.archive.store import Archive
from raylab.files import Place
from tests.jobs.test_annotate import Store, arguments, write_cases
from tests.jobs.test_train import ROOT, TINY
from tests.llm.scripted_server import server_process
from tests.object_storage import ObjectStorage

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def run(job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"{ROOT}/jobs/{job}.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def finished(job: str, *arguments: str) -> str:
    done = run(job, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_no_secret(s3: ObjectStorage, directory: Place) -> None:
    selector = fs.FileSelector(directory.path, recursive=True)
    files = [info for info in directory.filesystem.get_file_info(selector) if info.is_file]
    assert files
    for info in files:
        with directory.filesystem.open_input_file(info.path) as file:
            content = file.readall()
        assert s3.secret_key.encode() not in content, info.path
        assert s3.access_key.encode() not in content, info.path


def test_a_model_is_trained_scored_and_measured(s3: ObjectStorage) -> None:
    runs = Place.at(s3.uri) / "arc"
    storage = f"storage={runs}"
    checkpoint = runs / "model/checkpoints/epoch-0001/checkpoint.ckpt"
    trained = finished("train", storage, "name=model", *TINY, "training.epochs=1")
    assert f"best checkpoint {checkpoint}" in trained
    assert checkpoint.exists() and (runs / "model/tensorboard").is_directory()

    scoring = [storage, "name=scores", "models=[model]", "data.every=40", "generations=[1,2]"]
    assert f"score tree {runs}/scores/scores" in finished("evaluate", *scoring)
    assert "2 of 2 pairs of model and generation" in finished("evaluate", *scoring, "resume=true")

    root = f"quality_eval_cfg.scores_root_dir={runs}/scores/scores"
    printed = finished("quality", storage, "name=quality", root)
    accuracies = json.loads((runs / "scores/metrics.json").read())["models"]["model"]
    quality = json.loads((runs / "quality/quality.json").read())
    mean = sum(accuracies.values()) / 2
    assert quality["difficulty"] == pytest.approx(1 - mean, abs=1e-12)
    assert f"Benchmark difficulty: {1 - mean:.4f}" in printed
    assert_no_secret(s3, runs)


def test_an_annotation_keeps_its_archive_on_disk(s3: ObjectStorage, tmp_path: Path) -> None:
    runs = Place.at(s3.uri) / "opt"
    cases = runs / "systems.jsonl"
    cases.write(write_cases(tmp_path, 20).read_bytes())
    store = Store(str(tmp_path / "archive.db"), None)
    with server_process() as chat:
        order = [*arguments(tmp_path, chat, store, tmp_path), f"storage={runs}"]
        order += [f"cases.path={cases}", "actors=1"]
        refused = run("annotate", *order, "archive=null")
        assert refused.returncode == 2 and "give archive=" in refused.stderr
        assert not (runs / "run").exists()
        assert "20/20 cases" in finished("annotate", *order)
        finished("annotate", *order, "resume=true", "export=parquet")
    report = json.loads((runs / "run/report.json").read())
    assert report["cases"]["total"] == 20
    assert {"cases.parquet", "confusion.png", "record.json", "scores"} <= set(
        (runs / "run").names()
    )
    with Archive.open(store.location) as archive:
        assert archive.verify("run") == []
    assert_no_secret(s3, runs)
