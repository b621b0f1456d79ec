"""What of the checkout is uploaded for a submitted job, by Ray's own packing."""

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from ray._private.runtime_env import packaging

from raylab.config.jobs import QualityConfig
from raylab.entrypoint import run_job
from raylab.working_directory import KEY_FILES

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


def test_keys_are_not_uploaded(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shutil.copy(ROOT / ".rayignore", tmp_path / ".rayignore")
    for name in (*KEYS, *DATA, *FREE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    target = tmp_path_factory.mktemp("zip") / "package.zip"
    packaging._zip_files(str(tmp_path), [], str(target), include_gitignore=True)
    with ZipFile(target) as archive:
        assert set(archive.namelist()) == {*FREE, ".rayignore"}


def test_both_ignore_files_end_with_what_is_refused() -> None:
    for name in (".gitignore", ".rayignore"):
        lines = (ROOT / name).read_text().splitlines()
        assert tuple(lines[-len(KEY_FILES) :]) == KEY_FILES, name


def test_a_job_with_uploaded_keys_is_refused_before_it_runs_and_shows_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A copy as Ray makes it on a node.
    copy = tmp_path / "working_dir_files" / "_ray_pkg_0123"
    (copy / "jobs").mkdir(parents=True)
    (copy / "jobs" / "KEYS.ENV").write_text("RAYLAB_LLM_KEY=0123456789")
    (copy / ".netrc").write_text("")
    ran: list[QualityConfig] = []
    # In a directory that is not uploaded keys are the user's own.
    for directory, status in ((copy, 2), (tmp_path, 0)):
        monkeypatch.chdir(directory)
        with pytest.raises(SystemExit) as ended:
            run_job(QualityConfig, None, ran.append, ["quality_eval_cfg.scores_root_dir=scores"])
        assert (ended.value.code, len(ran)) == (status, 0 if status else 1)
    message = capsys.readouterr().err
    assert "uploaded with .netrc, jobs/KEYS.ENV, " in message and ".rayignore" in message
    assert "0123456789" not in message
