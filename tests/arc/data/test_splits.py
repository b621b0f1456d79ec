"""The splits by task, drawn or from a file, by pair and by question."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.arc.config.sections import CurriculumConfig, DataConfig
from raylab.arc.data.content import fingerprints
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import TEST, TRAIN, VAL, load_sides, split_pairs, split_tasks
from raylab.arc.data.tasks import Pair, Task, redraw, store_pairs
from raylab.core.errors import DataError
from tests.arc.conftest import fingerprint, make_tasks
from tests.arc.tasks import as_arc, pair, write_json


def tasks_of_sizes(sizes: dict[str, int]) -> list[Task]:
    return [Task(id_, (pair("0", "0" * size),)) for id_, size in sizes.items()]


def many(n: int) -> tuple[list[Task], dict[str, str]]:
    """`n` tasks of distinct sizes in groups of 1/2, 1/3 and 1/6 of them."""
    tasks = tasks_of_sizes({f"t{i:03}": 1 + i * 7 % 29 for i in range(n)})
    return tasks, {task.id: "aaabbc"[i % 6] for i, task in enumerate(tasks)}


def split_ids(
    tasks: Sequence[Task], groups: dict[str, str], same: dict[str, str] | None = None, **data: Any
) -> tuple[list[str], list[str], list[str]]:
    """The sorted ids of training, validation and test."""
    split = split_tasks(tasks, groups, DataConfig.model_validate(data), same)
    train, val, test = (
        sorted(id_ for id_, own in split.items() if own == side) for side in (TRAIN, VAL, TEST)
    )
    return train, val, test


def split_letters(ids: str, **data: Any) -> tuple[str, ...]:
    """The sides of tasks of one size and group, each named by a letter."""
    sides = split_ids(tasks_of_sizes(dict.fromkeys(ids, 1)), dict.fromkeys(ids, "g"), **data)
    return tuple(map("".join, sides))


# Drawn splits by task


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
    fractions = {"test_fraction": test_fraction, "val_fraction": val_fraction}
    train, val, test = split_ids(tasks, groups, **fractions)
    assert (len(val), len(test)) == (n_val, n_test)
    assert train and len(train + val + test) == n
    assert split_ids(tasks[::-1], groups, **fractions) == (train, val, test)
    if test_fraction < 0.9:
        published = split_ids(tasks, groups, select_on_test=True, **fractions)
        assert published == (sorted(train + val), [], test)


@pytest.mark.parametrize("seed", range(8))
def test_groups_get_their_share_rounded_down_or_up(seed: int) -> None:
    tasks, groups = many(100)
    train, val, test = split_ids(tasks, groups, split_seed=seed, val_fraction=0.2)
    for side, size, share in (
        (test, Counter(groups.values()), 0.23),
        # 77 tasks are left, and 15 of them validate.
        (val, Counter(groups[id_] for id_ in train + val), 15 / 77),
    ):
        drawn = Counter(groups[id_] for id_ in side)
        for group, n in size.items():
            assert math.floor(n * share) <= drawn[group] <= math.ceil(n * share)


@pytest.mark.parametrize("seed", range(8))
def test_terciles_of_output_size_are_balanced_within_a_group(seed: int) -> None:
    # one group, 30 tasks, sizes 1..30: 10 tasks a tercile, a fifth of each is 2
    sizes = {f"t{i:02}": 1 + i for i in range(30)}
    groups = dict.fromkeys(sizes, "g")
    *_, test = split_ids(tasks_of_sizes(sizes), groups, split_seed=seed, test_fraction=0.2)
    assert Counter((sizes[id_] - 1) // 10 for id_ in test) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize(
    ("ids", "select_on_test", "needed"),
    [("", False, "3 tasks"), ("ab", False, "3 tasks"), ("a", True, "2 tasks")],
)
def test_too_few_tasks_cannot_be_split(ids: str, select_on_test: bool, needed: str) -> None:
    with pytest.raises(DataError, match=f"{needed} or more, not {len(ids)}") as caught:
        split_letters(ids, select_on_test=select_on_test)
    assert "data.tasks" in str(caught.value) and "data.split=FILE" in str(caught.value)


def test_ids_that_are_one_task_are_counted_where_too_few_can_be_split() -> None:
    ids = dict.fromkeys("abcd", "a")
    with pytest.raises(DataError, match=r"3 tasks or more, not 1 \(4 ids that share pairs\)"):
        split_ids(tasks_of_sizes(dict.fromkeys("abcd", 1)), dict.fromkeys("abcd", "g"), ids)


@pytest.mark.parametrize("seed", range(8))
def test_one_task_under_several_ids_stays_on_one_side(seed: int) -> None:
    tasks, groups = many(12)
    same = [{"t000", "t007", "t011"}, {"t001", "t002"}]
    leaders = {id_: min(ids) for ids in [*({task.id} for task in tasks), *same] for id_ in ids}
    sides = split_ids(tasks, groups, leaders, split_seed=seed, val_fraction=0.3)
    assert sorted(id_ for side in sides for id_ in side) == [task.id for task in tasks]
    for ids in same:
        assert sum(ids <= {*side} for side in sides) == 1
    # Nine distinct tasks: 2 are tested, and of the 7 others 2 validate.
    assert [len({*side} - {"t007", "t011", "t002"}) for side in sides] == [5, 2, 2]


# Splits by task from a file


def test_split_file_of_three_lists_is_followed(tmp_path: Path) -> None:
    # The id x is of no loaded task.
    lists = {"train": ["c", "a", "x"], "val": ["b"], "test": ["d"]}
    path = write_json(tmp_path / "split.json", lists)
    assert split_letters("bcda", split=path) == ("ac", "b", "d")
    with pytest.raises(DataError, match="two lists"):
        split_letters("abcd", split=path, select_on_test=True)


@pytest.mark.parametrize("second", ["val", "test"])
def test_validation_tasks_are_drawn_from_the_first_of_two_lists(
    tmp_path: Path, second: str
) -> None:
    path = write_json(tmp_path / "split.json", {"train": [*"abcd"], second: ["e", "f"]})
    splits = [
        split_letters("fedcba", split=path, split_seed=seed, val_fraction=0.25)
        for seed in range(20)
    ]
    for train, val, test in splits:
        assert (sorted(train + val), test) == ([*"abcd"], "ef")
    assert {val for _, val, _ in splits} == {*"abcd"}
    assert split_letters("abcdef", split=path, select_on_test=True) == ("abcd", "", "ef")
    with pytest.raises(DataError, match=r"needs 2 tasks or more, not 1.*select_on_test=true"):
        split_letters("aef", split=path)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"train": ["a"], "val": ["b"], "test": ["d"]}, "in none of the lists: c; "),
        ({"train": ["a"], "val": ["b", "c"], "test": ["d", "c"]}, "in both val and test: c"),
        ({"train": ["a", "b", "c", "d"], "val": []}, "none of the 4 loaded tasks is in val: "),
        ({"train": ["x"], "val": ["a", "b", "c", "d"]}, "none of the 4 loaded tasks is in train: "),
        ({"train": ["a.json"], "test": [*"abcd"]}, "it names a.json, and they are a and others"),
        ({"train": ["a"]}, "missing required field `val` or `test`; expected {"),
        ({"train": [], "val": [], "held": []}, "unknown field `held`"),
        ({"train": ["a"], "val": ["b", 3]}, "val[1]: Expected `str`, got `int`"),
    ],
)
def test_unusable_split_file_is_refused(tmp_path: Path, content: Any, fault: str) -> None:
    path = write_json(tmp_path / "split.json", content)
    with pytest.raises(DataError) as caught:
        split_letters("abcd", split=path)
    assert str(path) in str(caught.value) and fault in str(caught.value)


def test_test_pairs_of_a_split_file_that_are_trained_on_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LARC (Acquaviva et al. 2022) trains on 44f52bb0 and tests on 27a28665.

    Two of the ten pairs of 27a28665 are the first of 44f52bb0 in other colours, turned or mirrored:
    a search through the 8 symmetries and all recolourings, apart from raylab, finds no others.
    """
    path = write_json(tmp_path / "larc.json", {"train": ["44f52bb0", "0a"], "test": ["27a28665"]})
    data = DataConfig(tasks=("44f52bb0", "27a28665"), split=path, select_on_test=True)
    assert len(load_sides(data).test) == 10
    assert f"{path}: 2 of 10 test pairs are equal to pairs of another side" in caplog.text
    caplog.clear()
    write_json(path, {"train": ["007bbfb7"], "test": ["27a28665"]})
    load_sides(data.model_copy(update={"tasks": ("007bbfb7", "27a28665")}))
    assert not caplog.text


# Splits by pair


def parts_of(tasks: Sequence[Task], task: int = 0, **data: object) -> list[tuple[Pair, ...]]:
    """The training, validation and test pairs of a task."""
    store = store_pairs(tasks)
    sides = split_pairs(store, fingerprints(store), DataConfig.model_validate(data))
    own = sides[store.task_of == task]
    return [tuple(compress(tasks[task].pairs, own == side)) for side in range(3)]


def prints(pairs: Sequence[Pair]) -> frozenset[int]:
    return frozenset(map(fingerprint, pairs))


@pytest.mark.parametrize(
    ("pairs", "data", "counts"),
    [
        # 20 * 0.23 = 4.6, and 15 * 0.1 = 1.5.
        (20, {}, [13, 2, 5]),
        (20, {"select_on_test": True}, [15, 0, 5]),
        (3, {}, [1, 1, 1]),
        (2, {"select_on_test": True}, [1, 0, 1]),
    ],
)
def test_every_task_gives_its_share_of_pairs(
    pairs: int, data: dict[str, object], counts: list[int]
) -> None:
    tasks = make_tasks(2, demonstrations=pairs - 1, questions=1, longest_side=7, seed=3)
    for index, task in enumerate(tasks):
        parts = parts_of(tasks, index, **data)
        assert [len(part) for part in parts] == counts
        assert {pair for part in parts for pair in part} == {*task.pairs}


def test_the_split_by_pair_depends_on_the_seed_and_not_on_the_order() -> None:
    (task,) = make_tasks(1, demonstrations=12, questions=0)
    turned = Task(task.id, task.demonstrations[::-1])
    tests = [prints(parts_of([task], split_seed=seed)[2]) for seed in range(8)]
    assert tests == [prints(parts_of([turned], split_seed=seed)[2]) for seed in range(8)]
    assert len({*tests}) > 4


def test_equal_pairs_stay_on_one_side() -> None:
    """Twelve pairs, each with a redrawn copy and one of the same input, in two tasks."""
    (task,) = make_tasks(1, demonstrations=12, questions=0, longest_side=6, seed=1)
    copies = redraw([task], 4)[0].demonstrations
    flipped = tuple(Pair(pair.input, 9 - pair.output) for pair in task.demonstrations)
    tasks = [
        Task("a", (*task.demonstrations, *flipped)),
        Task("b", (*copies, *make_tasks(1, demonstrations=9, seed=9)[0].demonstrations)),
    ]
    for seed in range(10):
        first, second = (parts_of(tasks, index, split_seed=seed) for index in range(2))
        inputs = [{pair.input.tobytes() for pair in part} for part in first]
        for side, part in enumerate(first):
            for other in {*range(3)} - {side}:
                assert not inputs[side] & inputs[other]
                assert not prints(part) & prints(second[other])
        # 12 classes: 3 are tested and 1 validates, each twice.
        assert [len(part) for part in first] == [16, 2, 6]


@pytest.mark.parametrize(("data", "needed"), [({}, 3), ({"select_on_test": True}, 2)])
def test_a_task_of_too_few_distinct_pairs_is_refused(data: dict[str, object], needed: int) -> None:
    pairs = [pair(str(n) * n, "10/01") for n in range(1, needed)]
    tasks = [Task(id_, (*pairs, pairs[0])) for id_ in "ut"]
    kept = Task("kept", tuple(pair("0" * n, "12") for n in range(4, 7)))
    with pytest.raises(DataError, match=f"2 of 3 tasks have fewer than the {needed} .*: t and u$"):
        parts_of([*tasks, kept], **data)


def test_the_sides_of_a_single_task() -> None:
    """0520fde7 has three demonstrations and one test pair."""
    config = DataConfig(tasks=("0520fde7",), split_by="pair")
    sides = load_sides(config)
    store = sides.store
    assert [len(side) for side in (sides.train, sides.val, sides.test)] == [2, 1, 1]
    assert sorted([*sides.train, *sides.val, *sides.test]) == [0, 1, 2, 3]
    # Only what is trained on is ever shown with a query.
    assert store.demonstrations[0].tolist() == sides.train.tolist()
    assert sides.tasks_of(sides.test) == ["0520fde7"]
    seen = sides.seen
    assert seen.trained_on.pairs == {*sides.contents[sides.train].tolist()}
    assert seen.chosen_on.pairs == {*sides.contents[sides.val].tolist()}
    tested = {*sides.contents[sides.test].tolist()}
    assert not tested & (seen.trained_on.pairs | seen.chosen_on.pairs)
    both = load_sides(config.model_copy(update={"select_on_test": True}))
    assert both.val.tolist() == both.test.tolist() and len(both.train) == 3


# Splits by question


def test_a_split_by_question_trains_on_demonstrations_and_tests_questions() -> None:
    data = DataConfig(
        source="arc_agi_1", subset="evaluation", max_side=10, split_by="question", val_fraction=0.05
    )
    sides, tasks = load_sides(data), load_tasks(data)
    store = sides.store
    assert len(sides.test) == sum(len(task.questions) for task in tasks)
    # 0.05 of 78 tasks are 3.9.
    assert len(sides.val) == 4
    demonstrations = {task.id: len(task.demonstrations) for task in tasks}
    # Twelve equal a question, or one that validates, but for colours and symmetry.
    assert len(sides.train) + len(sides.val) == sum(demonstrations.values()) - 12
    held_out = sides.contents[np.concatenate([sides.val, sides.test])]
    assert not np.isin(sides.contents[sides.train], held_out).any()
    # Only what is trained on is shown, so neither questions nor validation are, until the test.
    assert {*np.concatenate(store.demonstrations).tolist()} == {*sides.train.tolist()}
    shown = dict(zip(store.task_ids, map(len, sides.posed.demonstrations), strict=True))
    assert shown == demonstrations
    assert not np.isin(np.concatenate(sides.posed.demonstrations), sides.test).any()


def test_a_single_demonstration_trains_and_never_validates(tmp_path: Path) -> None:
    """FilledNotFilled6 of ConceptARC has one demonstration and three test pairs."""
    one, two = ([pair("0" * (at + n), "12") for n in range(4)] for at in (1, 5))
    tasks = Task("one", tuple(one[:1]), tuple(one[1:])), Task("two", tuple(two[:3]), (two[3],))
    write_json(tmp_path / "one.json", as_arc(tasks[0]))
    data = DataConfig(source="arc_json", path=tmp_path, split_by="question")
    with pytest.raises(DataError, match="no task has two demonstrations, one of which"):
        load_sides(data)
    for seed in range(4):
        sides = load_sides(data.model_copy(update={"select_on_test": True, "split_seed": seed}))
        assert (len(sides.train), len(sides.test)) == (1, 3)
    write_json(tmp_path / "two.json", as_arc(tasks[1]))
    for seed in range(4):
        sides = load_sides(data.model_copy(update={"split_seed": seed}))
        assert [own.tolist() for own in (sides.train, sides.val, sides.test)] == [
            [0, 4, 5],
            [6],
            [1, 2, 3, 7],
        ]


def test_a_task_without_questions_has_no_split_by_question() -> None:
    border = CurriculumConfig(families=("border",))
    data = DataConfig(source="curriculum", split_by="question", curriculum=border)
    with pytest.raises(DataError, match=r"^2 of 2 tasks have no question.*: border-1-01 and bor"):
        load_sides(data.model_copy(update={"pairs_per_task": 5}))
