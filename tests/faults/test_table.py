"""The table of failures in deploy/README.md has a row for every fault test."""

import re
from pathlib import Path

from tests.faults import test_faults
from tests.faults.conftest import ROW
from tests.faults.jobs import JOBS
from tests.tables import read_table

ROOT = Path(__file__).parents[2]


def test_every_fault_test_has_its_row_in_the_readme() -> None:
    table = read_table(ROOT / "deploy" / "README.md", ROW)
    faults = [name for name in vars(test_faults) if name.startswith("test_lost_")]
    tests = [f"{fault}[{kind.job}]" for fault in faults for kind in JOBS]
    assert len(tests) == 15
    assert re.findall(r"^\| `(\w+\[\w+\])` \|", table, re.M) == tests
    assert len(table.strip().splitlines()) == len(tests) + 2
