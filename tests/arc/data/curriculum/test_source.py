"""The curriculum as a source of tasks, and its splits."""

from typing import Any

import numpy as np
import pytest

from raylab.arc.config.sections import DataConfig
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import load_sides
from raylab.core.errors import DataError
from tests.arc.conftest import least_form
from tests.arc.tasks import as_json


def curriculum(pairs: int = 8, /, *, seed: int = 0, **data: Any) -> DataConfig:
    """Three families at three levels, unless told otherwise."""
    families = {"families": ("flip_rows", "recolour", "sort"), "levels": (1, 2, 3), "seed": seed}
    drawn = families | data.pop("curriculum", {})
    return DataConfig.model_validate(
        {"source": "curriculum", "pairs_per_task": pairs, "curriculum": drawn, **data}
    )


def test_ids_name_family_level_and_variant() -> None:
    tasks = load_tasks(curriculum(curriculum={"levels": (2, 1), "variants": 3}))
    expected = {
        "flip_rows": ["flip_rows-1", "flip_rows-2"],
        "recolour": [f"recolour-{level}-{variant:02}" for level in (1, 2) for variant in (1, 2, 3)],
        # There are two rules: rising and falling.
        "sort": [f"sort-{level}-{variant:02}" for level in (1, 2) for variant in (1, 2)],
    }
    assert [task.id for task in tasks] == [id_ for ids in expected.values() for id_ in ids]
    assert all(len(task.demonstrations) == 8 and not task.questions for task in tasks)
    groups = group_tasks(tasks)
    assert (groups["recolour-2-03"], groups["flip_rows-1"]) == ("recolour-2", "flip_rows-1")


def test_a_pair_depends_on_seed_task_and_index_alone() -> None:
    few, more, other = (load_tasks(curriculum(n, seed=s)) for n, s in ((4, 1), (9, 1), (4, 2)))
    alone = load_tasks(curriculum(4, seed=1, tasks=["sort-2-01"]))
    by_id = {task.id: task for task in few}
    assert as_json(alone[0].pairs) == as_json(by_id["sort-2-01"].pairs)
    for task, longer, drawn in zip(few, more, other, strict=True):
        assert as_json(longer.pairs)[:4] == as_json(task.pairs) != as_json(drawn.pairs)
        assert task.id == drawn.id


def test_unknown_families_are_refused() -> None:
    with pytest.raises(DataError, match=r"there is no family recolor \(nearest: recolour\)"):
        load_tasks(curriculum(curriculum={"families": ["recolor"]}))


def test_the_levels_of_a_rule_stay_on_one_side_of_a_split_by_task() -> None:
    families = {"families": ("recolour", "shift", "tile"), "variants": 3}
    sides = load_sides(curriculum(8, split_by="task", curriculum=families))
    train, val, test = (
        {(id_.split("-")[0], *id_.split("-")[2:]) for id_ in sides.tasks_of(side)}
        for side in (sides.train, sides.val, sides.test)
    )
    assert not train & val and not (train | val) & test
    assert len(train | val | test) == 8


def test_tasks_of_different_sides_share_no_pair_up_to_colours_and_symmetries() -> None:
    """The variants of a family differ in colours, and so may draw one pair recoloured."""
    families = {"families": ("outline", "ray", "flip_rows"), "levels": (1,), "variants": 12}
    data = curriculum(60, curriculum=families, split_by="task")
    sides = load_sides(data)
    pairs = [pair for task in load_tasks(data) for pair in task.pairs]
    forms = [least_form(pair) for pair in pairs]
    train, val, test = (
        {forms[pair] for pair in side.tolist()} for side in (sides.train, sides.val, sides.test)
    )
    assert not train & val and not train & test and not val & test
    assert train and val and test
    tasks = sides.store.task_of
    # The test is whole. Of the others something is left out, also where it would be shown.
    tested = np.isin(tasks, tasks[sides.test])
    assert len(sides.test) == tested.sum() < len(pairs) - len(sides.train) - len(sides.val)
    shown = {forms[pair] for own in sides.store.demonstrations for pair in own.tolist()}
    assert shown == train | val | test
    of_trained = [sides.store.demonstrations[task] for task in np.unique(tasks[sides.train])]
    assert {forms[pair] for pair in np.concatenate(of_trained)} == train
