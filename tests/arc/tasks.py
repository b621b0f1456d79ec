"""Grids and tasks by their digits, and as the JSON of their files."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from raylab.arc.data.tasks import Grid, Pair, Task


def grid(rows: str) -> Grid:
    """A grid by its rows of digits, such as `12/34`."""
    return np.array([[*map(int, row)] for row in rows.split("/")], np.uint8)


def pair(source: str, target: str) -> Pair:
    return Pair(grid(source), grid(target))


def task(*grids: str, id_: str = "t") -> Task:
    """A task of inputs and outputs by turns; the last pair is a question."""
    pairs = tuple(map(pair, grids[::2], grids[1::2]))
    return Task(id_, pairs[:-1], pairs[-1:])


def as_json(pairs: Iterable[Pair]) -> list[dict[str, list[list[int]]]]:
    """Pairs as files list them."""
    return [{"input": pair.input.tolist(), "output": pair.output.tolist()} for pair in pairs]


def as_arc(task: Task) -> dict[str, list[dict[str, list[list[int]]]]]:
    """A task in ARC JSON."""
    return {"train": as_json(task.demonstrations), "test": as_json(task.questions)}


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
