"""What holds the project together: pins, jobs and the build files."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JOBS = sorted((ROOT / "jobs").glob("*.py"))


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"].values()
    return PROJECT["dependencies"] + [item for extra in extras for item in extra]


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_jobs_are_thin_and_start_nothing_when_imported(job: Path) -> None:
    """A job chooses what to call by its configuration, and does nothing itself."""
    tree = ast.parse(job.read_text())
    assert ast.get_docstring(tree)
    (run,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    statements = {type(node) for node in ast.walk(run) if isinstance(node, ast.stmt)}
    assert statements <= {ast.FunctionDef, ast.ImportFrom, ast.If, ast.Expr}
    at_import = [node for node in tree.body[1:] if isinstance(node, ast.Expr | ast.Assign)]
    assert at_import == []


def test_every_job_has_its_yaml() -> None:
    assert {job.stem for job in JOBS} == {path.stem for path in (ROOT / "configs").glob("*.yaml")}


def test_ray_is_the_release_that_was_measured() -> None:
    assert "ray[default,serve,train,tune]==2.60.0" in PROJECT["dependencies"]
    assert pins()["ray"] == "2.60.0"


def test_pins_fit_the_cpu_and_the_cuda_build_of_torch() -> None:
    assert pins()["torch"] == "2.13.0"
    assert not [name for name, version in pins().items() if "+" in version]


def test_every_direct_dependency_is_pinned() -> None:
    names = {re.split(r"[\[<>=]", item)[0].lower() for item in requirements()}
    assert names <= pins().keys()
    assert "lightning" not in pins()
