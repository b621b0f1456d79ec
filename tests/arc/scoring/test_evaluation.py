import math

import numpy as np
import pytest
import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.data.batching import BatchDataset, BatchPlan
from raylab.arc.data.store import group_indices, store_pairs
from raylab.arc.data.tasks import Pair, Task
from raylab.arc.metrics import Count, metric_values, standard_errors
from raylab.arc.models.base import GridModel
from raylab.arc.module import ArcModule
from raylab.arc.records import GridRows
from raylab.arc.scoring.evaluation import (
    answer_tasks,
    choose_pictures,
    picture_examples,
    score_tasks,
)
from raylab.arc.seen import Seen, TaskSet
from raylab.config.arc import ScoringConfig, TrainingConfig
from raylab.config.models import ModelConfig
from raylab.runs.eval_logs import is_estimated
from tests.arc.conftest import SMALL_MODELS, RandomTasks, batch_of, limit_sides, small_model

CPU = torch.device("cpu")
BY_TASK = ScoringConfig(batch_size=4)
BY_GROUP = ScoringConfig(batch_size=4, unit="group")

SEEN = Seen(TaskSet(frozenset({"task0"})), TaskSet(frozenset({"task1"}), frozenset({3})))


def checkpoint_of(model: GridModel, config: ModelConfig) -> Checkpoint:
    return Checkpoint("some.ckpt", config, model.state_dict(), SEEN)


@pytest.fixture(scope="module")
def tasks(random_tasks: RandomTasks) -> tuple[Task, ...]:
    """Five tasks, each of four demonstrations and one question."""
    return random_tasks(5, longest_side=5)


@pytest.fixture
def checkpoint(small_config: ModelConfig) -> Checkpoint:
    return checkpoint_of(limit_sides(small_model(small_config, noise=0.3), 6), small_config)


def groups_of(tasks: tuple[Task, ...]) -> dict[str, str]:
    """All tasks but the last are of group `a`."""
    return {task.id: "b" if task is tasks[-1] else "a" for task in tasks}


# Standard errors by hand


def counts_of(**columns: list[int]) -> torch.Tensor:
    grids = len(next(iter(columns.values())))
    counts = torch.zeros(grids, len(Count), dtype=torch.int64)
    counts[:, Count.GRIDS] = 1
    for name, values in columns.items():
        counts[:, Count[name]] = torch.tensor(values)
    return counts


def test_error_of_a_share_of_grids_is_that_of_a_mean() -> None:
    # 1 1 0 1: mean 3/4, sample variance (3 * 1/16 + 9/16) / 3 = 1/4, over 4 grids 1/16.
    errors = standard_errors(counts_of(EXACT=[1, 1, 0, 1]))
    assert errors["grid_accuracy"] == pytest.approx(0.25)
    values = np.array([1, 1, 0, 1])
    assert errors["grid_accuracy"] == pytest.approx(values.std(ddof=1) / math.sqrt(4))


def test_error_of_a_ratio_is_linearised() -> None:
    # Right cells 2, 3, 1 of 4, 4, 2: R = 6/10.
    # y - R x = -0.4, 0.6, -0.2; z = that / 10; sum z^2 = 0.56 / 100; times 3/2 = 0.0084.
    errors = standard_errors(counts_of(CELLS=[4, 4, 2], CORRECT_CELLS=[2, 3, 1]))
    assert errors["cell_accuracy"] == pytest.approx(math.sqrt(0.0084))


def test_error_of_f1_takes_both_kinds_of_changes() -> None:
    # Common 1, 2; target 1, 4; predicted 3, 2: R = 6/10, y = 2, 4, x = 4, 6.
    # z = (2 - 2.4) / 10 and (4 - 3.6) / 10: sum of squares 0.0032, times 2.
    counts = counts_of(COMMON_CHANGES=[1, 2], TARGET_CHANGES=[1, 4], PREDICTED_CHANGES=[3, 2])
    assert standard_errors(counts)["transformation_f1"] == pytest.approx(0.08)


def test_error_of_the_objective_counts_what_its_parts_share() -> None:
    # Both parts are 1, 0 on two grids, so the objective is too: its error is 1/2.
    # Added as if independent it would be 0.5 * sqrt(0.64 + 0.04).
    counts = counts_of(EXACT=[1, 0], TOL_95=[1, 0], CELLS=[9, 9], CORRECT_CELLS=[9, 0])
    assert standard_errors(counts)["dense_grid_objective"] == pytest.approx(0.5)
    weights = {"w_cell": 1.0, "w_tol": 0.0, "w_ex": 0.0}
    errors = standard_errors(counts, weights)
    assert errors["dense_grid_objective"] == pytest.approx(errors["cell_accuracy"])


def test_one_grid_has_no_error() -> None:
    assert standard_errors(counts_of(EXACT=[1])) == {}


def test_what_has_no_denominator_has_no_error() -> None:
    errors = standard_errors(counts_of(EXACT=[1, 0], TARGET_CHANGES=[0, 0]))
    assert "change_recall" not in errors
    assert errors["grid_accuracy"] == 0.5


def test_errors_agree_with_resampling() -> None:
    rng = np.random.default_rng(0)
    cells = rng.integers(1, 60, 400)
    right = rng.binomial(cells, rng.random(400))
    counts = counts_of(CELLS=cells.tolist(), CORRECT_CELLS=right.tolist())
    draws = rng.integers(400, size=(4000, 400))
    resampled = (right[draws].sum(1) / cells[draws].sum(1)).std()
    assert standard_errors(counts)["cell_accuracy"] == pytest.approx(resampled, rel=0.05)


# Scores


def test_evaluation_is_the_validation_of_training(
    checkpoint: Checkpoint, tasks: tuple[Task, ...]
) -> None:
    store = store_pairs(tasks)
    names, group_of_task = group_indices(store, groups_of(tasks))
    module = ArcModule(
        checkpoint.model,
        TrainingConfig(),
        task_ids=store.task_ids,
        groups=names,
        group_of_task=torch.from_numpy(group_of_task),
        seen=Seen(TaskSet()),
        epoch_steps=1,
    ).eval()
    module.model.load_state_dict(checkpoint.weights)
    plan = BatchPlan(
        store,
        np.arange(len(store.task_of)),
        batch_size=4,
        demonstrations=checkpoint.model.context_pairs,
    )
    with torch.inference_mode():
        for index, draw in enumerate(plan):
            module.validation_step(BatchDataset(store)[draw], index)
    table = module.metrics.by_group()
    scores = score_tasks(checkpoint, tasks, groups_of(tasks), BY_GROUP, CPU)
    assert scores.keys() == table.keys() == {"a", "b"}
    for group, score in scores.items():
        expected = table[group]
        assert score.grids == expected.grids
        values = dict(expected.metrics)
        values.pop("compositional_gap")
        values.pop("compositional_gap_rate")
        assert score.metrics == values
    assert scores["a"].metrics["cell_accuracy"] > 0


def test_a_group_is_the_sum_of_its_tasks(checkpoint: Checkpoint, tasks: tuple[Task, ...]) -> None:
    groups = groups_of(tasks)
    by_task = score_tasks(checkpoint, tasks, groups, BY_TASK, CPU)
    by_group = score_tasks(checkpoint, tasks, groups, BY_GROUP, CPU)
    assert list(by_task) == [task.id for task in tasks]
    assert {score.grids for score in by_task.values()} == {5}
    assert by_group["b"] == by_task[tasks[-1].id]
    assert by_group["a"].grids == 20
    cells = {task.id: sum(pair.output.size for pair in task.pairs) for task in tasks[:-1]}
    right = sum(cells[id_] * by_task[id_].metrics["cell_accuracy"] for id_ in cells)
    total = sum(cells.values())
    assert by_group["a"].metrics["cell_accuracy"] == pytest.approx(right / total, abs=1e-6)


def test_scores_do_not_depend_on_the_other_tasks(
    checkpoint: Checkpoint, tasks: tuple[Task, ...]
) -> None:
    together = score_tasks(checkpoint, tasks, groups_of(tasks), BY_TASK, CPU)
    alone = score_tasks(checkpoint, tasks[1:2], groups_of(tasks), BY_TASK, CPU)
    assert alone == {tasks[1].id: together[tasks[1].id]}


def test_errors_of_few_grids_are_left_out(
    checkpoint: Checkpoint, tasks: tuple[Task, ...], random_tasks: RandomTasks
) -> None:
    (score,) = score_tasks(checkpoint, tasks[:1], groups_of(tasks), BY_TASK, CPU).values()
    assert score.metrics.keys() == metric_values(torch.zeros(len(Count)).long()).keys()
    assert score.standard_errors == {}
    many = random_tasks(12, longest_side=4)
    (of_all,) = score_tasks(
        checkpoint, many, dict.fromkeys((task.id for task in many), "a"), BY_GROUP, CPU
    ).values()
    assert of_all.grids >= 30
    for name, value in of_all.metrics.items():
        assert (name in of_all.standard_errors) == is_estimated(value, of_all.grids), name


# Examples


def rows(grid: GridRows) -> list[list[int]]:
    return [list(row) for row in grid]


def test_examples_show_the_first_test_pair(checkpoint: Checkpoint, tasks: tuple[Task, ...]) -> None:
    examples = answer_tasks(checkpoint, tasks[:2], CPU)
    assert [example.task for example in examples] == ["task0", "task1"]
    for example, task in zip(examples, tasks, strict=False):
        assert rows(example.input) == task.questions[0].input.tolist()
        assert rows(example.target) == task.questions[0].output.tolist()
        model = limit_sides(small_model(checkpoint.model, noise=0.3), 6)
        batch = batch_of(store_pairs([task]), [4], checkpoint.model.context_pairs)
        decoded = model.answers(batch).grids
        assert np.array(example.answer.grid).shape == tuple(decoded.sizes[0].tolist())
        assert np.array(example.answer.grid).ravel().tolist() == decoded.cells[0].tolist()


def test_examples_tell_what_is_right(random_tasks: RandomTasks) -> None:
    config = SMALL_MODELS["encoder_decoder"]
    model = small_model(config)
    with torch.no_grad():
        bias = model.get_parameter("size_head.linear.bias").view(2, 30)
        bias[0, 0] += 1e4
        bias[1, 1] += 1e4  # every output is 1 x 2
    (task,) = random_tasks(1, questions=0)
    source = task.demonstrations[0].input
    store = store_pairs([Task("t", (Pair(source, np.zeros((1, 2), dtype=np.uint8)),))])
    first, second = model.answers(batch_of(store, [0])).grids.cells[0].tolist()
    outputs = [[[first, second]], [[first, 9 - second]], [[first], [second]]]
    shown = [
        Task(f"t{index}", (Pair(source, np.array(output, dtype=np.uint8)),))
        for index, output in enumerate(outputs)
    ]
    examples = answer_tasks(checkpoint_of(model, config), shown, CPU)
    assert [rows(example.answer.grid) for example in examples] == [[[first, second]]] * 3
    assert [example.answer.solved for example in examples] == [True, False, False]


def test_pictures_are_chosen_over_all_sizes(random_tasks: RandomTasks) -> None:
    tasks = random_tasks(9)
    sizes = {task.id: task.pairs[-1].output.size for task in tasks}
    by_size = sorted(sizes, key=lambda id_: (sizes[id_], id_))
    assert choose_pictures(tasks, 3) == [by_size[2], by_size[4], by_size[6]]
    assert choose_pictures(tasks, 0) == []
    assert len(choose_pictures(tasks, 20)) <= len(tasks)


def test_every_model_answers_the_same_example(
    checkpoint: Checkpoint, tasks: tuple[Task, ...]
) -> None:
    answered = answer_tasks(checkpoint, tasks[:2], CPU)
    examples = picture_examples({"a": answered, "b": answered}).examples
    assert [example.task for example in examples] == ["task0", "task1"]
    for example, item in zip(examples, answered, strict=True):
        assert example.predictions == {"a": item.answer, "b": item.answer}
        assert (example.input, example.target) == (item.input, item.target)
