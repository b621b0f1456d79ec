"""What deploy/README.md names is there."""

import ast
import re

from tests.deploy.manifests import README, ROOT


def test_every_threat_names_a_test_that_exists() -> None:
    table = README.partition("## Threats")[2].partition("**What nothing here stops:**")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    assert [row for row in rows if "::" not in row] == []
    named = set(re.findall(r"`([\w/]+\.py)::(\w+)`", README))
    tests = {
        (file, getattr(node, "name", ""))
        for file, _ in named
        for node in ast.parse((ROOT / "tests" / file).read_text()).body
    }
    assert named - tests == set()


def test_every_file_that_is_applied_exists() -> None:
    applied = set(re.findall(r"(?:-f |=)(deploy/\S+\.\w+)", README))
    assert {"deploy/kuberay/base.yaml", "deploy/vllm/vllm.yaml"} <= applied
    assert all((ROOT / path).is_file() for path in applied)
