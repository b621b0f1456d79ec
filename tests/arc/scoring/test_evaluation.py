import numpy as np
import pytest
import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.models import ModelConfig
from raylab.arc.config.sections import ScoringConfig
from raylab.arc.data.batching import BatchPlan
from raylab.arc.data.content import Seen, TaskSet, fingerprints
from raylab.arc.data.split import Sides
from raylab.arc.data.tasks import Task, group_indices, store_pairs
from raylab.arc.metrics import Count, metric_values, standard_errors
from raylab.arc.module import ArcModule
from raylab.arc.scoring.evaluation import score_tasks
from raylab.core.runs.eval_logs import is_estimated
from tests.arc.conftest import SMALL_MODELS, limit_sides, make_tasks, small_model

CPU = torch.device("cpu")
SCORING = ScoringConfig(batch_size=4)


@pytest.fixture(scope="module")
def tasks() -> tuple[Task, ...]:
    """Five tasks, each of four demonstrations and one question."""
    return make_tasks(5, longest_side=5)


@pytest.fixture
def checkpoint(small_config: ModelConfig) -> Checkpoint:
    model = limit_sides(small_model(small_config, noise=0.3), 6)
    return Checkpoint("some.ckpt", small_config, model.state_dict(), Seen(TaskSet()))


def groups_of(tasks: tuple[Task, ...]) -> dict[str, str]:
    """All tasks but the last are of group `a`."""
    return {task.id: "b" if task is tasks[-1] else "a" for task in tasks}


def test_errors_of_all_metrics_agree_with_resampling() -> None:
    rng = np.random.default_rng(0)
    counts = torch.from_numpy(rng.integers(0, 40, (400, len(Count))))
    # Parts of a grid go together, as those of the objective and of F1 do.
    counts += torch.from_numpy(rng.integers(0, 40, (400, 1)))
    counts[:, Count.GRIDS] = 1
    draws = rng.integers(400, size=(4000, 400))
    resampled = metric_values(torch.stack([counts[draw].sum(0) for draw in draws]).T)
    errors = standard_errors(counts)
    assert errors.keys() == resampled.keys()
    for name, error in errors.items():
        assert error == pytest.approx(float(resampled[name].double().std()), rel=0.06), name
    # Without a denominator the value is a convention, and a single grid tells no error.
    counts[:, Count.TARGET_CHANGES] = 0
    assert "change_recall" not in standard_errors(counts)
    assert standard_errors(counts[:1]) == {}


def test_evaluation_is_the_validation_of_training(
    checkpoint: Checkpoint, tasks: tuple[Task, ...]
) -> None:
    store = store_pairs(tasks)
    pairs, groups = store.pairs, group_indices(store, groups_of(tasks))
    sides = Sides(store, fingerprints(store), *groups, store, pairs, pairs, pairs)
    module = ArcModule(TrainConfig(model=checkpoint.model), sides, epoch_steps=1).eval()
    module.model.load_state_dict(checkpoint.weights)
    shown = checkpoint.model.context_pairs
    plan = BatchPlan(store, pairs, batch_size=4, demonstrations=shown)
    with torch.inference_mode():
        for index, batch in enumerate(plan.batches()):
            module.validation_step(batch, index)
    table = module.metrics.by_group()
    scores = score_tasks(checkpoint, tasks, groups_of(tasks), SCORING, CPU)
    assert scores.keys() == table.keys() == {"a", "b"}
    for group, score in scores.items():
        assert score.grids == table[group].grids
        gaps = {"compositional_gap", "compositional_gap_rate"}
        assert score.metrics == {k: v for k, v in table[group].metrics.items() if k not in gaps}
    assert scores["a"].metrics["cell_accuracy"] > 0


def test_a_group_is_the_sum_of_its_tasks_and_a_task_is_scored_alone_alike(
    checkpoint: Checkpoint, tasks: tuple[Task, ...]
) -> None:
    each = {task.id: task.id for task in tasks}
    by_task = score_tasks(checkpoint, tasks, each, SCORING, CPU)
    by_group = score_tasks(checkpoint, tasks, groups_of(tasks), SCORING, CPU)
    assert list(by_task) == [task.id for task in tasks]
    assert {score.grids for score in by_task.values()} == {5}
    assert by_group["b"] == by_task[tasks[-1].id]
    assert by_group["a"].grids == 20
    cells = {task.id: sum(pair.output.size for pair in task.pairs) for task in tasks[:-1]}
    right = sum(cells[id_] * by_task[id_].metrics["cell_accuracy"] for id_ in cells)
    total = sum(cells.values())
    assert by_group["a"].metrics["cell_accuracy"] == pytest.approx(right / total, abs=1e-6)
    alone = score_tasks(checkpoint, tasks[1:2], each, SCORING, CPU)
    assert alone == {tasks[1].id: by_task[tasks[1].id]}


@pytest.mark.parametrize("small_config", [SMALL_MODELS["champion"]])
def test_errors_of_few_grids_are_left_out(checkpoint: Checkpoint) -> None:
    tasks = make_tasks(12, longest_side=4)
    units = {task.id: "few" if task is tasks[0] else "many" for task in tasks}
    scores = score_tasks(checkpoint, tasks, units, SCORING, CPU)
    assert scores["few"].standard_errors == {}
    many = scores["many"]
    assert many.grids >= 30
    for name, value in many.metrics.items():
        assert (name in many.standard_errors) == is_estimated(value, many.grids), name
