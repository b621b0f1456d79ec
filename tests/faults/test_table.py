"""The table of failures in deploy/README.md has a row for every fault test."""

from pathlib import Path

from tests.faults import test_faults
from tests.faults.jobs import JOBS
from tests.faults.table import NAME, as_table, table_in, write_table

ROOT = Path(__file__).parents[2]


def test_every_fault_test_has_its_row_in_the_readme() -> None:
    table = table_in((ROOT / "deploy" / "README.md").read_text())
    faults = [name for name in vars(test_faults) if name.startswith("test_lost_")]
    tests = [f"{fault}[{kind.job}]" for fault in faults for kind in JOBS]
    assert len(tests) == 15
    assert NAME.findall(table) == tests
    assert len(table.strip().splitlines()) == len(tests) + 2


def test_the_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- faults -->\nold\n<!-- /faults -->\nafter\n")
    table = as_table([("test_lost_node[train]", ["a node", "1 epoch", "9 s"])])
    for _ in range(2):
        write_table(page, table)
        assert page.read_text() == (
            "before\n<!-- faults -->\n"
            "| test | lost | done again | wall time |\n| --- | --- | --- | --- |\n"
            "| `test_lost_node[train]` | a node | 1 epoch | 9 s |\n"
            "<!-- /faults -->\nafter\n"
        )
    assert NAME.findall(table_in(page.read_text())) == ["test_lost_node[train]"]
