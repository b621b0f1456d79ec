"""The test of a trained model."""

import pytest
import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.splits import split_tasks
from raylab.arc.evaluation import score_tasks
from raylab.arc.held_out import measure_test
from raylab.arc.seen import Seen, TaskSet
from raylab.config.arc import DataConfig, ScoringConfig, TrainingConfig
from raylab.config.jobs import TrainConfig
from tests.arc.conftest import SMALL_MODELS, small_model

CPU = torch.device("cpu")
DATA = DataConfig(every=40, pairs_per_task=3)
"""Ten tasks of ARC-AGI-1, of which two are tested."""


@pytest.mark.parametrize("select_on_test", [False, True])
def test_the_test_is_of_the_test_tasks_alone(select_on_test: bool) -> None:
    model = SMALL_MODELS["champion"]
    weights = small_model(model, noise=0.3).state_dict()
    checkpoint = Checkpoint("some.ckpt", model, weights, Seen(TaskSet()))
    data = DATA.model_copy(update={"select_on_test": select_on_test})
    config = TrainConfig(model=model, data=data, training=TrainingConfig(batch_size=3))
    found = measure_test(config, checkpoint, CPU)

    tasks = load_tasks(DATA)
    split = split_tasks(tasks, group_tasks(tasks), DATA)
    tested = [task for task in tasks if task.id in split.test]
    groups = dict.fromkeys(split.test, "all")
    (expected,) = score_tasks(checkpoint, tested, groups, ScoringConfig(unit="group"), CPU).values()
    assert (found.side, found.chosen_on) == ("test", select_on_test)
    assert (found.tasks, found.pairs) == (2, expected.grids)
    assert expected.metrics["cell_accuracy"] > 0
    assert {name: found.metrics[name] for name in expected.metrics} == expected.metrics
    assert sum(group.grids for group in found.groups.values()) == expected.grids
    assert found.groups.keys() == {*group_tasks(tested).values()}
    assert found.rules.keys() == {"copy_source", "previous_cell", "copy_else_previous"}
