"""The curriculum as a source of tasks, and its splits."""

from typing import Any

import numpy as np
import pytest

from raylab.arc.data.content import fingerprints
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sides import Sides, load_sides
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import LEFT_OUT, TEST, TRAIN, VAL, split_pairs
from raylab.arc.data.store import Indices, store_pairs
from raylab.arc.data.tasks import Pair, Task
from raylab.config.arc import DataConfig
from raylab.errors import DataError
from tests.arc.conftest import RandomTasks, least_form


def curriculum(pairs: int = 8, /, *, seed: int = 0, **data: Any) -> DataConfig:
    """Three families at three levels, unless told otherwise."""
    of_curriculum = {
        "families": ("flip_rows", "recolour", "sort"),
        "levels": (1, 2, 3),
        "seed": seed,
        **data.pop("curriculum", {}),
    }
    return DataConfig.model_validate(
        {"source": "curriculum", "pairs_per_task": pairs, "curriculum": of_curriculum, **data}
    )


def as_lists(task: Task) -> list[list[list[list[int]]]]:
    return [[pair.input.tolist(), pair.output.tolist()] for pair in task.demonstrations]


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
    assert as_lists(alone[0]) == as_lists(by_id["sort-2-01"])
    for task, longer, drawn in zip(few, more, other, strict=True):
        assert as_lists(longer)[:4] == as_lists(task) != as_lists(drawn)
        assert task.id == drawn.id


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"curriculum": {"families": ["recolor"]}},
            r"families: there is no family recolor \(nearest: recolour\)",
        ),
        (
            {"split_by": "family", "curriculum": {"test_families": ["sorted"]}},
            r"test_families: there is no family sorted \(nearest: sort\)",
        ),
        (
            {"split_by": "family", "curriculum": {"test_families": ["crop"]}},
            r"tests 0 of 15 tasks \(family: crop\)",
        ),
        ({"split_by": "level", "tasks": ["sort-3-01"]}, r"tests 1 of 1 tasks \(level: 3\)"),
    ],
)
def test_what_is_unknown_or_leaves_no_side_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_sides(curriculum(**data))


def every_side(sides: Sides) -> list[Indices]:
    return [sides.train, sides.val, sides.test]


def parts(sides: Sides, *places: int) -> list[set[tuple[str, ...]]]:
    """Family, level and variant of the tasks of each side, or those of them at some places."""
    return [
        {tuple(id_.split("-")[at] for at in places) for id_ in sides.tasks_of(side)}
        for side in every_side(sides)
    ]


@pytest.mark.parametrize(
    ("split_by", "options", "place", "held_out"),
    [
        ("level", {}, 1, {("3",)}),
        ("level", {"test_levels": (1, 2)}, 1, {("1",), ("2",)}),
        ("family", {"test_families": ("sort",)}, 0, {("sort",)}),
        ("family", {}, 0, None),
    ],
)
def test_what_is_held_out_is_neither_trained_on_nor_chosen_on(
    split_by: str, options: dict[str, Any], place: int, held_out: set[tuple[str]] | None
) -> None:
    data = curriculum(20, split_by=split_by, curriculum=options)
    sides = load_sides(data)
    train, val, test = parts(sides, place)
    assert val == train and not train & test
    assert held_out in (None, test) and len(test) == len(held_out or "1")
    own = sides.store.task_of
    assert len(sides.test) == 20 * len(sides.tasks_of(sides.test))
    # 20 * 0.1 = 2 pairs of a task validate, or more where pairs have equal content.
    assert min(np.bincount(own[sides.val])[own[sides.train]]) >= 2
    assert len(sides.val) < 3 * len(sides.tasks_of(sides.train))
    trained, chosen, tested = ({*sides.contents[side].tolist()} for side in every_side(sides))
    assert not trained & chosen and not (trained | chosen) & tested
    published = load_sides(data.model_copy(update={"select_on_test": True}))
    assert published.val.tolist() == published.test.tolist() == sides.test.tolist()


def test_the_levels_of_a_rule_stay_on_one_side_of_a_split_by_task() -> None:
    families = {"families": ("recolour", "shift", "tile"), "variants": 3}
    sides = load_sides(curriculum(8, split_by="task", curriculum=families))
    train, val, test = parts(sides, 0, 2)
    assert not train & val and not (train | val) & test
    assert len(train | val | test) == 8


def test_pairs_of_held_out_tasks_are_not_trained_on_under_another_name(
    random_tasks: RandomTasks, caplog: pytest.LogCaptureFixture
) -> None:
    held, own = random_tasks(2, demonstrations=10, questions=0)
    recoloured = [Pair(9 - pair.input, 9 - pair.output) for pair in held.demonstrations[:3]]
    tasks = [Task("held", held.demonstrations), Task("own", (*recoloured, *own.demonstrations))]
    store = store_pairs(tasks)
    sides = split_pairs(store, fingerprints(store), DataConfig(), {"held"})
    # 10 * 0.1 = 1 validates.
    assert sides[:10].tolist() == [TEST] * 10
    assert sides[10:13].tolist() == [LEFT_OUT] * 3
    assert sorted(sides[13:].tolist()) == [TRAIN] * 9 + [VAL]
    assert "3 pairs are left out" in caplog.text


def test_tasks_of_different_sides_share_no_pair_up_to_colours_and_symmetries() -> None:
    """The variants of a family differ in colours, and so may draw one pair recoloured."""
    families = {"families": ("outline", "ray", "flip_rows"), "levels": (1,), "variants": 12}
    data = curriculum(60, curriculum=families, split_by="task")
    sides = load_sides(data)
    pairs = [pair for task in load_tasks(data) for pair in task.pairs]
    forms = [least_form(pair) for pair in pairs]
    train, val, test = ({forms[pair] for pair in side.tolist()} for side in every_side(sides))
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
