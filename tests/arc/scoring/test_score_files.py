"""Planning, writing and resuming a score tree, without a cluster."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from raylab.arc.data.generations import redraw
from raylab.arc.data.sides import load_sides
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Pair
from raylab.arc.scoring.evaluation import score_tasks
from raylab.arc.scoring.files import missing_units, read_accuracies, write_scores
from raylab.arc.scoring.plan import Scoring, plan_scoring
from raylab.arc.scoring.units import part_seen
from raylab.arc.training import build_experiment, build_trainer
from raylab.config.arc import DataConfig, Precision, ScoringConfig, TaskSource, TrainingConfig
from raylab.config.jobs import EvaluateConfig, TrainConfig
from raylab.config.models import EncoderDecoderConfig
from raylab.errors import DataError, RunError
from raylab.runs.run import Run
from tests.arc.conftest import fingerprint

DATA = DataConfig(every=40, pairs_per_task=3)
"""Ten tasks of ARC-AGI-1: seven to train on, one to validate on, two to test on."""
SCORING = ScoringConfig()


def trained(data: DataConfig, folder: Path) -> str:
    config = TrainConfig(
        model=EncoderDecoderConfig(d_model=16, d_ff=32, heads=2, decoder_layers=1),
        data=data,
        training=TrainingConfig(epochs=1, precision=Precision.FLOAT32),
    )
    experiment = build_experiment(config, load_sides(config.data))
    trainer = build_trainer(config.training, accelerator="cpu")
    trainer.fit(experiment.module, datamodule=experiment.data)
    path = folder / "one.ckpt"
    trainer.save_checkpoint(path, weights_only=False)
    return str(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained(DATA, tmp_path_factory.mktemp("models"))


@pytest.fixture
def tree(tmp_path: Path) -> Run:
    config = EvaluateConfig(storage=str(tmp_path), name="scored", models=("one",))
    return Run.open(config, config.job)


def planned(checkpoint: str, tree: Run, scoring: ScoringConfig = SCORING) -> Scoring:
    return plan_scoring({"one": checkpoint}, ("published", 1), DATA, scoring, tree).written()


def test_a_tree_is_planned_written_and_gone_on_with(checkpoint: str, tree: Run) -> None:
    scoring = planned(checkpoint, tree)
    assert len(scoring.plan.tasks) == 2
    missing = missing_units(scoring)
    assert missing == {pair: tuple(scoring.plan.units) for pair in scoring.plan.pairs}
    written: dict[tuple[str, str], dict[str, float]] = {}
    for pair, units in missing.items():
        scores = score_tasks(
            scoring.checkpoints[pair[0]],
            load_tasks(scoring.data(pair[1], units)),
            scoring.unit_of_task(units),
            SCORING,
            torch.device("cpu"),
        )
        written[pair] = write_scores(scoring, pair, scores)

    again = planned(checkpoint, tree)
    assert again.plan == scoring.plan
    assert not again.checkpoints and not missing_units(again)
    assert read_accuracies(again, {}) == written
    pair, unit = ("one", "seed-1"), next(iter(scoring.plan.units))
    (Path(tree.path) / again.file(pair, unit)).unlink()
    assert missing_units(again) == {pair: (unit,)}


def test_scores_of_other_settings_or_files_are_not_mixed(checkpoint: str, tree: Run) -> None:
    planned(checkpoint, tree)
    with pytest.raises(RunError, match=r"is of other scoring: .*choose another name="):
        planned(checkpoint, tree, ScoringConfig(metric="cell_accuracy"))
    with pytest.raises(RunError, match=r"model one from .*not among the models.*another name="):
        plan_scoring({"two": checkpoint}, ("published", 1), DATA, SCORING, tree)
    with pytest.raises(RunError, match="is of other generations"):
        plan_scoring({"one": checkpoint}, ("published",), DATA, SCORING, tree)


def test_a_task_is_seen_under_another_id(tmp_path: Path, tree: Run) -> None:
    """40853293 of ARC-AGI-1 is 070dd51e in ARC-AGI-2, and a copy of any task is that task."""
    data = DataConfig(tasks=("40853293", "007bbfb7", "00d62c1b"))
    (tmp_path / "split.json").write_text(
        json.dumps({"train": ["40853293"], "val": ["007bbfb7"], "test": ["00d62c1b"]})
    )
    data = data.model_copy(update={"split": str(tmp_path / "split.json")})
    checkpoint = trained(data, tmp_path)
    second = DataConfig(source=TaskSource.ARC_AGI_2, tasks=("070dd51e", "00576224"))
    units = (
        plan_scoring({"one": checkpoint}, ("published",), second, SCORING, tree)
        .written()
        .plan.units
    )
    assert units.keys() == {"00576224"}

    copies = tmp_path / "tasks"
    copies.mkdir()
    for id_, name in (("40853293", "trained"), ("007bbfb7", "chosen"), ("00d62c1b", "tested")):
        (task,) = redraw(load_tasks(DataConfig(tasks=(id_,))), 5)
        pairs = [{"input": p.input.tolist(), "output": p.output.tolist()} for p in task.pairs]
        (copies / f"{name}.json").write_text(json.dumps(pairs))
    copied = DataConfig(source=TaskSource.RE_ARC, path=str(copies))
    for name, more, expected in (
        ("a", {}, {"tested"}),
        ("b", {"select_on_test": True}, {"tested", "chosen"}),
    ):
        config = EvaluateConfig(storage=str(tmp_path), name=name, models=("one",))
        own = Run.open(config, config.job)
        data = copied.model_copy(update=more)
        planned = plan_scoring({"one": checkpoint}, ("published",), data, SCORING, own).written()
        assert planned.plan.units.keys() == expected


def test_pairs_that_were_held_out_of_trained_tasks_are_scored(tmp_path: Path, tree: Run) -> None:
    """Two tasks of six and four pairs, trained on by pair."""
    data = DataConfig(tasks=("007bbfb7", "0520fde7"), split_by="pair", test_fraction=0.4)
    checkpoint = trained(data, tmp_path)
    sides = load_sides(data)
    # Two tested pairs of either task: round(6 * 0.4) and round(4 * 0.4).
    assert len(sides.test) == 4
    scoring = plan_scoring({"one": checkpoint}, ("published", 1), data, SCORING, tree).written()
    assert scoring.plan.units.keys() == {"007bbfb7", "0520fde7"}
    tested = {*sides.contents[sides.test].tolist()}
    assert not tested & scoring.seen
    for generation in ("published", "seed-1"):
        tasks = load_tasks(scoring.data(generation, scoring.plan.units))
        scores = score_tasks(
            scoring.checkpoints["one"],
            tasks,
            scoring.unit_of_task(scoring.plan.units),
            SCORING,
            torch.device("cpu"),
            scoring.seen,
        )
        assert {task: score.grids for task, score in scores.items()} == {
            "007bbfb7": 2,
            "0520fde7": 2,
        }
        shown = {one for of in part_seen(tasks, scoring.seen) for one in prints(of.demonstrations)}
        # What it was trained on and chosen on is shown, and nothing that is scored.
        assert shown == scoring.seen
    again = plan_scoring({"one": checkpoint}, ("published", 1), data, SCORING, tree).written()
    assert again.seen == scoring.seen and again.plan == scoring.plan
    with pytest.raises(RunError, match="further models"):
        models = {"one": checkpoint, "two": checkpoint}
        plan_scoring(models, ("published", 1), data, SCORING, tree)
    # Asked for new tasks, there are none.
    by_task = data.model_copy(update={"split_by": "task"})
    other = Run.open(EvaluateConfig(storage=str(tmp_path), name="o", models=("one",)), "evaluate")
    with pytest.raises(DataError, match="each of the 2 tasks"):
        plan_scoring({"one": checkpoint}, ("published",), by_task, SCORING, other)


def prints(pairs: Sequence[Pair]) -> set[int]:
    return {fingerprint(pair) for pair in pairs}
