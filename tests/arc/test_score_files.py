"""Planning, writing and resuming a score tree, without a cluster."""

from pathlib import Path

import pytest
import torch

from raylab.arc.data.sources import load_tasks
from raylab.arc.evaluation import score_tasks
from raylab.arc.score_files import missing_units, read_accuracies, write_scores
from raylab.arc.score_plan import Scoring, plan_scoring
from raylab.arc.training import build_experiment, build_trainer
from raylab.config.arc import DataConfig, Precision, ScoringConfig, TrainingConfig
from raylab.config.jobs import EvaluateConfig, TrainConfig
from raylab.config.models import EncoderDecoderConfig
from raylab.errors import RunError
from raylab.runs.run import Run

DATA = DataConfig(every=40, pairs_per_task=3)
"""Ten tasks of ARC-AGI-1: seven to train on, one to validate on, two to test on."""
SCORING = ScoringConfig()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = TrainConfig(
        model=EncoderDecoderConfig(d_model=16, d_ff=32, heads=2, decoder_layers=1),
        data=DATA,
        training=TrainingConfig(epochs=1, precision=Precision.FLOAT32),
    )
    experiment = build_experiment(config)
    trainer = build_trainer(config, accelerator="cpu")
    trainer.fit(experiment.module, datamodule=experiment.data)
    path = tmp_path_factory.mktemp("models") / "one.ckpt"
    trainer.save_checkpoint(path, weights_only=False)
    return str(path)


@pytest.fixture
def tree(tmp_path: Path) -> Run:
    config = EvaluateConfig(storage=str(tmp_path), name="scored", models=("one",))
    return Run.open(config, config.job)


def planned(checkpoint: str, tree: Run, scoring: ScoringConfig = SCORING) -> Scoring:
    return plan_scoring({"one": checkpoint}, ("published", 1), DATA, scoring, tree)


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
