"""Mistakes that are told before Ray is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("ray" in sys.modules)
"""


def told(job: str, tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and error of a job, which did not import Ray."""
    script = f"{ROOT}/jobs/{job}.py"
    done = subprocess.run(
        [sys.executable, "-c", CODE, script, f"storage={tmp_path}/runs", *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    return done.returncode, done.stderr


def test_no_such_model(tmp_path: Path):
    status, error = told("evaluate", tmp_path, "models=[gone]")
    assert status == 1 and "no model gone" in error


def test_what_is_no_checkpoint(tmp_path: Path):
    (tmp_path / "some.ckpt").write_text("no checkpoint")
    status, error = told("evaluate", tmp_path, "models=[some.ckpt]")
    assert status == 1 and "some.ckpt" in error and "Traceback" not in error


@pytest.mark.parametrize("there", [False, True])
def test_score_trees_that_are_missing_or_empty(tmp_path: Path, there: bool):
    tree = tmp_path / "scores"
    if there:
        tree.mkdir()
    status, error = told("quality", tmp_path, f"quality_eval_cfg.scores_root_dir={tree}")
    assert status == 1 and str(tree) in error and "Traceback" not in error
    assert not (tmp_path / "runs").exists()
