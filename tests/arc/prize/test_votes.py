"""Views, votes and attempts, of answers that are known by construction."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from raylab.arc.data.batching import Batch
from raylab.arc.data.generations import SYMMETRIES
from raylab.arc.data.tasks import Pair, Task
from raylab.arc.models.autoregressive import START
from raylab.arc.models.base import Answers
from raylab.arc.prize import answering
from raylab.arc.prize.answering import Answerer, answer_tasks, as_rows
from raylab.arc.prize.scores import prize_score, score_task
from raylab.arc.prize.views import views_of
from raylab.arc.prize.votes import QuestionAnswers, TaskAnswers, curve_views
from raylab.arc.records import GridRows
from raylab.config.arc import VotesConfig
from raylab.config.models import ModelConfig
from raylab.errors import RunError
from raylab.runs.run import Run
from tests.arc.conftest import RandomTasks, limit_sides, small_model

CPU = torch.device("cpu")
A: GridRows = ((1,),)
B: GridRows = ((2,),)
C: GridRows = ((3, 3),)


def identity(batch: Batch) -> Answers:
    return Answers(batch.source, torch.zeros(len(batch.pairs)))


def answered(
    tasks: tuple[Task, ...], answer: Answerer = identity, **votes: object
) -> list[TaskAnswers]:
    posed = [task.posed for task in tasks]
    return answer_tasks(
        answer, posed, VotesConfig(**votes), demonstrations=2, batch_size=4, device=CPU
    )


# Votes by hand


def test_views_that_point_at_no_candidate_are_refused(tmp_path: Path):
    run, view = Run.at(str(tmp_path)), {"log_likelihood": -1.0}
    answers = {"candidates": [[[1]]], "views": [{**view, "candidate": 0}, {**view, "candidate": 1}]}
    content = {"schema_version": 1, "task": "t", "questions": [answers], "seconds": 0.0}
    (run / "answers.json").write(json.dumps(content).encode())
    with pytest.raises(RunError, match=r"answers\.json cannot be used.*candidate 1 of 1"):
        run.read_record(TaskAnswers, "answers.json")


def test_candidates_rank_by_count_then_by_mean_likelihood_then_by_first_view():
    # C has two views. A and B have one each: B is likelier.
    question = QuestionAnswers.of([(A, -3.0), (C, -9.0), (B, -1.0), (C, -9.0)])
    assert question.candidates == (A, C, B)
    assert question.attempts(4) == (C, B)
    # Of the first three all have one: B, then A.
    assert question.attempts(3) == (B, A)
    assert QuestionAnswers.of([(A, -1.0), (B, -1.0)]).attempts(2) == (A, B)


def test_it_is_the_mean_likelihood_and_not_the_sum():
    # Two views each: A has mean -2, B has mean -1.5.
    question = QuestionAnswers.of([(A, -1.0), (A, -3.0), (B, -1.5), (B, -1.5)])
    assert question.attempts(4) == (B, A)


def test_one_view_has_no_votes():
    question = QuestionAnswers.of([(A, -9.0), (B, -1.0), (B, -1.0)])
    assert question.attempts(1) == (A, B)
    assert question.attempts(3) == (B, A)


def test_views_that_agree_make_the_same_attempt_twice():
    question = QuestionAnswers.of([(A, -1.0), (A, -1.0), (B, -1.0)])
    assert question.attempts(1) == question.attempts(2) == (A, A)


def test_the_curve_doubles_the_views():
    assert list(curve_views(1)) == [1]
    assert list(curve_views(8)) == [1, 2, 4, 8]
    assert list(curve_views(10)) == [1, 2, 4, 8, 10]


# Views


def test_views_of_fewer_are_the_first_of_more(random_tasks: RandomTasks):
    (task,) = random_tasks(1)
    few, many = (views_of(task, count, VotesConfig()) for count in (5, 20))
    assert all(
        (a.colours == b.colours).all() and (a.symmetry, a.order) == (b.symmetry, b.order)
        for a, b in zip(few, many[:5], strict=True)
    )
    first = many[0]
    assert first.symmetry == 0 and first.order == () and (first.colours == np.arange(10)).all()


def test_views_have_all_symmetries_in_turn(random_tasks: RandomTasks):
    (task,) = random_tasks(1)
    found = [view.symmetry for view in views_of(task, 24, VotesConfig())]
    assert all(set(found[at : at + 8]) == set(range(SYMMETRIES)) for at in (0, 8, 16))


@pytest.mark.parametrize("kind", ["symmetries", "colours", "orders"])
def test_a_kind_of_view_can_be_left_out(kind: str, random_tasks: RandomTasks):
    (task,) = random_tasks(1)
    views = views_of(task, 8, VotesConfig(**{kind: False}))
    assert {view.symmetry for view in views} == ({0} if kind == "symmetries" else set(range(8)))
    assert (len({tuple(view.colours) for view in views}) == 1) == (kind == "colours")
    assert (len({view.order for view in views}) == 1) == (kind == "orders")


def test_more_views_than_there_are_different_ones_are_refused():
    assert VotesConfig(views=8, colours=False, orders=False).views == 8
    with pytest.raises(ValueError, match="there are 8"):
        VotesConfig(views=9, colours=False, orders=False)


# Answers


def test_every_view_of_an_identity_votes_for_the_input(random_tasks: RandomTasks):
    tasks = random_tasks(3, questions=2)
    for task, answers in zip(tasks, answered(tasks, views=16), strict=True):
        assert answers.task == task.id
        for pair, question in zip(task.questions, answers.questions, strict=True):
            assert question.candidates == (as_rows(pair.input),)
            assert len(question.views) == 16


def test_one_view_asks_for_two_answers(random_tasks: RandomTasks):
    (answers,) = answered(random_tasks(1), views=1)
    assert len(answers.questions[0].views) == 2


def test_a_model_that_is_right_in_one_view_has_one_vote():
    # It copies a tall grid and answers one cell to a wide one.
    def copies_tall(batch: Batch) -> Answers:
        tall = batch.source.sizes[:, 0] > batch.source.sizes[:, 1]
        grids = batch.source
        cells = grids.cells.clone()
        cells[~tall] = 0
        likelihoods = torch.where(tall, -1.0, -5.0)
        return Answers(grids._replace(cells=cells), likelihoods)

    grid = np.array([[1], [2]], dtype=np.uint8)
    task = Task("t", (Pair(grid, grid),), (Pair(grid, grid),))
    (answers,) = answered((task,), copies_tall, views=8, colours=False, orders=False)
    (question,) = answers.questions
    # Four of the eight symmetries leave a tall grid tall.
    votes = [question.candidates[view.candidate] for view in question.views]
    assert votes.count(((1,), (2,))) == votes.count(((0,), (0,))) == 4
    # As many votes each: the likelier leads.
    assert question.attempts(8) == (((1,), (2,)), ((0,), (0,)))


def test_answers_do_not_depend_on_what_is_answered_together(
    random_tasks: RandomTasks, small_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
):
    tasks = random_tasks(3, longest_side=4, questions=2)
    model = limit_sides(small_model(small_config, noise=0.3), 6)

    def answer(batch: Batch) -> Answers:
        return model.answers(batch)

    together = answered(tasks, answer, views=3)
    monkeypatch.setattr(answering, "QUERIES", 1)
    apart = answered(tasks, answer, views=3)
    for one, other in zip(together, apart, strict=True):
        for a, b in zip(one.questions, other.questions, strict=True):
            assert a.candidates == b.candidates
            assert [v.log_likelihood for v in a.views] == pytest.approx(
                [v.log_likelihood for v in b.views], abs=1e-3
            )


def test_outputs_of_test_inputs_are_not_posed(random_tasks: RandomTasks):
    (task,) = random_tasks(1, questions=3)
    posed = task.posed
    assert [pair.output.tolist() for pair in posed.questions] == [[]] * 3
    assert posed.demonstrations == task.demonstrations


def test_the_log_likelihood_is_that_of_the_teacher_forced_answer(
    random_tasks: RandomTasks, small_config: ModelConfig
):
    tasks = random_tasks(1, longest_side=4)
    model = limit_sides(small_model(small_config, noise=0.3), 6)
    seen: list[tuple[Batch, Answers]] = []

    def answer(batch: Batch) -> Answers:
        seen.append((batch, model.answers(batch)))
        return seen[-1][1]

    answered(tasks, answer)
    for batch, answers in seen:
        with torch.no_grad():
            logits = model(batch._replace(target=answers.grids))
        for index in range(len(batch.pairs)):
            area = int(answers.grids.sizes[index].prod())
            cells = answers.grids.cells[index, :area]
            of_cells = logits.cells[index, :area].log_softmax(-1)
            of_sizes = logits.sizes[index].log_softmax(-1)
            expected = of_cells[torch.arange(area), cells].sum()
            expected += of_sizes[torch.arange(2), answers.grids.sizes[index] - 1].sum()
            assert float(answers.log_likelihoods[index]) == pytest.approx(float(expected), abs=1e-3)
    assert START not in seen[0][1].grids.cells


# Scores


def test_a_task_counts_by_the_share_of_its_solved_outputs():
    outputs = [np.array(rows, dtype=np.uint8) for rows in (A, B, C)]
    score = score_task([(A, B), (A, B), (A, B)], outputs)
    assert (score.first_attempt, score.two_attempts, score.outputs) == (1 / 3, 2 / 3, 3)


def test_the_mean_is_over_tasks_and_the_curve_over_the_first_views():
    one, two = (np.array(rows, dtype=np.uint8) for rows in (A, B))
    answers = {
        "a": TaskAnswers(
            task="a",
            questions=(QuestionAnswers.of([(B, -1.0), (C, -1.0), (A, -1.0), (A, -1.0)]),),
            seconds=2.0,
        ),
        "b": TaskAnswers(
            task="b",
            questions=tuple(QuestionAnswers.of([(B, -1.0)] * 4) for _ in range(2)),
            seconds=4.0,
        ),
    }
    score = prize_score(answers, {"a": (one,), "b": (two, one)}, 4)
    # a: wrong twice until views 3 and 4 vote for it; b: half.
    assert [(of.views, of.first_attempt, of.two_attempts) for of in score.curve] == [
        (1, 0.25, 0.25),
        (2, 0.25, 0.25),
        (4, 0.75, 0.75),
    ]
    assert (score.tasks, score.outputs, score.two_attempts, score.seconds) == (2, 3, 0.75, 3.0)
    # Shares 1 and 1/2: deviation sqrt(1/8), over sqrt(2).
    assert score.errors is not None and score.errors.two_attempts == pytest.approx(0.25)
