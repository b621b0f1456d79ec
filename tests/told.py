"""What a job tells with `log=json`, read back."""

import json
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def lines_of(text: str) -> list[Line]:
    """Every line as an object with what all have; fails on anything else."""
    lines = [_line(line) for line in text.splitlines()]
    for line in lines:
        assert line.keys() >= {"time", "level", "job", "run", "run_id", "message"}
    return lines


def id_in(run: Path) -> str:
    """The id in the record of a run directory."""
    return json.loads((run / "record.json").read_text())["id"]


def _line(text: str) -> Line:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise AssertionError(f"no JSON: {text}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
