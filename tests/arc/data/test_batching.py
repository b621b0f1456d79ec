from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from raylab.arc.data.batching import MISSING, BatchPlan, Grids, demonstration_table, pad_grids
from raylab.arc.data.tasks import PAD, PairStore, Task, store_pairs
from raylab.core.errors import ConfigError, DataError
from tests.arc.conftest import make_tasks
from tests.arc.tasks import pair

TWINS = Task(
    "twins",
    # The last has the cells of the second, laid out 2 x 2.
    (pair("0000", "0000"), pair("1111", "1111"), pair("0000", "9"), pair("11/11", "5")),
    (pair("0000", "8"),),
)
"""Pairs 0 and 2 and the question have one input."""


def plan_of(store: PairStore, **options: Any) -> BatchPlan:
    return BatchPlan(store, store.pairs, **{"batch_size": 5, "demonstrations": 2, **options})


def image(grids: Grids, index: int) -> NDArray[np.int64]:
    """Grid `index`, written cell by cell at its stated coordinates."""
    written = np.full(grids.sizes[index].tolist(), -1)
    places = (values[index].tolist() for values in grids[:3])
    for cell, row, col in zip(*places, strict=True):
        if cell != PAD:
            assert written[row, col] == -1
            written[row, col] = cell
    return written


def test_every_grid_of_a_batch_is_that_of_its_pair() -> None:
    tasks = make_tasks()
    pairs = [pair for task in tasks for pair in task.pairs]
    store = store_pairs(tasks)
    plan = plan_of(store)
    for draw, batch in zip(plan, plan.batches(), strict=True):
        assert batch.pairs.tolist() == draw.pairs.tolist()
        assert batch.tasks.tolist() == store.task_of[draw.pairs].tolist()
        for query, number in enumerate(draw.pairs):
            np.testing.assert_array_equal(image(batch.source, query), pairs[number].input)
            np.testing.assert_array_equal(image(batch.target, query), pairs[number].output)
        for place, number in np.ndenumerate(draw.demonstrations):
            demo = int(batch.demo_index[place])
            np.testing.assert_array_equal(image(batch.demo_inputs, demo), pairs[number].input)
            np.testing.assert_array_equal(image(batch.demo_outputs, demo), pairs[number].output)


def test_images_place_cells_and_pad() -> None:
    store = store_pairs([Task("a", (pair("123", "4/5"),))])
    grids = pad_grids(store, np.arange(2))
    # 1 x 3 and 2 x 1 lie in images of 2 x 3.
    assert grids.as_images(grids.cells).tolist() == [
        [[1, 2, 3], [PAD, PAD, PAD]],
        [[4, PAD, PAD], [5, PAD, PAD]],
    ]
    # Values in padding do not show.
    values = torch.tensor([[6, 7, 8], [9, 0, 1]])
    assert grids.as_images(values).tolist() == [
        [[6, 7, 8], [PAD, PAD, PAD]],
        [[9, PAD, PAD], [0, PAD, PAD]],
    ]


def test_selected_queries_keep_their_demonstrations() -> None:
    batch = max(plan_of(store_pairs(make_tasks())).batches(), key=lambda b: len(b.tasks))
    part = batch.select(torch.tensor([3, 1]))
    for place, query in enumerate((3, 1)):
        for kept, whole in ((part.source, batch.source), (part.target, batch.target)):
            np.testing.assert_array_equal(image(kept, place), image(whole, query))
        assert part.tasks[place] == batch.tasks[query]
        assert part.pairs[place] == batch.pairs[query]
        assert part.demo_index[place].equal(batch.demo_index[query])
    assert part.demo_inputs is batch.demo_inputs and part.demo_outputs is batch.demo_outputs


@pytest.mark.parametrize(("world", "batch_size"), [(1, 5), (2, 1), (3, 32)])
def test_every_pair_once_over_all_workers(world: int, batch_size: int) -> None:
    store = store_pairs(make_tasks(40, longest_side=12))
    plans = [plan_of(store, batch_size=batch_size, rank=r, world=world) for r in range(world)]
    draws = [list(plan) for plan in plans]
    assert [len(own) for own in draws] == [len(plan) for plan in plans]
    assert len({len(own) for own in draws}) == 1
    drawn = [pair for own in draws for draw in own for pair in draw.pairs.tolist()]
    assert sorted(drawn) == store.pairs.tolist()


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(DataError, match="no task has a pair"):
        store_pairs([])
    with pytest.raises(ConfigError, match="workers=3"):
        plan_of(store_pairs([Task("a", TWINS.demonstrations[:2])]), world=3)


@pytest.mark.parametrize("seed", [None, 0])
def test_demonstrations_are_other_pairs_of_the_task(seed: int | None) -> None:
    tasks = [TWINS, *make_tasks(5, demonstrations=3, questions=2, longest_side=2)]
    store = store_pairs(tasks)
    pairs = [pair for task in tasks for pair in task.pairs]
    questions = [question for task in tasks for question in task.questions]
    rng = None if seed is None else np.random.default_rng(seed)
    table = demonstration_table(store, store.pairs, 3, rng)
    for query, demos in enumerate(table.tolist()):
        present = [demo for demo in demos if demo != MISSING]
        assert len(set(present)) == len(present)
        for demo in present:
            assert store.task_of[demo] == store.task_of[query]
            assert pairs[demo] not in questions
            assert not np.array_equal(pairs[demo].input, pairs[query].input)


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
def test_too_few_demonstrations_are_missing(rng: np.random.Generator | None) -> None:
    store = store_pairs([TWINS, Task("lonely", (pair("3", "3"),))])
    table = demonstration_table(store, np.arange(6), 3, rng)
    # Pairs 0 and 2 exclude each other, the question (4) both; the lonely pair has nobody.
    possible = [{1, 3}, {0, 2, 3}, {1, 3}, {0, 1, 2}, {1, 3}, set[int]()]
    for row, expected in zip(table.tolist(), possible, strict=True):
        assert {demo for demo in row if demo != MISSING} == expected
        assert row[len(expected) :] == [MISSING] * (3 - len(expected))
