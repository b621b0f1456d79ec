"""The names that `raylab` itself offers."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import raylab
from raylab.benchmark.config import QualityConfig
from raylab.core.config.compose import load_config
from raylab.core.runs.run import Run
from raylab.together import frames


def test_the_public_names_are_these_and_each_is_there_and_explained() -> None:
    assert raylab.__all__ == [
        "AutoregressiveModel",
        "Batch",
        "ConfigError",
        "GridModel",
        "ParallelModel",
        "RaylabError",
        "compute_grid_metrics",
        "conclude",
        "frames",
        "read_run",
        "start",
    ]
    assert set(raylab.__all__) <= set(dir(raylab))
    for name in raylab.__all__:
        assert inspect.getdoc(getattr(raylab, name)), name
    assert raylab.frames is frames


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'raylab' has no attribute 'trane'"):
        getattr(raylab, "trane")  # noqa: B009


def test_importing_raylab_imports_nothing_from_outside() -> None:
    script = "import json, sys, raylab; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = json.loads(done.stdout)
    bare = subprocess.run(
        [sys.executable, "-c", script.replace(", raylab", "")], capture_output=True, check=True
    )
    assert [name for name in loaded if name.startswith("raylab")] == ["raylab"]
    outside = {name.split(".")[0] for name in {*loaded} - {*json.loads(bare.stdout)}}
    assert outside <= sys.stdlib_module_names | {"raylab"}


def test_a_run_is_read_by_its_directory(tmp_path: Path) -> None:
    config = load_config(QualityConfig, [f"storage='{tmp_path}'", "name=one", "example=true"])
    Run.open(config)
    record = raylab.read_run(str(tmp_path / "one"))
    assert (record.job, record.name, record.config["example"]) == ("quality", "one", True)
    with pytest.raises(raylab.RaylabError, match="is no run: it has no record"):
        raylab.read_run(str(tmp_path / "two"))
