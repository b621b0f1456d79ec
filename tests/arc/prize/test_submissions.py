"""Submissions: written, read strictly, and scored alike by another scorer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.arc.config.sections import DataConfig, TaskSource
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Pair, Task
from raylab.arc.prize.scores import prize_score, rule_scores, solutions_of
from raylab.arc.prize.submissions import read_submission, submission_bytes
from raylab.arc.prize.votes import QuestionAnswers, TaskAnswers, as_rows
from raylab.core.errors import DataError
from raylab.core.files import Place

GRID = np.array([[1, 2]], dtype=np.uint8)
DEMONSTRATIONS = (Pair(GRID, GRID),)


def challenge(id_: str, inputs: int) -> Task:
    return Task(id_, DEMONSTRATIONS, (Pair(GRID, GRID),) * inputs)


ASKED = (challenge("a", 1), challenge("b", 2))
VALID: dict[str, Any] = {
    "a": [{"attempt_1": [[0]], "attempt_2": [[1, 2]]}],
    "b": [{"attempt_1": [[1, 2]], "attempt_2": [[0]]}, {"attempt_1": [[3]], "attempt_2": [[4]]}],
}


def read(tmp_path: Path, content: object, tasks: Sequence[Task] = ASKED) -> dict[str, TaskAnswers]:
    path = tmp_path / "submission.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_submission(Place.at(path), tasks)


def independent_score(submission: str, solutions: dict[str, list[list[list[int]]]]) -> float:
    """ARC Prize's score, from the two files alone."""
    answers = json.loads(submission)
    total = 0.0
    for task, outputs in solutions.items():
        solved = [
            output in attempts.values()
            for attempts, output in zip(answers[task], outputs, strict=True)
        ]
        total += sum(solved) / len(outputs)
    return total / len(solutions)


def test_a_submission_is_scored_alike_by_another_scorer(tmp_path: Path):
    rng = np.random.default_rng(0)

    def grid() -> np.ndarray[Any, Any]:
        return rng.integers(0, 2, rng.integers(1, 3, 2)).astype(np.uint8)

    challenges = [
        Task(f"t{at}", DEMONSTRATIONS, tuple(Pair(GRID, grid()) for _ in range(count)))
        for at, count in enumerate(rng.integers(1, 4, 40).tolist())
    ]
    answers = {
        task.id: TaskAnswers(
            task=task.id,
            questions=tuple(
                QuestionAnswers.of(
                    [(as_rows(grid()), -float(rng.random()), None) for _ in range(8)]
                )
                for _ in task.questions
            ),
            seconds=1.0,
        )
        for task in challenges
    }
    solutions = solutions_of(challenges)
    written = submission_bytes(answers, 8)
    theirs = independent_score(
        written.decode(), {task: [g.tolist() for g in of] for task, of in solutions.items()}
    )
    ours = prize_score(answers, solutions, 8)
    assert ours.two_attempts == pytest.approx(theirs)
    assert 0 < ours.first_attempt < ours.two_attempts < 1
    again = prize_score(read(tmp_path, written.decode(), challenges), solutions, 1)
    assert (again.first_attempt, again.two_attempts) == (ours.first_attempt, ours.two_attempts)
    answers = read(tmp_path, VALID)
    assert answers["b"].questions[0].attempts(1) == (((1, 2),), ((0,),))
    assert json.loads(submission_bytes(answers, 1)) == VALID


def changed(**tasks: object) -> dict[str, object]:
    return {**VALID, **tasks}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "submission.json"),
        ([], "expected {task id: [attempts]}"),
        ({"a": VALID["a"]}, "submission.json lacks b"),
        (changed(c=[]), "submission.json answers c, not among the 2 tasks"),
        (changed(a={}), "task a: Expected `array`"),
        (changed(b=VALID["b"][:1]), "task b: attempts at 1 test inputs, the task has 2"),
        (
            changed(a=[{**VALID["a"][0], "attempt_2": [[0, 1], [2]]}]),
            "task a: [0].attempt_2: rows of 1 and of 2 cells",
        ),
        (
            changed(b=[VALID["b"][0], {"attempt_1": [[0], [10]], "attempt_2": [[0]]}]),
            "task b: [1].attempt_1[1][0]: Expected `int` <= 9",
        ),
    ],
)
def test_a_broken_submission_is_refused_with_its_place(
    tmp_path: Path, content: object, message: str
):
    with pytest.raises(DataError, match=r"submission\.json") as error:
        read(tmp_path, content)
    assert message in str(error.value)


def test_rules_have_two_attempts_too():
    flat = np.zeros((1, 2), dtype=np.uint8)
    source = np.array([[0, 1]], dtype=np.uint8)
    one = Task("one", DEMONSTRATIONS, (Pair(source, source),))
    two = Task("two", DEMONSTRATIONS, (Pair(source, flat),))
    scores = rule_scores([one, two], solutions_of([one, two]))
    assert {score.two_attempts for score in scores.values()} == {1.0}
    assert {score.first_attempt for score in scores.values()} == {0.5}


def test_challenges_keep_their_test_inputs_and_are_scored_where_all_outputs_are_known(
    tmp_path: Path,
):
    pair = {"input": [[1, 2]], "output": [[2, 1]]}
    tasks = {
        id_: {"train": [pair], "test": [{"input": [[3, count]]} for count in range(inputs)]}
        for id_, inputs in (("a", 1), ("b", 2))
    }
    challenges = tmp_path / "arc-agi_test_challenges.json"
    challenges.write_text(json.dumps(tasks))
    data = DataConfig(source=TaskSource.ARC_JSON, path=str(challenges))
    assert not solutions_of(load_tasks(data, unanswered=True))
    (tmp_path / "arc-agi_test_solutions.json").write_text(json.dumps({"a": [[[3, 0]]]}))
    assert set(solutions_of(load_tasks(data, unanswered=True))) == {"a"}
    # A generation redraws inputs without an output too.
    a, b = load_tasks(data.model_copy(update={"generation": 1}), unanswered=True)
    assert (a.questions[0].input == a.questions[0].output).all()
    assert b.questions[0].input.tolist() != [[3, 0]]
    assert not any(pair.is_answered for pair in b.questions)
