"""The import direction of the house, from the lowest layer to the highest."""

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    {"errors", "printable"},
    {"log", "background", "grid_metrics"},
    {"live"},
    {"bounded"},
    {"files"},
    {"config"},
    {"llm", "archive", "runs", "entrypoint", "workers"},
    {"codebook", "tracking"},
    {"distances"},
    {"arc", "annotation", "labels", "opt", "quality"},
    {"doctor"},
    {"taxonomies"},
    {"frames"},
    {"report"},
    {"review", "training", "evaluation"},
    {"cluster"},
    {"benchmarks"},
    {"jobs"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
WITHOUT_TORCH = {"annotation", "labels", "opt", "quality", "doctor", "llm", "review", "codebook"}
MODULES = sorted(path for root in ("raylab", "jobs") for path in (ROOT / root).rglob("*.py"))


def home(path: Path) -> str:
    """The layer member that a file belongs to; empty for raylab/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = parts[0] if parts[0] == "jobs" else parts[1]
    return "" if name == "__init__" else name


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def raylab_imports(path: Path) -> set[str]:
    split = [name.split(".") for name in imports(path)]
    return {parts[1] for parts in split if parts[0] == "raylab" and len(parts) > 1}


def modules_below(*names: str) -> list[str]:
    return [module_name(path) for path in MODULES if home(path) in names]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward_only(path: Path) -> None:
    place = home(path)
    if not place:
        assert not raylab_imports(path)
        return
    assert place in LEVEL, f"{place} has no layer: give it one in design and here"
    wrong = {
        name
        for name in raylab_imports(path) - {place}
        if LEVEL.get(name, len(LAYERS)) >= LEVEL[place]
    }
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {module_name(path) for path in MODULES}
    # A function or class of a module stands for the module.
    graph = {
        module_name(path): {
            name if name in modules else name.rpartition(".")[0] for name in imports(path)
        }
        & modules
        for path in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imported in a circle: {' -> '.join(reversed(error.args[1]))}")


def test_no_two_public_classes_share_a_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_outside_packages_stay_where_they_belong(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)}
    assert "lightning" not in outside
    if home(path) not in ("cluster", "benchmarks"):
        assert "ray" not in outside
    if home(path) in WITHOUT_TORCH | {"runs", "entrypoint", "config", "errors"}:
        assert not outside & {"torch", "pytorch_lightning", "torchmetrics"}
    if home(path) != "config":
        assert not outside & {"hydra", "omegaconf"}
    assert not any(name.startswith("ray.air") for name in imports(path))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_hydra_is_imported_by_command_lines_alone(path: Path) -> None:
    """Those who read what runs left, and workers, have no use for it."""
    first = {
        f"{node.module}.{alias.name}"
        for node in parsed(path).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if home(path) not in ("config", "entrypoint"):
        assert not any(name.startswith("raylab.config.compose") for name in first)


Stage = tuple[list[str], set[str]]
"""Modules, and the packages that may not be there when these are imported after the earlier."""

STAGES: list[Stage] = [
    (
        modules_below("config", "errors", "log", "entrypoint"),
        {"ray", "torch", "numpy", "pandas", "pyarrow"},
    ),
    (
        modules_below("annotation", "opt", "quality", "llm", "runs", "review"),
        {"ray", "torch", "pytorch_lightning"},
    ),
    (["raylab.cluster.train_entry"], {"torch", "pytorch_lightning"}),
    (["raylab.cluster.pipeline", "raylab.cluster.tune"], {"lightning", "pytorch_lightning"}),
]


def test_importing_brings_nothing_forbidden_along() -> None:
    """Importing torch and Lightning takes seconds in every process that a job starts."""
    script = (
        "import importlib, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"for modules, absent in {STAGES!r}:\n"
        "    for name in modules: importlib.import_module(name)\n"
        "    assert not absent & sys.modules.keys(), (modules, absent & sys.modules.keys())\n"
        "assert 'raylab' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
