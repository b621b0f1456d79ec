"""Models that write all cells at once: raylab's own, and those of users."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from jobs.evaluate import run as run_evaluate
from raylab.arc.checkpoints import Checkpoint, restore_model
from raylab.arc.config.jobs import EvaluateConfig, TrainConfig, TuneConfig
from raylab.arc.config.models import CustomConfig
from raylab.arc.config.sections import DataConfig, ScoringConfig, TrainingConfig
from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.content import Seen, TaskSet
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, PAD, PairStore
from raylab.arc.grid_metrics import Count
from raylab.arc.inputs import read_inputs
from raylab.arc.metrics import grid_counts, metric_values
from raylab.arc.models import build_model
from raylab.arc.models.base import ParallelModel, exact_matches
from raylab.arc.models.custom import model_class, try_custom
from raylab.arc.records import TrainingMetrics
from raylab.arc.scoring.evaluation import count_batch
from raylab.arc.search import Draws, trial_config
from raylab.arc.sweep import best_yaml
from raylab.arc.training.local import train
from raylab.core.config.compose import load_config
from raylab.core.errors import CheckpointError, ConfigError
from raylab.core.runs.run import Run
from tests.arc.conftest import QUERIES, SMALL_MODELS, batch_of, small_model

GUIDE = (Path(__file__).parents[2] / "jobs/guide/train.md").read_text()
EXAMPLE = re.search(r"```python\n(.*?)```", GUIDE, re.S)


class Certain(ParallelModel):
    """Answers a grid of `height` x `width` whose cell (row, col) has colour row + 2 col."""

    size_rule = False

    def __init__(self, height: int = 2, width: int = 3) -> None:
        super().__init__()
        self.size = (height, width)
        self.scale = torch.nn.Parameter(torch.tensor(3.0))

    def read(self, batch: Batch) -> tuple[Tensor, Any]:
        sizes = torch.zeros(len(batch.source.cells), 2, MAX_SIDE)
        for axis, side in enumerate(self.size):
            sizes[:, axis, side - 1] = 1.0
        return self.scale * sizes, None

    def paint(self, batch: Batch, blank: Grids, encoded: Any) -> Sequence[Tensor]:
        colours = (blank.rows + 2 * blank.cols) % COLOURS
        return [self.scale * torch.nn.functional.one_hot(colours, COLOURS).float()]


@pytest.fixture
def batch(store: PairStore) -> Batch:
    return batch_of(store, QUERIES, 2)


def test_an_answer_and_its_likelihood(batch: Batch) -> None:
    answers = Certain().answers(batch)
    assert answers.grids.cells[0].tolist() == [0, 2, 4, 1, 3, 5]
    assert answers.grids.sizes.tolist() == [[2, 3]] * 6
    # Each side has one logit of 3 and 29 of 0, each of the 6 cells one of 3 and 9 of 0.
    e = torch.tensor(3.0).exp()
    expected = 2 * (e / (e + 29)).log() + 6 * (e / (e + 9)).log()
    assert answers.log_likelihoods.tolist() == pytest.approx([expected.item()] * 6, rel=1e-5)


def test_predictions_are_the_answers(store: PairStore, batch: Batch) -> None:
    """A model that is given its own answers as targets has solved them all."""
    model = small_model(SMALL_MODELS["recursive"])
    answers = model.answers(batch).grids
    counts = count_batch(model, batch._replace(target=answers))
    for count in (Count.EXACT, Count.CORRECT_SHAPES, Count.SOLVED):
        assert counts[:, count].all()


class Copyist(Certain):
    """Answers the target, wherever it is handed one."""

    def read(self, batch: Batch) -> tuple[Tensor, Any]:
        wanted = (batch.target.sizes - 1).clamp(min=0)
        return self.scale * torch.nn.functional.one_hot(wanted, MAX_SIDE).float(), batch

    def paint(self, batch: Batch, blank: Grids, encoded: Any) -> Sequence[Tensor]:
        copied = torch.zeros_like(blank.cells)
        copied[:, : encoded.target.cells.shape[1]] = (
            encoded.target.cells[:, : blank.cells.shape[1]] % PAD
        )
        return [self.scale * torch.nn.functional.one_hot(copied, COLOURS).float()]


def test_a_model_that_reads_the_target_solves_nothing_by_it(batch: Batch) -> None:
    assert exact_matches(Copyist().answers(batch).grids, batch.target).all()
    assert not count_batch(Copyist(), batch)[:, Count.SOLVED].any()


def test_an_answer_of_another_size_is_not_exact_and_unpainted_cells_are_no_changes() -> None:
    source, target = torch.zeros(1, 2, 2).long(), torch.ones(1, 2, 2).long()
    # Of four cells that change the answer paints the first, right.
    painted = torch.full((1, 2, 2), PAD)
    painted[0, 0, 0] = 1
    wrong = torch.tensor([False])
    how = {"solved": wrong, "shape_correct": wrong, "shape_by_rule": wrong, "free_running": True}
    smaller = metric_values(grid_counts(source, target, painted, **how).sum(0))
    assert smaller["change_recall"] == 0.25 and smaller["change_precision"] == 1.0
    assert smaller["copy_rate"] == 0.0 and smaller["cell_accuracy"] == 0.25
    # A larger answer covers the target with the right cells.
    larger = metric_values(grid_counts(source, target, target, **how).sum(0))
    assert larger["grid_accuracy"] == 0.0 and larger["cell_accuracy"] == 1.0


def test_gradients_stay_within_a_refinement(batch: Batch) -> None:
    model: Any = small_model(SMALL_MODELS["recursive"])
    assert len(model.train().training_logits(batch)) == 3
    model(batch).cells.sum().backward()
    # Only the first of three refinements reads the initial answer.
    assert model.answer.grad is None


@pytest.fixture
def mymodels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CustomConfig:
    """The example of the documents, importable as a user has it."""
    assert EXAMPLE is not None and len(EXAMPLE[1].splitlines()) <= 60
    (tmp_path / "mymodels.py").write_text(EXAMPLE[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mymodels", raising=False)
    return CustomConfig(target="mymodels:TwoLayers", options={"width": 8}, demonstrations=0)


def test_a_model_of_ones_own_is_trained_by_the_best_of_a_sweep_and_scored(
    tmp_path: Path, mymodels: CustomConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    documented = re.search(r"```yaml\n(# mysweep.yaml\n.*?)```", GUIDE, re.S)
    assert documented is not None
    (tmp_path / "mysweep.yaml").write_text(documented[1])
    sweep = load_config(TuneConfig, [], tmp_path / "mysweep.yaml")
    drawn = Draws(sweep).draw("a")
    assert drawn is not None
    # What the sweep leaves if its first trial is the best.
    best, storage = tmp_path / "best.yaml", str(tmp_path / "runs")
    best.write_text(best_yaml(trial_config(sweep, drawn, storage=storage, name="a")))
    changes = [f"storage={storage}", "name=mine", "data.every=100", "training.epochs=1"]
    config = load_config(TrainConfig, changes, best)
    assert isinstance(config.model, CustomConfig) and config.model.options["width"] in (64, 96)
    inputs = read_inputs(config)
    train(inputs)
    metrics = Run.at(f"{storage}/mine").read_record(TrainingMetrics)
    assert metrics is not None and not metrics.teacher_forced
    assert metrics.test is not None and 0 <= metrics.test.metrics["cell_accuracy"] <= 1
    scoring = ScoringConfig(model_classes=(mymodels.target,))
    evaluate = EvaluateConfig(
        storage=storage, name="scores", models=("mine",), generations=(1,), data=config.data,
        scoring=scoring,
    )  # fmt: skip
    nothing = evaluate.model_copy(update={"scoring": ScoringConfig(), "resume": True})
    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(sys.modules, "mymodels")
        with pytest.raises(CheckpointError, match=r"scoring\.model_classes=\[mymodels:TwoLayers\]"):
            run_evaluate(nothing)
    assert not (tmp_path / "runs/scores").exists()
    run_evaluate(evaluate)
    assert list((tmp_path / "runs/scores/scores/mine").rglob("*.json"))
    # Which classes may be imported makes no other run.
    run_evaluate(nothing)


def test_a_checkpoint_imports_nothing(tmp_path: Path, mymodels: CustomConfig) -> None:
    weights = build_model(mymodels).state_dict()
    checkpoint = Checkpoint("some.ckpt", mymodels, weights, Seen(TaskSet()))
    assert isinstance(restore_model(checkpoint), model_class(mymodels.target))
    del sys.modules["mymodels"]
    with pytest.raises(CheckpointError, match=r"scoring\.model_classes=\[mymodels:TwoLayers\]"):
        restore_model(checkpoint)
    assert "mymodels" not in sys.modules
    with pytest.raises(ConfigError, match="is no model class"):
        restore_model(replace(checkpoint, model=CustomConfig(target="os:system")))


WRONG = """

class Narrow(TwoLayers):
    def __init__(self):
        super().__init__()


class Nine(TwoLayers):
    def paint(self, batch, blank, encoded):
        return [logits[..., :9] for logits in super().paint(batch, blank, encoded)]


class NoList(TwoLayers):
    def paint(self, batch, blank, encoded):
        return super().paint(batch, blank, encoded)[0]


class Sizes(TwoLayers):
    def read(self, batch):
        sizes, encoded = super().read(batch)
        return sizes.flatten(1), encoded


class Answer(TwoLayers):
    def paint(self, batch, blank, encoded):
        cells = batch.target.cells.clamp(max=9)
        logits = super().paint(batch, blank, encoded)[0]
        return [logits + torch.nn.functional.one_hot(cells, 10)]


class Raises(TwoLayers):
    def read(self, batch):
        return super().read(batch.nothing)
"""


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_package.models:Net", "cannot be imported: .*PYTHONPATH"),
        ("ending_module:Net", "ending_module raises SystemExit: 0"),
        ("torch.nn:Linear", "is no model class"),
        ("tests.arc.test_parallel:Certain", "this model has none: set training.optimiser=adamw"),
        ("mymodels:Narrow", r"model\.options=\{'width': 8\}: .*width"),
        ("mymodels:Nine", r"paint \(.*mymodels.py:\d+\) returns a tensor of .* \[2, 4, 9\], where"),
        ("mymodels:NoList", r"paint \(.*\) returns a Tensor, where a list of at least one is due"),
        ("mymodels:Sizes", r"read \(.*\) returns a tensor of shape \[2, 60\], where .*30\]"),
        ("mymodels:Answer", r"paint \(.*\) returns logits that depend on batch.target"),
        ("mymodels:Raises", r"fails with a small batch at .*py:\d+: AttributeError: .*nothing"),
    ],
)
def test_a_class_that_goes_wrong_is_told_with_its_line_before_anything_starts(
    tmp_path: Path, mymodels: CustomConfig, target: str, message: str
) -> None:
    assert isinstance(try_custom(mymodels), ParallelModel)
    sys.modules.pop("mymodels")
    with (tmp_path / "mymodels.py").open("a") as file:
        file.write(WRONG)
    (tmp_path / "ending_module.py").write_text("raise SystemExit(0)")
    config = TrainConfig(
        storage=str(tmp_path / "runs"),
        name="new",
        model=mymodels.model_copy(update={"target": target}),
        data=DataConfig(every=200),
        training=TrainingConfig(optimiser="muon"),
    )
    with pytest.raises(ConfigError, match=message) as caught:
        read_inputs(config)
    assert len(str(caught.value).splitlines()) == 1
    if line := re.search(r"mymodels\.py:(\d+)", str(caught.value)):
        named = (tmp_path / "mymodels.py").read_text().splitlines()[int(line[1]) - 1]
        assert re.search(r"def (paint|read)\(|batch\.nothing", named)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
