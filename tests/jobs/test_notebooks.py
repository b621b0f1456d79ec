"""The notebooks of the guide run to their end; as a program it stores what their cells show.

python -m tests.jobs.test_notebooks
"""

import ast
import asyncio
import json
import os
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "jobs" / "guide").glob("*.ipynb"))
MEASURED = {"quality"}
"""Notebooks whose figures are the same on every machine."""


async def run_cells(notebook: dict[str, Any]) -> None:
    """Runs the code cells in order, within an event loop as in a notebook, and stores outputs."""
    names: dict[str, Any] = {}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        *body, last = ast.parse("".join(cell["source"])).body
        value = None
        with redirect_stdout(StringIO()) as printed:
            if isinstance(last, ast.Expr):
                exec(compile(ast.Module(body, []), "cell", "exec"), names)
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            else:
                exec(compile(ast.Module([*body, last], []), "cell", "exec"), names)
        cell["execution_count"], cell["outputs"] = number, []
        if text := printed.getvalue().replace(f"{Path.cwd()}/", ""):
            stream = {"output_type": "stream", "name": "stdout", "text": as_lines(text)}
            cell["outputs"].append(stream)
        if value is not None:
            shown = {"text/plain": as_lines(repr(value))}
            if hasattr(value, "_repr_html_"):
                shown["text/html"] = as_lines(value._repr_html_())
            result = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
            cell["outputs"].append({**result, "data": shown})


def as_lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_shows_what_the_page_shows(
    path: Path, ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If not: python -m tests.jobs.test_notebooks."""
    monkeypatch.chdir(tmp_path)
    stored, fresh = (json.loads(path.read_text()) for _ in range(2))
    asyncio.run(run_cells(fresh))
    before, after = (
        [cell.get("outputs", []) for cell in notebook["cells"]] for notebook in (stored, fresh)
    )
    for old, new in zip(before, after, strict=True):
        assert [output["output_type"] for output in old] == [o["output_type"] for o in new]
        if path.stem in MEASURED:
            assert [output.get("data") for output in old] == [o.get("data") for o in new]


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            notebook = json.loads(path.read_text())
            asyncio.run(run_cells(notebook))
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
