"""What deploy/README.md names is there."""

import ast
import re
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, JOBS, ROOT

TEXT = (DEPLOY / "README.md").read_text()
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)))


def functions_of(path: Path) -> set[str]:
    found = ast.parse(path.read_text()).body
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("file", "test"), TESTS)
def test_every_test_that_stops_a_threat_exists(file: str, test: str) -> None:
    assert test in functions_of(ROOT / "tests" / file)


def test_every_row_of_the_threats_names_a_test() -> None:
    table = TEXT.partition("## Threats")[2].partition("**What nothing here stops:**")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    assert [row for row in rows if "::" not in row] == []


def test_every_directory_that_is_applied_exists() -> None:
    applied = set(re.findall(r"-k (deploy/\S+)", TEXT))
    assert applied
    assert all((ROOT / path / "kustomization.yaml").is_file() for path in applied)


def test_every_job_is_in_the_table() -> None:
    assert set(JOBS) <= set(re.findall(r"^\| (\w+) \|", TEXT, re.M))
