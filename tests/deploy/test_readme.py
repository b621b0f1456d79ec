"""What deploy/README.md names is there."""

import ast
import re

import pytest

from tests.deploy.manifests import README, ROOT


@pytest.mark.parametrize(
    ("file", "test"), sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", README)))
)
def test_every_test_that_stops_a_threat_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert test in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_row_of_the_threats_names_a_test() -> None:
    table = README.partition("## Threats")[2].partition("**What nothing here stops:**")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    assert [row for row in rows if "::" not in row] == []


def test_every_file_that_is_applied_exists() -> None:
    applied = set(re.findall(r"(?:-f |=)(deploy/\S+\.\w+)", README))
    assert {"deploy/kuberay/base.yaml", "deploy/vllm/vllm.yaml"} <= applied
    assert all((ROOT / path).is_file() for path in applied)
