"""The import direction of the house."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BELOW = {
    "core": set[str](),
    "llm": {"core"},
    "benchmark": {"core"},
    "arc": {"core", "benchmark"},
    "label": {"core", "llm", "benchmark"},
    "together": {"core", "llm", "benchmark", "arc", "label"},
    "jobs": {"core", "llm", "benchmark", "arc", "label", "together"},
}
"""The rooms, each with those that it may import."""
OWNERS = {
    "lightning": set[str](),
    "torch": {"arc", "together"},
    "pytorch_lightning": {"arc"},
    "torchmetrics": {"arc"},
    "openai": {"llm", "together"},
    "sqlalchemy": {"label"},
    "hydra": {"core"},
    "omegaconf": {"core"},
}
"""Outside packages, each with the rooms that may import it."""
FACE = ROOT / "raylab" / "__init__.py"
"""Imports nothing but on use, which tests/test_public.py holds."""
MODULES = sorted(
    path for root in ("raylab", "jobs") for path in (ROOT / root).rglob("*.py") if path != FACE
)


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if parts[0] == "jobs" else parts[1]


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


def offenders(names: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """The files for which there are names, with these."""
    return {str(path.relative_to(ROOT)): bad for path in MODULES if (bad := names(path))}


def modules_below(*folders: str) -> list[str]:
    """The modules in folders of raylab/ that import no Ray."""
    return [
        module_name(path)
        for folder in folders
        for path in MODULES
        if path.is_relative_to(ROOT / "raylab" / folder) and "on_ray" not in path.parts
    ]


def test_rooms_import_only_rooms_below() -> None:
    def upward(path: Path) -> set[str]:
        own = room(path)
        allowed = BELOW[own] | {own}
        split = [name.split(".") for name in imports(path)]
        rooms = {parts[1] for parts in split if parts[0] == "raylab" and len(parts) > 2}
        return rooms - allowed | ({"jobs"} & {parts[0] for parts in split})

    assert offenders(upward) == {}


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
    places: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_outside_packages_stay_in_their_rooms() -> None:
    def strangers(path: Path) -> set[str]:
        outside = {name.split(".")[0] for name in imports(path)}
        bad = {name for name in outside & OWNERS.keys() if room(path) not in OWNERS[name]}
        if "on_ray" not in path.parts:
            bad |= outside & {"ray"}
        return bad | {name for name in imports(path) if name.startswith("ray.air")}

    assert offenders(strangers) == {}


Stage = tuple[list[str], set[str]]
"""Modules, and the packages that may not be there when these are imported after the earlier."""

STAGES: list[Stage] = [
    (
        modules_below("core/config", "core/errors.py", "core/log.py", "core/entrypoint.py"),
        {"ray", "torch", "numpy", "pandas", "pyarrow"},
    ),
    # Up to the first line of a quality job.
    (
        ["raylab.benchmark.logs.trees", "raylab.core.runs.run", "raylab.core.on_ray"],
        {"ray", "torch", "pandas", "scipy", "matplotlib"},
    ),
    (
        modules_below("core", "llm", "benchmark", "label"),
        {"ray", "torch", "pytorch_lightning"},
    ),
    (["raylab.arc.on_ray.train_worker"], {"torch", "pytorch_lightning"}),
    (["raylab.together.pipeline", "raylab.arc.on_ray.tune"], {"lightning", "pytorch_lightning"}),
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
