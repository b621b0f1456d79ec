"""Prints what the fault tests observed, and writes it where `--fault-table` says."""

from pathlib import Path
from typing import Any

import pytest

from tests.tables import markdown, properties, write_table

ROW = "faults"
"""Property of a test that holds its row: job, what was lost and done again, the time it took."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-table", type=Path, help="file that gets the table if all tests pass")


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    rows = [row for _, row in properties(terminalreporter, ROW, "passed")]
    if not rows:
        return
    table = markdown([("job", "lost", "done again", "wall time (undisturbed)"), *rows])
    terminalreporter.write_line(table)
    path = config.getoption("--fault-table", default=None)
    if path is not None and exitstatus == 0:
        write_table(path, ROW, table)
