"""Tasks that are redrawn, and tasks that are the same by their pairs."""

import itertools

import numpy as np
import pytest

from raylab.arc.config.sections import DataConfig, Subset, TaskSource
from raylab.arc.data.content import (
    TWINS,
    TaskSet,
    fingerprint_tasks,
    join_same_tasks,
    published_ids,
)
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import IDENTITY, Pair, Redrawing, Task, redraw, redrawing
from tests.arc.conftest import fingerprint, least_form, make_tasks
from tests.arc.tasks import as_arc, as_json, grid, pair


@pytest.mark.parametrize(
    ("symmetry", "expected"),
    [
        (0, "123/456"),
        (1, "36/25/14"),
        (2, "654/321"),
        (3, "41/52/63"),
        (4, "14/25/36"),
        (5, "321/654"),
        (6, "63/52/41"),
        (7, "456/123"),
    ],
)
def test_symmetries_and_colours(symmetry: int, expected: str) -> None:
    drawn = Redrawing(np.roll(IDENTITY, -3), symmetry).apply(grid("123/456"))
    assert drawn.tolist() == (grid(expected) + 3).tolist()
    assert drawn.dtype == np.uint8 and drawn.flags.c_contiguous


def test_redrawing_depends_on_id_and_seed_alone() -> None:
    tasks = make_tasks(20)
    together = {task.id: as_arc(task) for task in redraw(tasks, 7)}
    assert {task.id: as_arc(task) for task in redraw(tasks[::-1], 7)} == together
    (alone,) = redraw(tasks[3:4], 7)
    assert as_arc(alone) == as_arc(redrawing("task3", 7).task(tasks[3])) == together["task3"]


def test_redrawing_is_pinned() -> None:
    # A change here changes every generation that anyone has scored.
    drawing = redrawing("007bbfb7", 1)
    assert (*drawing.colours, drawing.symmetry) == (3, 6, 8, 5, 0, 1, 4, 2, 7, 9, 6)


@pytest.mark.parametrize("symmetry", range(8))
def test_the_inverse_undoes_every_redrawing_of_a_task(symmetry: int) -> None:
    rng = np.random.default_rng(symmetry)
    (task,) = make_tasks(1, demonstrations=3, questions=2, longest_side=5, seed=1)
    for order in [(), *itertools.permutations(range(3))]:
        drawing = Redrawing(rng.permutation(IDENTITY), symmetry, order)
        drawn = drawing.task(task)
        assert as_arc(drawing.inverse.task(drawn)) == as_arc(task)
        assert as_arc(drawing.task(drawing.inverse.task(task))) == as_arc(task)
        moved = [drawing.pair(task.demonstrations[at]) for at in order or range(3)]
        assert as_json(drawn.demonstrations) == as_json(moved)


def classes(contents: dict[str, tuple[int, ...]]) -> list[set[str]]:
    """The ids that are the same task, where they are two or more."""
    members: dict[str, set[str]] = {}
    for id_, first in join_same_tasks(contents).items():
        members.setdefault(first, set()).add(id_)
    assert all(first == min(ids) for first, ids in members.items())
    return [ids for _, ids in sorted(members.items()) if len(ids) > 1]


def test_fingerprints_are_equal_where_the_least_forms_are() -> None:
    """Small grids of few colours, many of them equal, and real ones."""
    rng = np.random.default_rng(0)
    small = [
        Pair(*(rng.integers(0, 3, rng.integers(1, 3, 2), np.uint8) for _ in range(2)))
        for _ in range(3000)
    ]
    pairs = [pair for task in load_tasks(DataConfig(every=8)) for pair in task.pairs] + small
    numbers = fingerprint_tasks([Task("t", tuple(pairs))])["t"]
    forms = [least_form(pair) for pair in pairs]
    assert len({*forms}) == len({*numbers}) == len({*zip(forms, numbers, strict=True)})
    assert len({*forms}) < len(forms) - 1000


def test_a_fingerprint_is_the_same_in_every_process_and_company() -> None:
    one, number = pair("100/020", "13/00/20"), 8585568601683621354
    assert fingerprint(one) == number
    others = tuple(load_tasks(DataConfig(every=20))[0].pairs)
    assert fingerprint_tasks([Task("t", (*others, one))])["t"][-1] == number


def test_the_tasks_that_were_published_twice() -> None:
    """All packaged tasks, those of ARC-AGI-2 under ids of their own."""
    # By content alone: the names of known twins are taken away.
    unnamed: dict[str, tuple[int, ...]] = {}
    for source in (TaskSource.ARC_AGI_1, TaskSource.ARC_AGI_2):
        tasks = load_tasks(DataConfig(source=source, subset=Subset.ALL))
        for id_, pairs in fingerprint_tasks(tasks).items():
            unnamed[f"task {id_}"] = unnamed.get(f"task {id_}", ()) + pairs
    twins = {frozenset(id_.removeprefix("task ") for id_ in ids) for ids in classes(unnamed)}
    assert twins == {*TWINS}


def test_half_of_the_pairs_of_the_smaller_task_make_it_the_same() -> None:
    contents = {"a": (1, 2, 3, 4), "b": (3, 4, 4, 5, 6, 7), "c": (7, 8, 9), "d": (10, 10)}
    # a and b share 2 of 4; b and c 1 of 3; d nothing.
    assert classes(contents) == [{"a", "b"}]
    # A chain is one class: c and e share 2 of 3.
    assert classes({**contents, "e": (6, 7, 8, 9), "f": (4, 5, 11)}) == [{"a", "b", "c", "e", "f"}]


def test_published_twins_are_the_same_whatever_their_pairs() -> None:
    assert classes({"40853293": (1,), "070dd51e": (2,), "x": (3,)}) == [{"40853293", "070dd51e"}]
    assert classes({"40853293": (1,), "x": (3,)}) == []
    assert published_ids("55783887") == published_ids("db695cfb") == {"55783887", "db695cfb"}
    assert published_ids("x") == {"x"}


def test_a_task_is_known_by_id_twin_or_content() -> None:
    tasks = TaskSet(frozenset({"40853293", "x"}), frozenset({1, 2}))
    assert tasks.holds("x", ())
    assert tasks.holds("070dd51e", (9,))
    assert tasks.holds("y", (1, 5))
    assert not tasks.holds("y", (1, 1, 5, 6))
    assert not tasks.holds("y", ())
