"""The curriculum as a source of tasks, and its splits."""

from typing import Any

import numpy as np
import pytest

from raylab.arc.data.content import fingerprints
from raylab.arc.data.curriculum.source import TaskName
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sides import Sides, load_sides
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import LEFT_OUT, TEST, TRAIN, VAL, split_pairs
from raylab.arc.data.store import Indices, store_pairs
from raylab.arc.data.tasks import Pair, Task
from raylab.config.arc import DataConfig
from raylab.config.compose import load_config
from raylab.config.jobs import TrainConfig
from raylab.errors import ConfigError, DataError
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
    assert all(str(TaskName.of(task.id)) == task.id for task in tasks)
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


def test_the_rule_of_a_task_does_not_depend_on_the_seed() -> None:
    first, second = (
        {
            tuple(sorted({int(a), int(b)}))
            for pair in task.demonstrations
            for a, b in zip(pair.input.flat, pair.output.flat, strict=True)
            if a != b
        }
        for seed in (1, 2)
        for task in load_tasks(curriculum(seed=seed, tasks=["recolour-3-02"]))
    )
    assert first == second and len(first) == 3


def test_parts_and_generations_are_taken_as_of_other_sources() -> None:
    kept = load_tasks(curriculum(every=5))
    assert [task.id for task in kept] == ["flip_rows-1", "recolour-2-01", "sort-1-02"]
    (task,) = load_tasks(curriculum(generation=3, tasks=["flip_rows-1"]))
    (plain,) = load_tasks(curriculum(tasks=["flip_rows-1"]))
    assert task.group == "flip_rows-1" and as_lists(task) != as_lists(plain)
    whole = load_tasks(curriculum(tasks=["flip_rows-1"], pairs_per_task=None))
    assert len(whole[0].pairs) == 600


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"curriculum": {"families": ["recolor"]}},
            r"families: there is no family recolor \(nearest: recolour\); the families are bars, ",
        ),
        ({"curriculum": {"families": []}}, "families is an empty list"),
        ({"tasks": ["flip_rows-4"]}, r"holds no task flip_rows-4 \(nearest: flip_rows-\d\)"),
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.path=x"], "source curriculum reads no files"),
        (["data.split_by=level"], r"such as data\.curriculum\.levels=\[1,2,3\]"),
        (["data.curriculum.levels=[4]"], r"data\.curriculum\.levels"),
        (["data=arc_agi_1", "data.split_by=family"], "is for data=curriculum alone"),
        (["data.split_by=family", "data.split=x.json"], "leave one of them out"),
    ],
)
def test_keys_that_do_not_fit_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(TrainConfig, ["data=curriculum", *settings])


def test_the_shipped_configuration_splits_pairs_of_level_one() -> None:
    data = load_config(TrainConfig, ["data=curriculum", "data.pairs_per_task=20"]).data
    sides = load_sides(data)
    # 20 * 0.1 = 2, and 18 * 0.05 = 0.9.
    of_first = [np.count_nonzero(sides.store.task_of[side] == 0) for side in every_side(sides)]
    assert (sides.store.task_ids[0], of_first) == ("bars-1", [17, 1, 2])
    assert len(sides.groups) == 27


def every_side(sides: Sides) -> list[Indices]:
    return [sides.train, sides.val, sides.test]


def contents(sides: Sides, side: Indices) -> set[int]:
    return {*sides.contents[side].tolist()}


def names(sides: Sides, side: Indices) -> set[TaskName]:
    return {*map(TaskName.of, sides.tasks_of(side))}


@pytest.mark.parametrize(
    ("split_by", "given", "held_out"),
    [
        ("level", {}, {3}),
        ("level", {"test_levels": (1, 2)}, {1, 2}),
        ("family", {"test_families": ("sort",)}, {"sort"}),
        ("family", {}, None),
        ("task", {}, None),
    ],
)
def test_what_is_held_out_is_neither_trained_on_nor_chosen_on(
    split_by: str, given: dict[str, Any], held_out: set[int] | set[str] | None
) -> None:
    sides = load_sides(curriculum(20, split_by=split_by, curriculum=given))
    train, val, test = (names(sides, side) for side in every_side(sides))
    if split_by == "level":
        assert {name.level for name in test} == held_out
        assert not {name.level for name in train | val} & {name.level for name in test}
    else:
        assert not {name.family for name in train | val} & {name.family for name in test} or (
            split_by == "task"
        )
        assert held_out is None or {name.family for name in test} == held_out
    if split_by == "task":
        # The levels of one rule are one task.
        for one, other in ((train, val), (train, test), (val, test)):
            rules = [{(name.family, name.variant) for name in side} for side in (one, other)]
            assert not rules[0] & rules[1]
    else:
        assert val == train and len(sides.test) == 20 * len(test)
        # 20 * 0.1 = 2 pairs of a task validate, or more where pairs have equal content.
        own = sides.store.task_of
        assert min(np.bincount(own[sides.val])[own[sides.train]]) >= 2
        assert len(sides.val) < 3 * len(train)
    known = contents(sides, sides.train) | contents(sides, sides.val)
    assert not known & contents(sides, sides.test)
    assert not contents(sides, sides.train) & contents(sides, sides.val)


def test_held_out_families_are_drawn_by_the_seed() -> None:
    drawn = {
        tuple(
            {
                name.family
                for sides in [load_sides(curriculum(3, split_by="family", split_seed=seed))]
                for name in names(sides, sides.test)
            }
        )
        for seed in range(12)
    }
    # A share of 0.23 of three families is one.
    assert drawn == {("flip_rows",), ("recolour",), ("sort",)}


def test_the_held_out_side_may_choose_where_it_is_asked_to() -> None:
    sides = load_sides(curriculum(5, split_by="level", select_on_test=True))
    assert sides.val.tolist() == sides.test.tolist()
    assert len(sides.train) == 5 * len(sides.tasks_of(sides.train))


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


@pytest.mark.parametrize("split_seed", range(3))
def test_tasks_of_different_sides_share_no_pair_up_to_colours_and_symmetries(
    split_seed: int,
) -> None:
    """The variants of a family differ in colours, and so may draw one pair recoloured."""
    families = {"families": ("outline", "ray", "flip_rows"), "levels": (1,), "variants": 12}
    data = curriculum(60, curriculum=families, split_by="task")
    sides = load_sides(data.model_copy(update={"split_seed": split_seed}))
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
