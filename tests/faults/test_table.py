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
    tests = [
        f"{fault}[{job}]"
        for fault, jobs in (
            ("test_lost_node", [kind.job for kind in JOBS]),
            ("test_resized", ["train"]),
            ("test_lost_driver", [kind.job for kind in JOBS]),
            ("test_lost_head", [kind.job for kind in JOBS]),
        )
        for job in jobs
    ]
    assert {test.split("[")[0] for test in tests} == {
        name for name in vars(test_faults) if name.startswith("test_")
    }
    assert re.findall(r"^\| `(\w+\[\w+\])` \|", table, re.M) == tests
    assert len(table.strip().splitlines()) == len(tests) + 2
