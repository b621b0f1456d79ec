import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.arc.config.sections import DataConfig
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import TEST, TRAIN, VAL, split_tasks
from raylab.arc.data.tasks import Pair, Task
from raylab.core.errors import DataError


def tasks_of_sizes(sizes: dict[str, int]) -> list[Task]:
    source = np.zeros((1, 1), np.uint8)
    return [
        Task(id_, (Pair(source, np.zeros((1, size), np.uint8)),)) for id_, size in sizes.items()
    ]


def tasks_of(ids: str) -> list[Task]:
    return tasks_of_sizes(dict.fromkeys(ids, 1))


def leaders(tasks: list[Task], same: list[set[str]]) -> dict[str, str]:
    """The first id of each task, of which `same` are one."""
    return {
        task.id: min(next((ids for ids in same if task.id in ids), {task.id})) for task in tasks
    }


def sides_of(split: dict[str, int]) -> tuple[list[str], list[str], list[str]]:
    """The sorted ids of training, validation and test."""
    train, val, test = (
        sorted(id_ for id_, own in split.items() if own == side) for side in (TRAIN, VAL, TEST)
    )
    return train, val, test


def split_by(path: Path, ids: str, **options: Any) -> tuple[str, ...]:
    config = DataConfig(split=path, **options)
    split = split_tasks(tasks_of(ids), dict.fromkeys(ids, "g"), config)
    return tuple("".join(side) for side in sides_of(split))


def split_file(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "split.json"
    path.write_text(json.dumps(content))
    return path


# Drawn splits


def many(n: int) -> tuple[list[Task], dict[str, str]]:
    """`n` tasks of distinct sizes in groups of 1/2, 1/3 and 1/6 of them."""
    tasks = tasks_of_sizes({f"t{i:03}": 1 + i * 7 % 29 for i in range(n)})
    return tasks, {task.id: "aaabbc"[i % 6] for i, task in enumerate(tasks)}


@pytest.mark.parametrize(
    ("n", "test_fraction", "val_fraction", "n_test", "n_val"),
    [
        # 400 * 0.23 = 92, and 308 * 0.1 = 30.8.
        (400, 0.23, 0.1, 92, 31),
        # 18 * 0.23 = 4.14, and 14 * 0.25 = 3.5.
        (18, 0.23, 0.25, 4, 4),
        (10, 0.01, 0.01, 1, 1),
        (10, 0.99, 0.99, 8, 1),
        (10, 0.5, 0.99, 5, 4),
        (3, 0.23, 0.1, 1, 1),
    ],
)
def test_numbers_of_tasks_on_each_side(
    n: int, test_fraction: float, val_fraction: float, n_test: int, n_val: int
) -> None:
    tasks, groups = many(n)
    config = DataConfig(test_fraction=test_fraction, val_fraction=val_fraction)
    split = split_tasks(tasks, groups, config)
    train, val, test = sides_of(split)
    assert (len(val), len(test)) == (n_val, n_test)
    assert train and len(split) == n
    assert split_tasks(tasks[::-1], groups, config) == split
    if test_fraction < 0.9:
        published = config.model_copy(update={"select_on_test": True})
        both = sides_of(split_tasks(tasks, groups, published))
        assert both == (sorted(train + val), [], test)


@pytest.mark.parametrize("seed", range(8))
def test_groups_get_their_share_rounded_down_or_up(seed: int) -> None:
    tasks, groups = many(100)
    config = DataConfig(split_seed=seed, val_fraction=0.2)
    train, val, test = sides_of(split_tasks(tasks, groups, config))
    for side, size, share in (
        (test, Counter(groups.values()), 0.23),
        # 77 tasks are left, of which 15 validate.
        (val, Counter(groups[id_] for id_ in train + val), 15 / 77),
    ):
        drawn = Counter(groups[id_] for id_ in side)
        for group, n in size.items():
            assert math.floor(n * share) <= drawn[group] <= math.ceil(n * share)


@pytest.mark.parametrize("seed", range(8))
def test_terciles_of_output_size_are_balanced_within_a_group(seed: int) -> None:
    # one group, 30 tasks, sizes 1..30: 10 tasks a tercile, a fifth of each is 2
    sizes = {f"t{i:02}": 1 + i for i in range(30)}
    config = DataConfig(split_seed=seed, test_fraction=0.2)
    *_, test = sides_of(split_tasks(tasks_of_sizes(sizes), dict.fromkeys(sizes, "g"), config))
    assert Counter((sizes[id_] - 1) // 10 for id_ in test) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize(
    ("ids", "select_on_test", "needed"),
    [("", False, "3 tasks"), ("ab", False, "3 tasks"), ("a", True, "2 tasks")],
)
def test_too_few_tasks_cannot_be_split(ids: str, select_on_test: bool, needed: str) -> None:
    config = DataConfig(select_on_test=select_on_test)
    with pytest.raises(DataError, match=f"{needed} or more, not {len(ids)}") as caught:
        split_tasks(tasks_of(ids), dict.fromkeys(ids, "g"), config)
    assert "data.tasks" in str(caught.value)
    assert "data.split=FILE" in str(caught.value)


@pytest.mark.parametrize("seed", range(8))
def test_one_task_under_several_ids_stays_on_one_side(seed: int) -> None:
    tasks, groups = many(12)
    same = [{"t000", "t007", "t011"}, {"t001", "t002"}]
    config = DataConfig(split_seed=seed, val_fraction=0.3)
    split = split_tasks(tasks, groups, config, leaders(tasks, same))
    sides = [{*side} for side in sides_of(split)]
    assert sorted(id_ for side in sides for id_ in side) == [task.id for task in tasks]
    for ids in same:
        assert sum(ids <= side for side in sides) == 1
    # Nine distinct tasks: 2 are tested, and of the 7 others 2 validate.
    others = {"t007", "t011", "t002"}
    assert [len(side - others) for side in sides] == [5, 2, 2]


# Splits from a file


def test_split_file_of_three_lists_is_followed(
    tmp_path: Path,
) -> None:
    # The id x is of no loaded task.
    path = split_file(tmp_path, {"train": ["c", "a", "x"], "val": ["b"], "test": ["d"]})
    assert split_by(path, "bcda") == ("ac", "b", "d")
    with pytest.raises(DataError, match="two lists"):
        split_by(path, "abcd", select_on_test=True)


def test_validation_tasks_are_drawn_from_the_first_of_two_lists(tmp_path: Path) -> None:
    path = split_file(tmp_path, {"train": ["a", "b", "c", "d"], "val": ["e", "f"]})
    splits = [split_by(path, "fedcba", split_seed=seed, val_fraction=0.25) for seed in range(20)]
    for train, val, test in splits:
        assert test == "ef"
        assert sorted(train + val) == ["a", "b", "c", "d"]
    assert {val for _, val, _ in splits} == {*"abcd"}
    assert split_by(path, "abcdef", select_on_test=True) == ("abcd", "", "ef")
    with pytest.raises(DataError, match=r"needs 2 tasks or more, not 1.*select_on_test=true"):
        split_by(path, "aef", tasks=("a", "e", "f"))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"train": ["a"], "val": ["b"], "test": ["d"]}, "in none of the lists: c; "),
        ({"train": ["a"], "val": ["b", "c"], "test": ["d", "c"]}, "in both val and test: c"),
        ({"train": ["a", "b", "c", "d"], "val": []}, "none of the 4 loaded tasks is in val: "),
        ({"train": ["x"], "val": ["a", "b", "c", "d"]}, "none of the 4 loaded tasks is in train: "),
        ({"train": ["a"]}, "missing required field `val`; expected {"),
        ({"train": [], "val": [], "held": []}, "unknown field `held`"),
        ({"train": ["a"], "val": ["b", 3]}, "val[1]: Expected `str`, got `int`"),
    ],
)
def test_unusable_split_file_is_refused(tmp_path: Path, content: Any, fault: str) -> None:
    path = split_file(tmp_path, content)
    with pytest.raises(DataError) as caught:
        split_by(path, "abcd")
    assert str(path) in str(caught.value)
    assert fault in str(caught.value)


# The published task set


def test_default_split_of_the_training_tasks() -> None:
    tasks = load_tasks(DataConfig())
    groups = group_tasks(tasks)
    train, val, tested = sides_of(split_tasks(tasks, groups, DataConfig()))
    assert (len(train), len(val), len(tested)) == (277, 31, 92)
    test = Counter(groups[id_] for id_ in tested)
    for group, n in Counter(groups.values()).items():
        assert abs(test[group] - n * 92 / 400) < 1
