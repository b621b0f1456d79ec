"""The test of a trained model."""

import pytest
import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import DataConfig, ScoringConfig
from raylab.arc.data.content import Seen, TaskSet
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import Sides, load_sides
from raylab.arc.records import HeldOut
from raylab.arc.scoring.evaluation import score_tasks
from raylab.arc.training import outcome
from raylab.core.config.base import ClusterConfig
from tests.arc.conftest import SMALL_MODELS, fingerprint, small_model

CPU = torch.device("cpu")
DATA = DataConfig(every=40, pairs_per_task=3)
"""Ten tasks of ARC-AGI-1, of which two are tested."""
CONFIG = TrainConfig(model=SMALL_MODELS["champion"], data=DATA)
NOTHING = Seen(TaskSet())


def checkpoint(seen: Seen = NOTHING) -> Checkpoint:
    weights = small_model(CONFIG.model, noise=0.3).state_dict()
    return Checkpoint("some.ckpt", CONFIG.model, weights, seen)


def measured(sides: Sides, data: DataConfig = DATA, seen: Seen = NOTHING) -> HeldOut:
    config = CONFIG.model_copy(update={"data": data})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "read_checkpoint", lambda uri: checkpoint(seen))
        share = ClusterConfig(use_gpu=False, cpus_per_worker=1)
        return outcome.measure_test(config, sides, "some.ckpt", share)


@pytest.mark.parametrize("select_on_test", [False, True])
def test_the_test_is_of_the_test_tasks_alone(select_on_test: bool) -> None:
    data = DATA.model_copy(update={"select_on_test": select_on_test})
    sides = load_sides(data)
    figures = measured(sides, data)
    ids = sides.tasks_of(sides.test)
    tasks = [task for task in load_tasks(DATA) if task.id in ids]
    (expected,) = score_tasks(
        checkpoint(), tasks, dict.fromkeys(ids, "all"), ScoringConfig(), CPU
    ).values()
    assert (figures.side, figures.chosen_on) == ("test", select_on_test)
    assert (figures.tasks, figures.pairs) == (2, expected.grids)
    assert expected.metrics["cell_accuracy"] > 0
    assert {name: figures.metrics[name] for name in expected.metrics} == expected.metrics
    groups = group_tasks(tasks)
    by_group = score_tasks(checkpoint(), tasks, groups, ScoringConfig(), CPU)
    assert {group: own.grids for group, own in figures.groups.items()} == {
        group: score.grids for group, score in by_group.items()
    }
    # Every group has the baselines too, and their exact grids are those of all groups.
    assert figures.baselines.keys() == {"copy_source", "previous_cell", "copy_else_previous"}
    for baseline, metrics in figures.baselines.items():
        right = sum(
            figures.group_baselines[group][baseline]["grid_accuracy"] * own.grids
            for group, own in figures.groups.items()
        )
        assert metrics["grid_accuracy"] == pytest.approx(right / expected.grids, abs=1e-6)


def test_held_out_pairs_of_trained_tasks() -> None:
    """A champion on the pairs of one task that a split by pair holds out."""
    data = DataConfig(tasks=("007bbfb7", "0520fde7"), split_by="pair", test_fraction=0.5)
    sides = load_sides(data)
    tested = sides.contents[sides.test].tolist()
    figures = measured(sides, data, sides.seen)
    # Six pairs and four, of which halves are tested.
    by_task = figures.by_task
    assert {id_: own.pairs for id_, own in by_task.items()} == {"007bbfb7": 3, "0520fde7": 2}
    assert (figures.by, figures.tasks, figures.pairs, figures.trained_pairs) == ("pair", 2, 5, 0)
    assert "pairs (of tasks that were trained on)" in figures.name
    cells = {
        task.id: sum(pair.output.size for pair in task.pairs if fingerprint(pair) in tested)
        for task in load_tasks(data)
    }
    right = sum(own.cell_accuracy * cells[id_] for id_, own in by_task.items())
    assert figures.metrics["cell_accuracy"] == pytest.approx(right / sum(cells.values()), abs=1e-6)
    assert figures.mean_of_tasks is not None
    assert figures.mean_of_tasks.cell_accuracy == pytest.approx(
        sum(own.cell_accuracy for own in by_task.values()) / 2
    )
    leaked = TaskSet(frozenset({"007bbfb7"}), frozenset(tested[:2]))
    assert measured(sides, data, Seen(leaked)).trained_pairs == 2
