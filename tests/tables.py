"""Tables that tests measure: their rows are properties of tests, their place is in a document."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def properties(terminalreporter: Any, name: str, *outcomes: str) -> list[tuple[str, Any]]:
    """Name of the test and value of each property of a name, of tests with these outcomes."""
    return [
        (report.nodeid.rpartition("::")[2], value)
        for outcome in outcomes
        for report in terminalreporter.stats.get(outcome, [])
        for key, value in getattr(report, "user_properties", ())
        if key == name
    ]


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """A table, whose first row is the header."""
    header, *others = rows
    lines = [header, ("---",) * len(header), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read_table(path: Path, mark: str) -> str:
    """What stands between the marks of a file."""
    text = path.read_text(encoding="utf-8")
    return text.partition(f"<!-- {mark} -->")[2].partition(f"<!-- /{mark} -->")[0]


def write_table(path: Path, mark: str, table: str) -> None:
    """Puts a table between the marks of a file."""
    text = path.read_text(encoding="utf-8")
    old = f"<!-- {mark} -->{read_table(path, mark)}<!-- /{mark} -->"
    new = f"<!-- {mark} -->\n{table}\n<!-- /{mark} -->"
    path.write_text(text.replace(old, new), encoding="utf-8")
