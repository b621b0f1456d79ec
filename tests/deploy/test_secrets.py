"""No value of a secret lies in a file of deploy/, and every file of it can be read."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, JOBS, files_of_deploy, of_kind, pods

LOOKS_SECRET = re.compile(
    r"""
      \b(sk|hf|ghp|xox[bp])[-_][A-Za-z0-9_-]{16,}    # keys of well-known services
    | \bAKIA[A-Z0-9]{16}\b
    | BEGIN\ [A-Z ]*PRIVATE\ KEY
    | ://[^/\s:@]+:[^/\s:@]+@                        # user:password@host
    | (?<!sha256:)\b[0-9a-f]{32,}\b                  # tokens as Ray and openssl make them
    """,
    re.VERBOSE,
)
NAMES_SECRET = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")


@pytest.mark.parametrize("path", files_of_deploy(), ids=lambda path: path.name)
def test_every_file_can_be_read_and_holds_no_secret(path: Path) -> None:
    text = path.read_text()
    if path.suffix in (".yaml", ".yml"):
        assert list(yaml.safe_load_all(text))
    if path.suffix == ".json":
        assert json.loads(text)
    assert not LOOKS_SECRET.search(text)


def test_the_example_of_secrets_is_empty_and_applied_by_nothing() -> None:
    assert [found["metadata"]["name"] for found in of_kind("Secret")] == [
        "raylab-token",
        "raylab-keys",
    ]
    assert {value for found in of_kind("Secret") for value in found["stringData"].values()} == {""}
    for path in DEPLOY.rglob("kustomization.yaml"):
        assert "secret" not in path.read_text()


def test_containers_take_secrets_by_reference() -> None:
    for pod in pods():
        for entry in pod.container.get("env", []):
            assert not (NAMES_SECRET.search(entry["name"]) and "value" in entry)
    keys = {"secretRef": {"name": "raylab-keys", "optional": True}}
    taken = {pod.role: pod.container.get("envFrom") for pod in pods()}
    assert taken == {"ray": [keys], "llm": None, "submitter": None}


def test_no_command_line_carries_a_secret() -> None:
    for job in JOBS:
        text = (DEPLOY / "kuberay/jobs" / job / "kustomization.yaml").read_text()
        assert not NAMES_SECRET.search(text)
