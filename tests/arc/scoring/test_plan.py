"""Planning of score trees: what is scored, and what must not be mixed."""

from pathlib import Path

import pytest
import torch

from raylab.arc.config.sections import DataConfig, ScoringConfig, TaskSource
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import load_sides
from raylab.arc.data.tasks import redraw
from raylab.arc.scoring.evaluation import score_tasks
from raylab.arc.scoring.plan import generation_configs, part_seen, plan_scoring
from raylab.core.errors import ConfigError, DataError, RunError
from raylab.core.runs.run import Run
from tests.arc.conftest import fingerprint
from tests.arc.evaluation.models import CHECKPOINT, train_small
from tests.arc.tasks import as_json, write_json

SCORING = ScoringConfig()


def trained(data: DataConfig, folder: Path) -> str:
    train_small(Run.at(str(folder / "one")), data)
    return str(folder / "one" / CHECKPOINT)


def test_a_task_is_seen_under_another_id(tmp_path: Path) -> None:
    """40853293 of ARC-AGI-1 is 070dd51e in ARC-AGI-2, and a copy of any task is that task."""
    lists = {"train": ["40853293"], "val": ["007bbfb7"], "test": ["00d62c1b"]}
    split = write_json(tmp_path / "split.json", lists)
    data = DataConfig(tasks=("40853293", "007bbfb7", "00d62c1b"), split=split)
    models = {"one": trained(data, tmp_path)}
    names = {"40853293": "trained", "007bbfb7": "chosen", "00d62c1b": "tested"}
    for task in redraw(load_tasks(data), 5):
        write_json(tmp_path / "tasks" / f"{names[task.id]}.json", as_json(task.pairs))
    copied = DataConfig(source=TaskSource.RE_ARC, path=tmp_path / "tasks")
    second = DataConfig(source=TaskSource.ARC_AGI_2, tasks=("070dd51e", "00576224"))
    for scored, units in (
        (second, {"00576224"}),
        (copied, {"tested"}),
        (copied.model_copy(update={"select_on_test": True}), {"tested", "chosen"}),
    ):
        planned = plan_scoring(models, ("published",), scored, SCORING, Run.at(str(tmp_path)))
        assert planned.plan.units.keys() == units


def test_pairs_that_were_held_out_of_trained_tasks_are_scored(tmp_path: Path) -> None:
    """Two tasks of six and four pairs, trained on by pair."""
    data = DataConfig(tasks=("007bbfb7", "0520fde7"), split_by="pair", test_fraction=0.4)
    models = {"one": trained(data, tmp_path)}
    sides = load_sides(data)
    # Two tested pairs of either task: round(6 * 0.4) and round(4 * 0.4).
    assert len(sides.test) == 4
    tree = Run.at(str(tmp_path / "scored"))
    scoring = plan_scoring(models, ("published", 1), data, SCORING, tree).written()
    plan = scoring.plan
    assert plan.by_pair and plan.units.keys() == {"007bbfb7", "0520fde7"}
    assert not {*sides.contents[sides.test].tolist()} & plan.seen
    for generation in plan.generations:
        tasks = plan.tasks_in(generation)
        one, cpu = scoring.checkpoints["one"], torch.device("cpu")
        scores = score_tasks(one, tasks, plan.unit_of_task, SCORING, cpu, plan.seen)
        assert {task: score.grids for task, score in scores.items()} == dict.fromkeys(plan.units, 2)
        # What it was trained on and chosen on is shown, and nothing that is scored.
        shown = [p for task in part_seen(tasks, plan.seen) for p in task.demonstrations]
        assert {*map(fingerprint, shown)} == plan.seen
    assert plan_scoring(models, ("published", 1), data, SCORING, tree).plan == plan
    with pytest.raises(RunError, match="begun when two was not among the models"):
        plan_scoring(models | {"two": models["one"]}, ("published", 1), data, SCORING, tree)
    # Asked for new tasks, there are none.
    by_task = data.model_copy(update={"split_by": "task"})
    with pytest.raises(DataError, match="each of the 2 tasks"):
        plan_scoring(models, ("published",), by_task, SCORING, Run.at(str(tmp_path / "other")))


def test_generations_are_named_and_only_seeds_are_redrawn(tmp_path: Path):
    data = DataConfig(source=TaskSource.RE_ARC, path=tmp_path, generation=5)
    archive = str(tmp_path / "seed202.zip")
    configs = generation_configs(("published", 3, archive), data)
    assert {name: (own.path, own.generation) for name, own in configs.items()} == {
        "published": (data.path, None),
        "seed-3": (data.path, 3),
        "seed202": (archive, None),
    }
    with pytest.raises(ConfigError, match="both called x"):
        generation_configs(("/a/x.zip", "/b/x.zip"), data)
    with pytest.raises(ConfigError, match="reads no files"):
        generation_configs(("/some/archive.zip",), DataConfig())
