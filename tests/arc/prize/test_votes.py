"""Views, votes and attempts, of answers that are known by construction; pictured answers."""

from typing import Any

import numpy as np
import pytest
import torch

from raylab.arc.config.models import ModelConfig
from raylab.arc.config.sections import ScoringConfig, VotesConfig
from raylab.arc.data.batching import Batch
from raylab.arc.data.tasks import NO_OUTPUT, SYMMETRIES, Pair, Task
from raylab.arc.models.base import START, Answers
from raylab.arc.pages.pictures import contrast, keep_one_question, picture_attempts
from raylab.arc.prize import answering
from raylab.arc.prize.answering import Answerer, answer_tasks
from raylab.arc.prize.scores import prize_score
from raylab.arc.prize.votes import QuestionAnswers, TaskAnswers, as_rows, draw_views
from raylab.arc.records import Example, GridRows
from tests.arc.conftest import limit_sides, make_tasks, small_model
from tests.arc.tasks import grid, pair, task

A: GridRows = ((1,),)
B: GridRows = ((2,),)
C: GridRows = ((3, 3),)


def identity(batch: Batch) -> Answers:
    queries = torch.zeros(len(batch.pairs))
    return Answers(batch.source, queries, queries > 0)


def answered(
    tasks: tuple[Task, ...], answer: Answerer = identity, **votes: Any
) -> list[TaskAnswers]:
    scoring = ScoringConfig(
        protocol="arc", metric="two_attempts", batch_size=4, votes=VotesConfig(**votes)
    )
    posed = [task.without_outputs for task in tasks]
    return answer_tasks(answer, posed, scoring, 2, torch.device("cpu"))


def answers_to(task: str, *views: list[GridRows]) -> TaskAnswers:
    """Equally likely answers to each question of a task, in a second."""
    questions = [QuestionAnswers.of((rows, -1.0, None) for rows in own) for own in views]
    return TaskAnswers(task=task, questions=tuple(questions), seconds=1.0)


@pytest.mark.parametrize(
    ("views", "attempts"),
    [
        # C has two views. A and B have one each: B is likelier. Of the first three all have one.
        ([(A, -3.0), (C, -9.0), (B, -1.0), (C, -9.0)], {4: (C, B), 3: (B, A)}),
        ([(A, -1.0), (B, -1.0)], {2: (A, B)}),
        # The mean likelihood counts and not the sum: A has mean -2, B has mean -1.5.
        ([(A, -1.0), (A, -3.0), (B, -1.5), (B, -1.5)], {4: (B, A)}),
        # One view has no votes.
        ([(A, -9.0), (B, -1.0), (B, -1.0)], {1: (A, B), 3: (B, A)}),
        ([(A, -1.0), (A, -1.0), (B, -1.0)], {1: (A, A), 2: (A, A)}),
    ],
)
def test_candidates_rank_by_count_then_by_mean_likelihood_then_by_first_view(
    views: list[tuple[GridRows, float]], attempts: dict[int, tuple[GridRows, GridRows]]
):
    question = QuestionAnswers.of([(*view, None) for view in views])
    assert {count: question.attempts(count) for count in attempts} == attempts


def test_views_of_fewer_are_the_first_of_more_with_all_symmetries_in_turn():
    (task,) = make_tasks(1)
    few, many = (draw_views(task, count, VotesConfig()) for count in (5, 24))
    assert all(
        (a.colours == b.colours).all() and (a.symmetry, a.order) == (b.symmetry, b.order)
        for a, b in zip(few, many[:5], strict=True)
    )
    first = many[0]
    assert first.symmetry == 0 and first.order == () and (first.colours == np.arange(10)).all()
    symmetries = [view.symmetry for view in many]
    assert all({*symmetries[at : at + 8]} == {*range(SYMMETRIES)} for at in (0, 8, 16))


@pytest.mark.parametrize("kind", ["symmetries", "colours", "orders"])
def test_a_kind_of_view_can_be_left_out(kind: str):
    (task,) = make_tasks(1)
    views = draw_views(task, 8, VotesConfig(**{kind: False}))
    assert {view.symmetry for view in views} == ({0} if kind == "symmetries" else set(range(8)))
    assert (len({tuple(view.colours) for view in views}) == 1) == (kind == "colours")
    assert (len({view.order for view in views}) == 1) == (kind == "orders")


@pytest.mark.parametrize(("views", "answers"), [(1, 2), (16, 16)])
def test_every_view_of_an_identity_votes_for_the_input(views: int, answers: int):
    tasks = make_tasks(3, questions=2)
    for posed, own in zip(tasks, answered(tasks, views=views), strict=True):
        assert own.task == posed.id
        for asked, question in zip(posed.questions, own.questions, strict=True):
            assert question.candidates == (as_rows(asked.input),)
            assert len(question.views) == answers


def test_a_model_that_is_right_in_one_view_has_one_vote():
    # It copies a tall grid and answers one cell to a wide one.
    def copies_tall(batch: Batch) -> Answers:
        tall = batch.source.sizes[:, 0] > batch.source.sizes[:, 1]
        cells = batch.source.cells.clone()
        cells[~tall] = 0
        return Answers(batch.source._replace(cells=cells), torch.where(tall, -1.0, -5.0), tall)

    tall = task("1/2", "1/2", "1/2", "1/2")
    (answers,) = answered((tall,), copies_tall, views=8, colours=False, orders=False)
    (question,) = answers.questions
    # Four of the eight symmetries leave a tall grid tall.
    votes = [question.candidates[view.candidate] for view in question.views]
    assert votes.count(((1,), (2,))) == votes.count(((0,), (0,))) == 4
    # As many votes each: the likelier leads.
    assert question.attempts(8) == (((1,), (2,)), ((0,), (0,)))
    score = prize_score({"t": answers}, {"t": (grid("1/2"),)}, 8)
    assert score.sizes_by_rule == 0.5


def test_answers_are_decoded_together_or_apart_with_the_teacher_forced_likelihood(
    small_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
):
    tasks = make_tasks(3, longest_side=4, questions=2)
    model = limit_sides(small_model(small_config, noise=0.3), 6)
    batches: list[tuple[Batch, Answers]] = []

    def answer(batch: Batch) -> Answers:
        batches.append((batch, model.answers(batch)))
        return batches[-1][1]

    together = answered(tasks, answer, views=3)
    monkeypatch.setattr(answering, "QUERIES", 1)
    for a, b in zip(together, answered(tasks, answer, views=3), strict=True):
        for one, other in zip(a.questions, b.questions, strict=True):
            assert one.candidates == other.candidates
            assert [view.log_likelihood for view in one.views] == pytest.approx(
                [view.log_likelihood for view in other.views], abs=1e-3
            )
    for batch, answers in batches:
        with torch.no_grad():
            logits = model(batch._replace(target=answers.grids))
        for index in range(len(batch.pairs)):
            area = torch.arange(int(answers.grids.sizes[index].prod()))
            likelihood = logits.cells[index, area].log_softmax(-1)
            expected = likelihood[area, answers.grids.cells[index, area]].sum()
            if not answers.by_rule[index]:
                sides = logits.sizes[index].log_softmax(-1)
                expected += sides[torch.arange(2), answers.grids.sizes[index] - 1].sum()
            assert float(answers.log_likelihoods[index]) == pytest.approx(float(expected), abs=1e-3)
    assert START not in batches[0][1].grids.cells


def test_the_mean_is_over_tasks_and_the_curve_over_the_first_views():
    answers = {"a": answers_to("a", [B, C, A, A]), "b": answers_to("b", [B] * 4, [B] * 4)}
    answers["b"] = answers["b"].model_copy(update={"seconds": 3.0})
    score = prize_score(answers, {"a": (grid("1"),), "b": (grid("2"), grid("1"))}, 4)
    # a: wrong twice until views 3 and 4 vote for it; b: half.
    assert [(own.views, own.first_attempt, own.two_attempts) for own in score.curve] == [
        (1, 0.25, 0.25),
        (2, 0.25, 0.25),
        (4, 0.75, 0.75),
    ]
    assert (score.tasks, score.outputs, score.two_attempts, score.seconds) == (2, 3, 0.75, 2.0)
    # Shares 1 and 1/2: deviation sqrt(1/8), over sqrt(2).
    assert score.errors is not None and score.errors.two_attempts == pytest.approx(0.25)


def test_the_attempts_that_most_models_solve_are_pictured_first():
    hard = Task("hard", (), (pair("0", "1"),))
    easy = Task("easy", (), (pair("0", "1"), pair("0", "33")))
    posed = Task("posed", (), (Pair(grid("0"), NO_OUTPUT),))
    unsolved = {"hard": answers_to("hard", [B, C]), "posed": answers_to("posed", [A, B])}
    models = {
        "one": unsolved | {"easy": answers_to("easy", [A, A], [A, B])},
        "two": unsolved | {"easy": answers_to("easy", [B, A], [B, A])},
    }
    pictures = picture_attempts(models, [hard, posed, easy], 1)
    # Both models solve the first test input of `easy`, none the second, and none `hard`.
    order = [(example.task, example.target) for example in pictures]
    assert order == [("easy", A), ("hard", A), ("easy", C)]
    # With one attempt, models name the predictions.
    (one_each, *_) = picture_attempts(models, [easy], 1, attempts=1)
    assert {name: own.grid for name, own in one_each.predictions.items()} == {"one": A, "two": B}
    # Equal attempts are one.
    assert {name: (own.grid, own.solved) for name, own in pictures[0].predictions.items()} == {
        "one, attempt 1": (A, True),
        "two, attempt 1": (B, False),
        "two, attempt 2": (A, True),
    }


def test_the_question_of_a_picture_is_no_demonstration():
    one, two, three = (Pair(grid(n), NO_OUTPUT) for n in "012")
    for whole, shown, asked in (
        (Task("t", (one,), (two, three)), (one,), (two,)),
        (Task("t", (one, two)), (two,), (one,)),
    ):
        kept = keep_one_question(whole)
        assert (kept.demonstrations, kept.questions) == (shown, asked)


def test_half_of_the_pictures_are_of_tasks_that_few_models_solve() -> None:
    examples = [Example(task=id_, input=A, target=A, predictions={}) for id_ in "abcdef"]
    for count, tasks in {0: "", 1: "a", 4: "abef", 5: "abcef", 6: "abcdef", 9: "abcdef"}.items():
        assert "".join(example.task for example in contrast(examples, count)) == tasks
