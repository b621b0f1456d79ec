"""The comparison as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

from tests.report.runs import train

ROOT = Path(__file__).parents[2]


def report(storage: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-X", "importtime", f"{ROOT}/jobs/report.py", *arguments]
    return subprocess.run(command, cwd=storage, capture_output=True, text=True)


def test_runs_are_compared_without_ray_and_torch(tmp_path: Path):
    train(tmp_path / "runs", "a", 0.25)
    train(tmp_path / "runs", "b", 0.5)
    done = report(tmp_path, "runs=[a,b]", "name=c")
    assert done.returncode == 0, done.stderr
    assert "grid accuracy" in done.stdout
    assert (tmp_path / "runs" / "c" / "report.html").exists()
    modules = re.findall(r"^import time:.*\|\s+([\w.]+)$", done.stderr, re.MULTILINE)
    assert "raylab.report.comparison" in modules
    assert not {name.split(".")[0] for name in modules} & {"ray", "torch"}


def test_a_run_that_is_missing_ends_with_its_places_and_no_traceback(tmp_path: Path):
    done = report(tmp_path, "runs=[absent]", "name=c")
    assert done.returncode == 1
    looked_at = f"{tmp_path}/runs/absent/record.json or {tmp_path}/absent/record.json"
    assert f"error: no run absent: there is no {looked_at}" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
