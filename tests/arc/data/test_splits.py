import json
import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.splits import Split, split_tasks
from raylab.arc.data.tasks import Pair, Task
from raylab.config.arc import DataConfig
from raylab.errors import DataError


def tasks_of_sizes(sizes: dict[str, int]) -> list[Task]:
    source = np.zeros((1, 1), np.uint8)
    return [
        Task(id_, (Pair(source, np.zeros((1, size), np.uint8)),)) for id_, size in sizes.items()
    ]


def tasks_of(ids: str) -> list[Task]:
    return tasks_of_sizes(dict.fromkeys(ids, 1))


def split_by(path: Path, ids: str, **options: Any) -> Split:
    return split_tasks(tasks_of(ids), dict.fromkeys(ids, "g"), DataConfig(split=path, **options))


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
    ("n", "fraction", "n_val"),
    [
        (400, 0.23, 92),
        (18, 0.23, 4),
        (10, 0.1, 1),
        (10, 0.01, 1),
        (10, 0.99, 9),
        (2, 0.23, 1),
        (3, 0.5, 2),
    ],
)
def test_number_of_validation_tasks(n: int, fraction: float, n_val: int) -> None:
    tasks, groups = many(n)
    split = split_tasks(tasks, groups, DataConfig(val_fraction=fraction))
    assert len(split.val) == n_val
    assert sorted(split.train + split.val) == [task.id for task in tasks]
    assert list(split.train) == sorted(split.train)
    assert list(split.val) == sorted(split.val)


@pytest.mark.parametrize("seed", range(20))
def test_groups_get_their_share_rounded_down_or_up(seed: int) -> None:
    tasks, groups = many(100)
    split = split_tasks(tasks, groups, DataConfig(split_seed=seed))
    size = Counter(groups.values())
    val = Counter(groups[id_] for id_ in split.val)
    for group, n in size.items():
        assert math.floor(n * 0.23) <= val[group] <= math.ceil(n * 0.23)


@pytest.mark.parametrize("seed", range(20))
def test_terciles_of_output_size_are_balanced_within_a_group(seed: int) -> None:
    # one group, 30 tasks, sizes 1..30: 10 tasks a tercile, a fifth of each is 2
    sizes = {f"t{i:02}": 1 + i for i in range(30)}
    config = DataConfig(split_seed=seed, val_fraction=0.2)
    split = split_tasks(tasks_of_sizes(sizes), dict.fromkeys(sizes, "g"), config)
    assert Counter((sizes[id_] - 1) // 10 for id_ in split.val) == {0: 2, 1: 2, 2: 2}


def test_output_size_is_the_mean_over_all_pairs_of_a_task() -> None:
    def pair(cells: int) -> Pair:
        return Pair(np.zeros((1, 1), np.uint8), np.zeros((1, cells), np.uint8))

    # mean sizes 5, 5, 10, 10, 15, 15: each tercile gives one of its two tasks
    tasks = [
        Task("a", (pair(1),), (pair(9),)),
        Task("b", (pair(5),)),
        Task("c", (pair(2), pair(18))),
        Task("d", (pair(10),)),
        Task("e", (pair(1),), (pair(29),)),
        Task("f", (pair(15),)),
    ]
    for seed in range(20):
        config = DataConfig(split_seed=seed, val_fraction=0.5)
        val = split_tasks(tasks, dict.fromkeys("abcdef", "g"), config).val
        assert [len({"a", "b"} & {*val}), len({"c", "d"} & {*val}), len({"e", "f"} & {*val})] == [
            1,
            1,
            1,
        ]


def test_split_does_not_depend_on_the_order_of_the_tasks() -> None:
    tasks, groups = many(50)
    config = DataConfig()
    assert split_tasks(tasks[::-1], groups, config) == split_tasks(tasks, groups, config)


def test_seed_decides_the_split() -> None:
    tasks, groups = many(50)
    splits = {split_tasks(tasks, groups, DataConfig(split_seed=seed)).val for seed in range(10)}
    assert len(splits) == 10


def test_every_task_can_be_drawn() -> None:
    tasks, groups = many(12)
    drawn = Counter(
        id_
        for seed in range(200)
        for id_ in split_tasks(tasks, groups, DataConfig(split_seed=seed)).val
    )
    # 3 of 12 tasks in each of 200 splits: 50 a task, standard deviation 6
    assert len(drawn) == 12
    assert all(20 <= count <= 80 for count in drawn.values())


@pytest.mark.parametrize("ids", ["", "a"])
def test_fewer_than_two_tasks_cannot_be_split(ids: str) -> None:
    with pytest.raises(DataError, match="two tasks or more") as caught:
        split_tasks(tasks_of(ids), dict.fromkeys(ids, "g"), DataConfig())
    assert f"not {len(ids)}" in str(caught.value)
    assert "data.tasks" in str(caught.value)
    assert "data.split=FILE" in str(caught.value)


# Splits from a file


def test_split_file_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = split_file(tmp_path, {"train": ["c", "a"], "val": ["b"]})
    assert split_by(path, "bca") == Split(train=("a", "c"), val=("b",))
    assert not caplog.records


@pytest.mark.parametrize("narrowed", [{"every": 2}, {"tasks": ("a", "b")}])
def test_ids_of_a_narrowed_task_set_may_be_missing_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, narrowed: Any
) -> None:
    path = split_file(tmp_path, {"train": ["a", "x"], "val": ["b", "y"]})
    assert split_by(path, "ab", **narrowed) == Split(train=("a",), val=("b",))
    assert not caplog.records


def test_ids_missing_from_a_whole_task_set_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = split_file(tmp_path, {"train": ["a", "x"], "val": ["b", "y"]})
    with caplog.at_level(logging.WARNING):
        assert split_by(path, "ab") == Split(train=("a",), val=("b",))
    (record,) = caplog.records
    assert f"{path}: 2 of its task ids are not loaded: x, y" in record.getMessage()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"train": ["a"], "val": ["b"]}, "neither in train nor in val: c, d; "),
        ({"train": ["a", "b", "c"], "val": ["d", "b", "c"]}, "in both train and val: b, c"),
        ({"train": ["a", "b", "c", "d"], "val": []}, "none of the 4 loaded tasks is in val: "),
        ({"train": ["x"], "val": ["a", "b", "c", "d"]}, "none of the 4 loaded tasks is in train: "),
        ({"train": ["a"]}, 'expected an object {"train": [ids], "val": [ids]}'),
        ({"train": [], "val": [], "test": []}, "expected an object"),
        (["a"], "expected an object"),
        ({"train": "abcd", "val": []}, "train: expected a list of task ids, found 'abcd'"),
        ({"train": ["a"], "val": ["b", 3]}, "val, entry 1: 3 is no task id"),
    ],
)
def test_unusable_split_file_is_refused(tmp_path: Path, content: Any, fault: str) -> None:
    path = split_file(tmp_path, content)
    with pytest.raises(DataError) as caught:
        split_by(path, "abcd")
    assert str(path) in str(caught.value)
    assert fault in str(caught.value)


def test_split_file_with_a_syntax_error_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text('{"train": [],\n"val": [,]}')
    with pytest.raises(DataError, match=r"split\.json: not valid JSON: .* at line 2 column 9"):
        split_by(path, "ab")


def test_missing_split_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        split_by(tmp_path / "none.json", "ab")


# The published task set


def test_default_split_of_the_training_tasks() -> None:
    tasks = load_tasks(DataConfig())
    groups = group_tasks(tasks)
    split = split_tasks(tasks, groups, DataConfig())
    assert (len(split.train), len(split.val)) == (308, 92)
    val = Counter(groups[id_] for id_ in split.val)
    for group, n in Counter(groups.values()).items():
        assert abs(val[group] - n * 92 / 400) < 1


def test_published_split(shared_data: Path) -> None:
    path = shared_data / "arc_split_308_92.json"
    if not path.exists():
        pytest.skip(f"{path.name} is absent")
    tasks = load_tasks(DataConfig())
    split = split_tasks(tasks, group_tasks(tasks), DataConfig(split=path))
    assert (len(split.train), len(split.val)) == (308, 92)
