"""Runs the notebooks of the guide, and stores what their cells show.

python -m tests.notebooks
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

GUIDE = Path(__file__).parents[1] / "jobs" / "guide"
NOTEBOOKS = sorted(GUIDE.glob("*.ipynb"))


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


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            notebook = json.loads(path.read_text())
            asyncio.run(run_cells(notebook))
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
