"""What of the checkout is uploaded for a submitted job, by Ray's own packing."""

import os
import shutil
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest
from ray._private.runtime_env import packaging

from raylab.config.jobs import QualityConfig
from raylab.entrypoint import run_job
from raylab.errors import ConfigError
from raylab.working_directory import KEY_FILES, refuse_keys

ROOT = Path(__file__).parents[1]
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
    "raylab/opt/data/gold.csv",
    "configs/data/re_arc.yaml",
    "notes.json",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A working directory with the ignore files of this one, where keys and data were left."""
    for name in (".gitignore", ".rayignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in (*KEYS, *DATA, *FREE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    "gitignore", [True, False], ids=["with .gitignore", "with .rayignore alone"]
)
def test_keys_are_not_uploaded(
    gitignore: bool, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("zip") / "package.zip"
    packaging._zip_files(str(checkout), [], str(target), include_gitignore=gitignore)
    with ZipFile(target) as archive:
        assert set(archive.namelist()) == {*FREE, ".gitignore", ".rayignore"}


def test_keys_are_not_committed(checkout: Path) -> None:
    subprocess.run(["git", "init", "--quiet", checkout], check=True)
    command = ["git", "-C", checkout, "status", "--porcelain", "-uall"]
    status = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {line.removeprefix("?? ") for line in status.splitlines()}
    assert found - {*DATA} == {*FREE, ".gitignore", ".rayignore"}


def test_both_ignore_files_end_with_what_is_refused() -> None:
    for name in (".gitignore", ".rayignore"):
        lines = (ROOT / name).read_text().splitlines()
        assert tuple(lines[-len(KEY_FILES) :]) == KEY_FILES, name


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy as Ray makes it on a node."""
    directory = tmp_path / "working_dir_files" / "_ray_pkg_0123"
    (directory / "jobs").mkdir(parents=True)
    return directory


def test_a_job_with_uploaded_keys_is_refused_and_shows_none_of_them(copy: Path) -> None:
    (copy / "jobs" / "KEYS.ENV").write_text("RAYLAB_LLM_KEY=0123456789")
    (copy / ".netrc").write_text("")
    with pytest.raises(
        ConfigError, match=r"uploaded with \.netrc, jobs/KEYS\.ENV, .*rayignore"
    ) as e:
        refuse_keys(copy)
    assert "0123456789" not in str(e.value)
    # In a directory that is not uploaded keys are the user's own.
    refuse_keys(copy.parent)


def test_every_job_is_refused_before_it_runs(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "keys.env").write_text("")
    monkeypatch.chdir(copy)
    ran: list[QualityConfig] = []
    arguments = ["quality_eval_cfg.scores_root_dir=scores"]
    with pytest.raises(SystemExit) as ended:
        run_job(QualityConfig, None, ran.append, arguments)
    assert (ended.value.code, ran) == (2, [])
    assert "keys.env" in capsys.readouterr().err
    os.remove("keys.env")
    with pytest.raises(SystemExit) as ended:
        run_job(QualityConfig, None, ran.append, arguments)
    assert (ended.value.code, len(ran)) == (0, 1)
