"""Prints what the fault tests observed, and writes it where `--fault-table` says."""

from pathlib import Path
from typing import Any

import pytest

from tests.faults.table import ROW, as_table, write_table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-table", type=Path, help="file that gets the table if all tests pass")


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    passed = terminalreporter.stats.get("passed", [])
    rows = [
        (report.nodeid.rpartition("::")[2], value)
        for report in passed
        for name, value in report.user_properties
        if name == ROW
    ]
    if not rows:
        return
    table = as_table(rows)
    terminalreporter.write_line(table)
    path = config.getoption("--fault-table", default=None)
    if path is not None and exitstatus == 0:
        write_table(path, table)
