"""How fast score trees are read on Ray, against a plain loop over the same files."""

import contextlib
import io
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyarrow import fs
from rich.table import Table

from raylab.cluster.quality import measure_trees
from raylab.cluster.session import session
from raylab.config import BenchmarkConfig, ClusterConfig, QualityConfig
from raylab.entrypoint import console
from raylab.errors import ConfigError
from raylab.quality.benchmark import (
    GENERATIONS,
    LARGE_BYTES,
    LARGE_FILES,
    MODELS,
    SMALL_BYTES,
    SMALL_FILES,
    plain_means,
    write_tree,
)
from raylab.quality.trees import CACHE_DIRECTORY, SETTLED_NANOSECONDS
from raylab.runs import Run

SHAPES = {"small": (SMALL_FILES, SMALL_BYTES), "large": (LARGE_FILES, LARGE_BYTES)}
WARM_UP_SHAPE = (2, SMALL_BYTES)
AGREEMENT = 1e-12


def benchmark_quality(config: BenchmarkConfig) -> None:
    """Time both ways on two trees, print the ratios and write `metrics.json`.

    Before a clock runs, the files are in the page cache and Ray's workers have imported what they
    need. The time on Ray is that of a whole measurement as `jobs/quality.py` does it, intervals and
    score cache included; the plain loop only averages.

    Raises:
        RaylabError: the run's name is taken, or its storage is not a local directory.
    """
    run = Run.open(config, config.job)
    if not isinstance(run.filesystem, fs.LocalFileSystem):
        raise ConfigError("the benchmark of quality needs a local directory as storage=")
    base = Path(run.path)
    out = console()
    results: dict[str, Any] = {}
    with session(ClusterConfig()):
        write_tree(base / "warm-up", *WARM_UP_SHAPE)
        for _ in range(2):
            _measure(base / "warm-up", base)
        for size, shape in SHAPES.items():
            files = write_tree(base / size, *shape)
            out.print(f"{size}: {files:,} files in {MODELS * GENERATIONS} directories")
            time.sleep(SETTLED_NANOSECONDS / 1e9)
            plain_means(base / size)
            rounds: list[dict[str, float]] = []
            for number in range(config.rounds):
                rounds.append(_round(base / size, base))
                seconds = "  ".join(f"{way} {value:.3f} s" for way, value in rounds[-1].items())
                out.print(f"{size} round {number + 1}/{config.rounds}: {seconds}")
            results[size] = {"files": files, **_summary(rounds)}
            run.write_json("metrics.json", {"quality": results})
            shutil.rmtree(base / size)
    out.print(_table(results))
    run.finish()


def _round(root: Path, storage: Path) -> dict[str, float]:
    """Seconds of the plain loop, of a first measurement and of a second one."""
    shutil.rmtree(storage / CACHE_DIRECTORY, ignore_errors=True)
    plain, means = _timed(lambda: plain_means(root))
    first, quality = _timed(lambda: _measure(root, storage))
    second, again = _timed(lambda: _measure(root, storage))
    assert again["files"]["cached"] and not quality["files"]["cached"]
    assert all(abs(quality["models"][name] - mean) < AGREEMENT for name, mean in means.items())
    return {"plain": plain, "first": first, "second": second}


def _measure(root: Path, storage: Path) -> Mapping[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):
        return measure_trees(str(root), (), QualityConfig(), str(storage))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    done = work()
    return time.perf_counter() - start, done


def _summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Minimum and median over the rounds of the seconds and of the ratios within each round."""
    figures = {f"{way}_seconds": [r[way] for r in rounds] for way in ("plain", "first", "second")}
    for way in ("first", "second"):
        figures[f"{way}_ratio"] = [r["plain"] / r[way] for r in rounds]
    return {
        name: {"min": min(values), "median": statistics.median(values)}
        for name, values in figures.items()
    }


def _table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title="Reading scores on Ray, minimum and median of the rounds")
    table.add_column("files")
    columns = {
        "plain loop, s": ("plain_seconds", "{:.2f}"),
        "first run, s": ("first_seconds", "{:.2f}"),
        "second run, s": ("second_seconds", "{:.2f}"),
        "first, times as fast": ("first_ratio", "{:.1f}"),
        "second, times as fast": ("second_ratio", "{:.1f}"),
    }
    for label in columns:
        table.add_column(label, justify="right")
    for size, figures in results.items():
        cells = [
            " / ".join(form.format(figures[key][kind]) for kind in ("min", "median"))
            for key, form in columns.values()
        ]
        table.add_row(f"{figures['files']:,} {size}", *cells)
    return table
