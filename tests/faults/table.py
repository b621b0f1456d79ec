"""The table of deploy/README.md that the fault tests fill."""

import re
from collections.abc import Sequence
from pathlib import Path

ROW = "fault"
"""Property of a test that holds its row: what was lost, what was done again, and how long it took.
"""
HEADER = ("test", "lost", "done again", "wall time")
BEGIN, END = "<!-- faults -->", "<!-- /faults -->"
NAME = re.compile(r"^\| `(\w+\[\w+\])` \|", re.M)


def as_table(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A Markdown table of tests and their rows."""
    lines = [HEADER, ("---",) * len(HEADER), *((f"`{test}`", *row) for test, row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_in(text: str) -> str:
    """What is between the marks."""
    return text.partition(BEGIN)[2].partition(END)[0]


def write_table(path: Path, table: str) -> None:
    """Put the table between the marks of a file."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
