"""The test of a trained model."""

import pickle

import pytest
import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.comparators import rules
from raylab.arc.comparators.rules import with_rules
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sides import Sides, load_sides
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import split_tasks
from raylab.arc.data.tasks import Pair
from raylab.arc.records import HeldOut
from raylab.arc.scoring.evaluation import score_tasks
from raylab.arc.scoring.held_out import measure_test
from raylab.arc.seen import Seen, TaskSet
from raylab.arc.training import build_experiment
from raylab.config.arc import DataConfig, ScoringConfig, TrainingConfig
from raylab.config.jobs import TrainConfig
from raylab.grid_metrics import RuleMetrics
from tests.arc.conftest import SMALL_MODELS, fingerprint, small_model

CPU = torch.device("cpu")
DATA = DataConfig(every=40, pairs_per_task=3)
"""Ten tasks of ARC-AGI-1, of which two are tested."""


def test_sides_that_hold_the_counts_of_rules_spare_the_counting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = TrainConfig(model=SMALL_MODELS["champion"], data=DATA)
    weights = small_model(config.model, noise=0.3).state_dict()
    checkpoint = Checkpoint("some.ckpt", config.model, weights, Seen(TaskSet()))

    def measured(sides: Sides) -> tuple[RuleMetrics, HeldOut]:
        rules = build_experiment(config, sides).rules
        return rules, measure_test(config, sides, checkpoint, CPU)

    sides = load_sides(DATA)
    alone, shared = measured(sides), pickle.loads(pickle.dumps(with_rules(sides)))
    monkeypatch.delattr(rules, "count_rules")
    assert measured(shared) == alone


@pytest.mark.parametrize("select_on_test", [False, True])
def test_the_test_is_of_the_test_tasks_alone(select_on_test: bool) -> None:
    model = SMALL_MODELS["champion"]
    weights = small_model(model, noise=0.3).state_dict()
    checkpoint = Checkpoint("some.ckpt", model, weights, Seen(TaskSet()))
    data = DATA.model_copy(update={"select_on_test": select_on_test})
    config = TrainConfig(model=model, data=data, training=TrainingConfig(batch_size=3))
    found = measure_test(config, load_sides(data), checkpoint, CPU)

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


def test_held_out_pairs_of_trained_tasks() -> None:
    """A champion on the pairs of one task that a split by pair holds out."""
    model = SMALL_MODELS["champion"]
    data = DataConfig(tasks=("007bbfb7", "0520fde7"), split_by="pair", test_fraction=0.5)
    sides = load_sides(data)
    tested = sides.contents[sides.test].tolist()
    weights = small_model(model, noise=0.3).state_dict()
    config = TrainConfig(model=model, data=data)

    def measured(seen: Seen) -> HeldOut:
        return measure_test(config, sides, Checkpoint("some.ckpt", model, weights, seen), CPU)

    found = measured(sides.seen)
    # Six pairs and four, of which halves are tested.
    assert {task: of.pairs for task, of in found.by_task.items()} == {"007bbfb7": 3, "0520fde7": 2}
    assert (found.by, found.tasks, found.pairs, found.trained_pairs) == ("pair", 2, 5, 0)
    assert "pairs (of tasks that were trained on)" in found.name
    cells = {task: sum(of.output.size for of in pairs(sides, task)) for task in found.by_task}
    right = sum(of.cell_accuracy * cells[task] for task, of in found.by_task.items())
    assert found.metrics["cell_accuracy"] == pytest.approx(right / sum(cells.values()), abs=1e-6)
    assert found.mean_of_tasks is not None
    assert found.mean_of_tasks.cell_accuracy == pytest.approx(
        sum(of.cell_accuracy for of in found.by_task.values()) / 2
    )
    leaked = TaskSet(frozenset({"007bbfb7"}), frozenset(tested[:2]))
    assert measured(Seen(leaked)).trained_pairs == 2


def pairs(sides: Sides, task: str) -> list[Pair]:
    """The tested pairs of a task."""
    tested = {*sides.contents[sides.test].tolist()}
    (found,) = load_tasks(DataConfig(tasks=(task,)))
    return [pair for pair in found.pairs if fingerprint(pair) in tested]
