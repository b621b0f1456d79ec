"""The lines of a job with `log=json`, read back."""

import json
from pathlib import Path
from typing import Any

import msgspec

Line = dict[str, Any]


def lines_of(text: str) -> list[Line]:
    """Every line as an object with what all have; fails on anything else."""
    # NaN and infinity are refused, which json would read.
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    for line in lines:
        assert line.keys() >= {"time", "level", "job", "run", "run_id", "message"}
    return lines


def id_in(run: Path) -> str:
    """The id in the record of a run directory."""
    return json.loads((run / "record.json").read_text())["id"]
