"""The splits by pair and by question."""

from collections.abc import Sequence
from itertools import compress

import numpy as np
import pytest

from raylab.arc.config.sections import CurriculumConfig, DataConfig
from raylab.arc.data.content import fingerprints
from raylab.arc.data.generations import redraw
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import load_sides, split_pairs
from raylab.arc.data.tasks import Pair, Task, store_pairs
from raylab.core.errors import DataError
from tests.arc.conftest import fingerprint, make_tasks

Parts = list[tuple[Pair, ...]]


def parts_of(tasks: Sequence[Task], task: int = 0, **data: object) -> Parts:
    """The training, validation and test pairs of a task."""
    store = store_pairs(tasks)
    sides = split_pairs(store, fingerprints(store), DataConfig.model_validate(data))
    own = sides[store.task_of == task]
    return [tuple(compress(tasks[task].pairs, own == side)) for side in range(3)]


def prints(pairs: Sequence[Pair]) -> set[int]:
    return {fingerprint(pair) for pair in pairs}


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
        assert sorted(p.input.tobytes() for part in parts for p in part) == sorted(
            pair.input.tobytes() for pair in task.pairs
        )


def test_the_split_depends_on_the_seed_and_not_on_the_order() -> None:
    (task,) = make_tasks(1, demonstrations=12, questions=0)
    turned = Task(task.id, task.demonstrations[::-1])
    tests = [prints(parts_of([task], split_seed=seed)[2]) for seed in range(8)]
    assert tests == [prints(parts_of([turned], split_seed=seed)[2]) for seed in range(8)]
    assert len({frozenset(test) for test in tests}) > 4


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
        for side, part in enumerate(first):
            inputs = {pair.input.tobytes() for pair in part}
            for other in (*first[:side], *first[side + 1 :]):
                assert not inputs & {pair.input.tobytes() for pair in other}
            own = prints(part)
            for index, other in enumerate(second):
                assert index == side or not own & prints(other)
        # 12 classes: 3 are tested and 1 validates, each twice.
        assert [len(part) for part in first] == [16, 2, 6]


@pytest.mark.parametrize(("given", "needed"), [({}, 3), ({"select_on_test": True}, 2)])
def test_a_task_of_too_few_distinct_pairs_is_refused(given: dict[str, object], needed: int) -> None:
    grid = np.eye(3, dtype=np.uint8)
    pairs = [Pair(np.full((1, n), n, np.uint8), grid) for n in range(1, needed)]
    with pytest.raises(DataError, match=f"task t has {needed - 1} distinct pairs.* {needed} or"):
        parts_of([Task("t", (*pairs, pairs[0]))], **given)


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
    # Only what is trained on is shown, so neither questions nor validation are, until the test.
    assert {*np.concatenate(store.demonstrations).tolist()} == {*sides.train.tolist()}
    shown = dict(zip(store.task_ids, sides.posed.demonstrations, strict=True))
    assert {id_: len(own) for id_, own in shown.items()} == {
        id_: len(task.demonstrations) for id_, task in tasks.items()
    }
    assert not np.isin(np.concatenate(sides.posed.demonstrations), sides.test).any()


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
