import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.arc.data.generations import redraw
from raylab.arc.data.groups import group_tasks, palette_relation, shape_relation
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Pair, Task
from raylab.config.arc import DataConfig
from raylab.errors import DataError

Shape = tuple[int, int]


def of_shapes(*shapes: tuple[Shape, Shape], questions: int = 0) -> Task:
    pairs = tuple(Pair(np.zeros(i, np.uint8), np.zeros(o, np.uint8)) for i, o in shapes)
    split = len(pairs) - questions
    return Task("t", pairs[:split], pairs[split:])


def of_colours(*colours: tuple[list[int], list[int]]) -> Task:
    pairs = (Pair(np.array([i], np.uint8), np.array([o], np.uint8)) for i, o in colours)
    return Task("t", tuple(pairs))


@pytest.mark.parametrize(
    ("shapes", "relation"),
    [
        ([((2, 3), (2, 3)), ((5, 7), (5, 7))], "same"),
        ([((3, 3), (2, 3)), ((5, 7), (1, 1))], "smaller"),
        ([((2, 3), (2, 5)), ((5, 7), (9, 8))], "larger"),
        # fewer rows, more columns
        ([((3, 2), (2, 3))], "varying"),
        ([((3, 3), (2, 2)), ((3, 3), (4, 4))], "varying"),
        # the second pair keeps its shape
        ([((3, 3), (2, 2)), ((3, 3), (3, 3))], "varying"),
        ([((3, 3), (4, 4)), ((3, 3), (3, 3))], "varying"),
    ],
)
def test_shape_relation(shapes: list[tuple[Shape, Shape]], relation: str) -> None:
    assert shape_relation(of_shapes(*shapes)) == relation


def test_shape_relation_counts_questions_too() -> None:
    assert shape_relation(of_shapes(((2, 2), (2, 2)), ((2, 2), (1, 1)), questions=1)) == "varying"


@pytest.mark.parametrize(
    ("colours", "relation"),
    [
        ([([0, 1, 1], [1, 0, 0]), ([9], [9, 9])], "kept"),
        ([([0, 1], [0, 1]), ([0, 1], [0])], "reduced"),
        ([([0, 1], [0, 1]), ([0, 1], [0, 2])], "new"),
        # 1 is a colour of the first input, not of the second
        ([([0, 1], [0]), ([0], [1])], "new"),
    ],
)
def test_palette_relation(colours: list[tuple[list[int], list[int]]], relation: str) -> None:
    assert palette_relation(of_colours(*colours)) == relation


def test_published_tasks_fall_into_the_groups_that_the_eye_sees() -> None:
    # 007bbfb7 repeats a 3x3 pattern in a 9x9 grid; 00d62c1b fills enclosed cells with a new
    # colour; 67a3c6ac mirrors; 0b148d64 cuts out one quarter of the grid
    ids = ("007bbfb7", "00d62c1b", "67a3c6ac", "0b148d64")
    assert group_tasks(load_tasks(DataConfig(tasks=ids)), None) == {
        "007bbfb7": "larger/kept",
        "00d62c1b": "same/new",
        "67a3c6ac": "same/kept",
        "0b148d64": "smaller/reduced",
    }


def test_computed_groups_survive_a_redrawing() -> None:
    tasks = load_tasks(DataConfig(every=10))
    assert group_tasks(redraw(tasks, 5), None) == group_tasks(tasks, None)


def test_taxonomy_names_the_groups_and_counts_unlisted_tasks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taxonomy = tmp_path / "t.json"
    taxonomy.write_text('{"a": "S1", "b": "C1", "elsewhere": "L1"}')
    tasks = [Task(id_, of_colours(([1], [1])).demonstrations) for id_ in "abcd"]
    with caplog.at_level(logging.WARNING):
        groups = group_tasks(tasks, taxonomy)
    assert groups == {"a": "S1", "b": "C1", "c": "unlisted", "d": "unlisted"}
    (record,) = caplog.records
    assert f"{taxonomy}: 2 of 4 tasks are not listed, such as c, d" in record.getMessage()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"a": "S1",\n "b" "C1"}', "line 2 column 6"),
        ('["a"]', "expected {task id: group}"),
        ('{"a": "S1", "b": 3}', "Expected `str`, got `int`"),
        ('{"a": "S1", "b": ""}', "task b: the group is an empty string"),
        ('{"a": "S1", "a": "C1"}', "the key 'a' occurs twice"),
    ],
)
def test_malformed_taxonomy_is_refused(tmp_path: Path, content: str, fault: str) -> None:
    taxonomy = tmp_path / "t.json"
    taxonomy.write_text(content)
    with pytest.raises(DataError) as caught:
        group_tasks([], taxonomy)
    assert str(taxonomy) in str(caught.value)
    assert fault in str(caught.value)


def test_published_taxonomy_lists_every_training_task(
    shared_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taxonomy = shared_data / "arc_task_categories.json"
    if not taxonomy.exists():
        pytest.skip(f"{taxonomy.name} is absent")
    published: dict[str, Any] = json.loads(taxonomy.read_text())
    assert group_tasks(load_tasks(DataConfig()), taxonomy) == published
    assert not caplog.records
