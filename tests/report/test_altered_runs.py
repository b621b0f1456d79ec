"""Comparisons of runs whose files were altered: they are compared or listed with the reason."""

import json
import random
from io import StringIO
from pathlib import Path

from rich.console import Console

from raylab.report.comparison.page import comparison_tables, render_comparison
from raylab.report.comparison.records import ComparisonReport, compare, find_runs
from raylab.report.table import as_rich
from raylab.runs.run import REPORT, Run
from tests.fuzzing import COUNT, altered, altered_values, limits
from tests.report.runs import content, every_kind, train


def reported(runs: dict[str, Run], place: Path) -> ComparisonReport:
    """The comparison, after all that the job makes of it."""
    comparison = compare(runs)
    render_comparison("c", "/runs/c", comparison)
    console = Console(file=StringIO(), width=100)
    for table in comparison_tables(comparison.report):
        console.print(as_rich(table))
    Run.at(str(place)).write_record(comparison.report, REPORT)
    return comparison.report


def alter(file: Path, whole: bytes, draw: random.Random) -> None:
    if draw.random() < 0.2:
        file.write_bytes(altered(whole, draw))
    else:
        file.write_text(json.dumps(altered_values(json.loads(whole), draw)))


def test_altered_runs_never_end_the_comparison(tmp_path: Path) -> None:
    names = every_kind(tmp_path, content())
    train(tmp_path, "whole", 0.5)
    runs = find_runs([*names, "whole"], str(tmp_path))
    files = {
        file: file.read_bytes() for name in names for file in (tmp_path / name).rglob("*.json")
    }
    expected = reported(runs, tmp_path / "c").figures["models"]["whole"]
    for number in range(max(6, COUNT // 10)):
        draw = random.Random(number)
        chosen = draw.sample(list(files), draw.choice((1, 2, len(files))))
        for file in chosen:
            alter(file, files[file], draw)
        try:
            with limits():
                comparison = reported(runs, tmp_path / "c")
        except BaseException as error:
            error.add_note(f"set {number}")
            raise
        assert comparison.figures["models"]["whole"] == expected
        assert comparison.runs["whole"].problem is None
        for file in chosen:
            file.write_bytes(files[file])
