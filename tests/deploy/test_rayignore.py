"""What of the checkout is uploaded for a submitted job, by Ray's own packing."""

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from ray._private.runtime_env import packaging

ROOT = Path(__file__).parents[2]
KEYS = ("keys.env", ".envrc", "deploy/kuberay/secrets.yaml", "credentials", "jobs/.netrc", "a.key")
DATA = (
    ".venv/bin/python",
    "runs/archive.db",
    "runs/run/scores/a.json",
    "data/re_arc/tasks/a.json",
    "re_arc.zip",
    "elsewhere/archive.db",
    "elsewhere/epoch-0001/checkpoint.ckpt",
    "raylab/__pycache__/runs.pyc",
)
FREE = (
    "jobs/train.py",
    "deploy/kuberay/secrets.example.yaml",
    "credentials.py",
    "raylab/label/opt/data/gold.csv",
    "configs/data/re_arc.yaml",
    "notes.json",
)


def test_keys_are_not_uploaded(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shutil.copy(ROOT / ".rayignore", tmp_path / ".rayignore")
    for name in (*KEYS, *DATA, *FREE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    target = tmp_path_factory.mktemp("zip") / "package.zip"
    packaging._zip_files(str(tmp_path), [], str(target), include_gitignore=True)
    with ZipFile(target) as archive:
        assert set(archive.namelist()) == {*FREE, ".rayignore"}
