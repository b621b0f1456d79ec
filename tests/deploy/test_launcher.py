"""The cluster of VMs, the runtime environment and the upload of a submitted job, by Ray itself."""

import shutil
from copy import deepcopy
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from ray._private.runtime_env import packaging
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.runtime_env import RuntimeEnv

from tests.deploy.manifests import DEPLOY, ROOT, Manifest

CONFIG: Manifest = yaml.safe_load((DEPLOY / "launcher/vms.yaml").read_text())


def test_ray_takes_it() -> None:
    validate_config(prepare_config(deepcopy(CONFIG)))


def test_head_and_workers_have_token_authentication_on() -> None:
    commands = CONFIG["head_start_ray_commands"] + CONFIG["worker_start_ray_commands"]
    head, worker = (command for command in commands if "ray start" in command)
    assert head.startswith("RAY_AUTH_MODE=token ray start --head")
    assert worker.startswith("RAY_AUTH_MODE=token ray start")
    # The dashboard is on loopback.
    assert "--dashboard-host=127.0.0.1" in head


def test_the_token_comes_as_a_file_that_its_owner_alone_reads() -> None:
    path = "/home/ray/.ray/auth_token"
    assert CONFIG["file_mounts"] == {path: "~/.ray/auth_token"}
    assert f"chmod 600 {path}" in CONFIG["setup_commands"]


WORKING_DIRECTORY = "${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}"
"""Ray's name for the checkout as it was uploaded."""


def test_nodes_install_what_is_locked_by_its_hash() -> None:
    environment = RuntimeEnv(**yaml.safe_load((DEPLOY / "runtime-env.yaml").read_text()))
    pip = environment.pip_config()
    names = [package.removeprefix(f"-r {WORKING_DIRECTORY}/") for package in pip["packages"]]
    assert names == ["deploy/locks/run.txt", "deploy/locks/cuda.txt"]
    assert all((ROOT / name).is_file() for name in names)
    options = ["--require-hashes", "--no-deps", "--no-build-isolation"]
    assert pip["pip_install_options"] == options
    assert environment.env_vars() == {}


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
