"""The notebooks of the guide run to their end."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import NOTEBOOKS, run_cells

MEASURED = {"quality"}
"""Notebooks whose figures are the same on every machine."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_shows_what_the_page_shows(
    path: Path, ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If not: python -m tests.notebooks."""
    monkeypatch.chdir(tmp_path)
    stored = json.loads(path.read_text())
    fresh = json.loads(path.read_text())
    asyncio.run(run_cells(fresh))
    for before, after in zip(stored["cells"], fresh["cells"], strict=True):
        kinds = [
            [output["output_type"] for output in cell.get("outputs", [])]
            for cell in (before, after)
        ]
        assert kinds[0] == kinds[1]
    if path.stem in MEASURED:
        assert tables(fresh) == tables(stored)


def tables(notebook: dict[str, Any]) -> list[object]:
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [output["data"] for output in outputs if output["output_type"] == "execute_result"]
