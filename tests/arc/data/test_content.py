"""Tasks that are the same by their pairs."""

from collections.abc import Callable

import numpy as np
import pytest

from raylab.arc.data.content import (
    TWINS,
    contents_of,
    fingerprint,
    ids_of,
    is_known,
    same_tasks,
)
from raylab.arc.data.generations import redraw
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Grid, Pair, Task
from raylab.config.arc import DataConfig, Subset, TaskSource
from tests.arc.conftest import RandomTasks

SOURCE = np.array([[1, 0, 0], [0, 2, 0]], np.uint8)
TARGET = np.array([[1, 3], [0, 0], [2, 0]], np.uint8)


@pytest.mark.parametrize(
    "turned",
    [
        lambda grid: grid[::-1],
        lambda grid: grid[:, ::-1],
        lambda grid: grid[::-1, ::-1],
        lambda grid: grid.T,
        lambda grid: grid.T[::-1],
        lambda grid: grid.T[:, ::-1],
        lambda grid: grid.T[::-1, ::-1],
        # Colours 0, 1, 2 and 3 become 7, 0, 9 and 1.
        lambda grid: np.array([7, 0, 9, 1], np.uint8)[grid],
        lambda grid: np.array([7, 0, 9, 1], np.uint8)[grid.T[::-1]],
    ],
)
def test_a_pair_is_known_under_symmetries_and_recolouring(turned: Callable[[Grid], Grid]) -> None:
    same = Pair(turned(SOURCE), turned(TARGET))
    assert fingerprint(same) == fingerprint(Pair(SOURCE, TARGET))


@pytest.mark.parametrize(
    "other",
    [
        Pair(SOURCE, TARGET[::-1]),
        Pair(TARGET, SOURCE),
        Pair(SOURCE, np.array([[1, 3], [0, 0], [2, 1]], np.uint8)),
        Pair(SOURCE, np.array([[1, 2], [0, 0], [2, 0]], np.uint8)),
        # The same cells in other shapes.
        Pair(SOURCE.reshape(1, 6), TARGET),
        Pair(SOURCE, TARGET.reshape(6, 1)),
    ],
)
def test_other_pairs_are_others(other: Pair) -> None:
    assert fingerprint(other) != fingerprint(Pair(SOURCE, TARGET))


def test_generations_of_a_task_are_the_same(random_tasks: RandomTasks) -> None:
    tasks = random_tasks(3, longest_side=5)
    assert contents_of(redraw(tasks, 3)) == contents_of(tasks)


def test_the_tasks_that_were_published_twice() -> None:
    """All packaged tasks, those of ARC-AGI-2 under ids of their own."""
    everything: dict[str, tuple[int, ...]] = {}
    for source in (TaskSource.ARC_AGI_1, TaskSource.ARC_AGI_2):
        for id_, pairs in contents_of(
            load_tasks(DataConfig(source=source, subset=Subset.ALL))
        ).items():
            everything[id_] = everything.get(id_, ()) + pairs
    # By content alone: the names of known twins are taken away.
    unnamed = {f"task {id_}": pairs for id_, pairs in everything.items()}
    found = {frozenset(id_.removeprefix("task ") for id_ in ids) for ids in same_tasks(unnamed)}
    assert found == {*TWINS}
    assert {"40853293", "070dd51e"} in found
    assert {"55783887", "db695cfb"} in found


def test_half_of_the_pairs_of_the_smaller_task_make_it_the_same() -> None:
    contents = {"a": (1, 2, 3, 4), "b": (3, 4, 4, 5, 6, 7), "c": (7, 8, 9), "d": (10, 10)}
    # a and b share 2 of 4; b and c 1 of 3; d nothing.
    assert same_tasks(contents) == [{"a", "b"}]
    # A chain is one class: c and e share 2 of 3.
    assert same_tasks({**contents, "e": (6, 7, 8, 9), "f": (4, 5, 11)}) == [
        {"a", "b", "c", "e", "f"}
    ]


def test_published_twins_are_the_same_whatever_their_pairs() -> None:
    assert same_tasks({"40853293": (1,), "070dd51e": (2,), "x": (3,)}) == [{"40853293", "070dd51e"}]
    assert same_tasks({"40853293": (1,), "x": (3,)}) == []
    assert ids_of("55783887") == ids_of("db695cfb") == {"55783887", "db695cfb"}
    assert ids_of("x") == {"x"}


def test_a_task_is_known_by_id_twin_or_content() -> None:
    ids, pairs = frozenset({"40853293", "x"}), frozenset({1, 2})
    assert is_known("x", (), ids, pairs)
    assert is_known("070dd51e", (9,), ids, pairs)
    assert is_known("y", (1, 5), ids, pairs)
    assert not is_known("y", (1, 1, 5, 6), ids, pairs)
    assert not is_known("y", (), ids, pairs)


def test_a_task_of_no_colour_and_one_cell() -> None:
    blank = np.zeros((1, 1), np.uint8)
    task = Task("t", (Pair(blank, blank),))
    assert same_tasks(contents_of([task, Task("u", (Pair(blank + 9, blank + 9),))])) == [{"t", "u"}]
