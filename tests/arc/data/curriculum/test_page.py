"""The page of the curriculum."""

from raylab.arc.data.curriculum.families import FAMILIES
from tests.curriculum_page import PAGE, PICTURE, ROOT, best_rules, table


def test_the_table_is_that_of_the_families() -> None:
    """If not: python -m tests.curriculum_page."""
    assert table() in PAGE.read_text()
    assert f"small tasks of {len(FAMILIES)} families" in (ROOT / "jobs/guide/train.md").read_text()
    assert PICTURE.stat().st_size < 400_000


def test_no_family_is_solved_by_a_rule_that_learns_nothing() -> None:
    for family, (_, grids, solved) in best_rules().items():
        assert grids == solved == 0, family
