"""The page of the curriculum."""

import numpy as np
from matplotlib.collections import QuadMesh

from raylab.arc.data.curriculum.source import FAMILIES
from raylab.arc.data.tasks import Pair
from tests.curriculum_page import PAGE, PICTURE, ROOT, best_rules, table, tasks_figure


def test_the_table_is_that_of_the_families() -> None:
    """If not: python -m tests.curriculum_page."""
    assert table() in PAGE.read_text()
    for document in ("jobs/README.md", "CHANGELOG.md"):
        assert f"small tasks of {len(FAMILIES)} families" in (ROOT / document).read_text()
    assert PICTURE.stat().st_size < 400_000


def test_no_family_is_solved_by_a_rule_that_learns_nothing() -> None:
    for family, (_, grids, solved) in best_rules().items():
        assert grids == solved == 0, family


def test_the_picture_shows_input_and_output_of_every_pair() -> None:
    grids = [np.full((n, n + 1), n, np.uint8) for n in range(1, 9)]
    pairs = [Pair(*grids[n : n + 2]) for n in range(0, 8, 2)]
    figure = tasks_figure({"a": pairs[:2], "b": pairs[2:]})
    drawn = [mesh.get_array() for mesh in figure.axes[0].collections if isinstance(mesh, QuadMesh)]
    assert len(drawn) == len(grids)
    assert all(np.array_equal(mesh, grid) for mesh, grid in zip(drawn, grids, strict=True))
    assert {text.get_text() for text in figure.axes[0].texts} == {"a", "b", "→"}
