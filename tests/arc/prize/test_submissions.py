"""Submissions: written, read strictly, and scored alike by another scorer."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.arc.config.sections import DataConfig, TaskSource
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Grid, Pair, Task
from raylab.arc.evaluation.prize import read_submission, submission_bytes
from raylab.arc.prize.scores import baseline_scores, prize_score, solutions_of
from raylab.arc.prize.votes import QuestionAnswers, TaskAnswers, as_rows
from raylab.core.errors import DataError
from raylab.core.files import Place
from tests.arc.tasks import grid, pair, task, write_json

OUTPUTS = {"a": [[[1, 2]]], "b": [[[3]], [[4, 5]]]}
SHOWN = (pair("12", "12"),)
ASKED = tuple(
    Task(id_, SHOWN, tuple(Pair(grid("12"), np.array(rows, np.uint8)) for rows in grids))
    for id_, grids in OUTPUTS.items()
)
Entries = dict[str, Any]


def read(tmp_path: Path, content: object, tasks: Sequence[Task] = ASKED) -> dict[str, TaskAnswers]:
    path = tmp_path / "submission.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_submission(Place.at(path), tasks)


def test_a_submission_is_scored_alike_by_another_scorer(tmp_path: Path):
    rng = np.random.default_rng(0)

    def drawn() -> Grid:
        return rng.integers(0, 2, rng.integers(1, 3, 2)).astype(np.uint8)

    def answer(views: int) -> QuestionAnswers:
        return QuestionAnswers.of(
            [(as_rows(drawn()), -float(rng.random()), None) for _ in range(views)]
        )

    challenges = [
        Task(f"t{at}", SHOWN, tuple(Pair(grid("12"), drawn()) for _ in range(count)))
        for at, count in enumerate(rng.integers(1, 4, 40).tolist())
    ]
    answers = {
        each.id: TaskAnswers(
            task=each.id, questions=tuple(answer(8) for _ in each.questions), seconds=1.0
        )
        for each in challenges
    }
    written = submission_bytes(answers, 8).decode()
    # ARC Prize's score, from the file and the outputs alone.
    theirs = [
        [
            question.output.tolist() in both.values()
            for question, both in zip(each.questions, json.loads(written)[each.id], strict=True)
        ]
        for each in challenges
    ]
    solutions = solutions_of(challenges)
    ours = prize_score(answers, solutions, 8)
    assert ours.two_attempts == pytest.approx(np.mean([*map(np.mean, theirs)]))
    assert 0 < ours.first_attempt < ours.two_attempts < 1
    again = prize_score(read(tmp_path, written, challenges), solutions, 1)
    assert (again.first_attempt, again.two_attempts) == (ours.first_attempt, ours.two_attempts)
    answers = read(tmp_path, solved([[0]]))
    assert answers["b"].questions[1].attempts(1) == (((4, 5),), ((0,),))
    assert json.loads(submission_bytes(answers, 1)) == solved([[0]])


def solved(second: object = None, **other: object) -> Entries:
    """A submission of right first attempts; `second` is the other one of each."""
    right = {
        id_: [{"attempt_1": grid, "attempt_2": second} for grid in grids]
        for id_, grids in OUTPUTS.items()
    }
    return right | other


def cells(change: Callable[[int], object]) -> Entries:
    """A submission of right first attempts, with each cell changed."""

    def changed(grid: list[list[int]]) -> dict[str, object]:
        rows = [[change(cell) for cell in row] for row in grid]
        return {"attempt_1": rows, "attempt_2": [[0]]}

    return {id_: [changed(grid) for grid in grids] for id_, grids in OUTPUTS.items()}


ONE, TWO = ({"attempt_1": grid, "attempt_2": grid} for grid in OUTPUTS["b"])
SUBMITTED: dict[str, tuple[object, tuple[float, float, int] | str]] = {
    # Scores of one and two attempts, and attempts that are missing or no grid; or the error. Where
    # ARC Prize's scorer reads a file, it gives the same score of two attempts.
    "perfect": (solved([[0]]), (1, 1, 0)),
    "with a byte order mark": ("\ufeff" + json.dumps(solved([[0]])), (1, 1, 0)),
    "second attempt null": (solved(None), (1, 1, 3)),
    "second attempt empty": (solved([]), (1, 1, 3)),
    "second attempt an empty row": (solved([[]]), (1, 1, 3)),
    "second attempt ragged": (solved([[1, 2], [3]]), (1, 1, 3)),
    "second attempt flat": (solved([1, 2]), (1, 1, 3)),
    "second attempt of colour 11": (solved([[11]]), (1, 1, 3)),
    "second attempt of colour -1": (solved([[-1]]), (1, 1, 3)),
    "second attempt 31 wide": (solved([[0] * 31]), (1, 1, 3)),
    "second attempt alone": (solved(a=[{"attempt_2": [[1, 2]]}]), (0.5, 1, 3)),
    "one attempt": (solved(a=[{"attempt_1": [[1, 2]]}]), (1, 1, 3)),
    "cells 3.0": (cells(float), (1, 1, 0)),
    "cells of text": (cells(str), (1, 1, 0)),
    "cells true": (cells(lambda cell: cell == 1 or cell), (1, 1, 0)),
    "cells 3.5": (cells(lambda cell: cell + 0.5), (0, 0, 3)),
    "tests exchanged": (solved(b=[TWO, ONE]), (0.5, 0.5, 1)),
    "a test missing": (solved(b=[ONE]), (0.75, 0.75, 3)),
    "a test null": (solved(b=[None, TWO]), (0.75, 0.75, 3)),
    "a task missing": ({"b": [ONE, TWO]}, (0.5, 0.5, 2)),
    "a task null": (solved(a=None), (0.5, 0.5, 4)),
    "a test too many": (solved(b=[ONE, TWO, ONE]), "task b: attempts at 3 test inputs, the task"),
    "a task too many": (solved(c=[]), "submission.json answers c, not among the 2 tasks"),
    "three attempts": (solved(a=[{"attempt_3": [[1, 2]]}]), "task a: [0] has attempt_3: leave all"),
    "a dict of tests": (solved(a=ONE), "task a: Expected `array | null`, got `object`; expected a"),
    "lists of attempts": (
        solved(a=[[[[1, 2]]]]),
        "task a: Expected `object | null`, got `array` -",
    ),
    "empty": ({}, "submission.json: no attempt is a grid of colours 0 to 9"),
    "no grid": (solved(a=[{}], b=[{"attempt_1": {"output": [[3]]}}]), "no attempt is a grid of"),
    "a list": ([], "expected {task id: [attempts]}"),
    "cut off": ('{"a": [{"attempt_1": [[1, 2', "submission.json: not valid JSON: Expecting"),
    "a cell NaN": (cells(lambda cell: math.nan), "submission.json: not valid JSON: NaN is no"),
    "a key twice": ('{"a": [], "a": []}', "submission.json: 'a' stands twice: remove or rename"),
}


@pytest.mark.parametrize(("content", "expected"), SUBMITTED.values(), ids=SUBMITTED)
def test_a_submission_of_others_has_its_score_over_all_tasks_or_an_error(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: object,
    expected: tuple[float, float, int] | str,
):
    if isinstance(expected, str):
        with pytest.raises(DataError, match=r"submission\.json") as error:
            read(tmp_path, content)
        assert expected in str(error.value)
        return
    score = prize_score(read(tmp_path, content), solutions_of(ASKED), 1)
    assert (score.first_attempt, score.two_attempts, score.missing) == expected
    assert (score.tasks, score.outputs) == (2, 3)
    counted = f"{expected[2]} of 6 attempts are missing or no grid"
    assert (counted in caplog.text) == (expected[2] > 0)


def test_rules_have_two_attempts_too():
    one, two = task("12", "12", "01", "01", id_="one"), task("12", "12", "01", "00", id_="two")
    scores = baseline_scores([one, two], solutions_of([one, two]))
    assert {score.two_attempts for score in scores.values()} == {1.0}
    assert {score.first_attempt for score in scores.values()} == {0.5}


def test_challenges_keep_their_test_inputs_and_are_scored_where_an_output_is_known(
    tmp_path: Path,
):
    shown = [{"input": [[1, 2]], "output": [[2, 1]]}]
    tasks = {
        id_: {"train": shown, "test": [{"input": [[3, count]]} for count in range(inputs)]}
        for id_, inputs in (("a", 1), ("b", 2))
    }
    challenges = write_json(tmp_path / "arc-agi_test_challenges.json", tasks)
    data = DataConfig(source=TaskSource.ARC_JSON, path=challenges)
    assert not solutions_of(load_tasks(data, unanswered=True))
    solutions = tmp_path / "arc-agi_test_solutions.json"
    write_json(solutions, {"a": [[[3, 0]]], "b": [None, [[5]]]})
    posed = load_tasks(data, unanswered=True)
    # Of "b" the first output is not known, and the second is answered rightly.
    answers = read(tmp_path, {"b": [ONE, {"attempt_1": [[5]], "attempt_2": [[5]]}]}, posed)
    score = prize_score(answers, solutions_of(posed), 1)
    assert (score.two_attempts, score.tasks, score.outputs) == (0.5, 2, 2)
    write_json(solutions, {"a": [[[3, 0]]]})
    assert set(solutions_of(load_tasks(data, unanswered=True))) == {"a"}
    # A generation redraws inputs without an output too.
    a, b = load_tasks(data.model_copy(update={"generation": 1}), unanswered=True)
    assert (a.questions[0].input == a.questions[0].output).all()
    assert b.questions[0].input.tolist() != [[3, 0]]
    assert not any(pair.is_answered for pair in b.questions)
