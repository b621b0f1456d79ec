import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LambdaCallback

from raylab.arc import device
from raylab.arc.checkpoints import load_weights, read_checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.models import (
    ChampionConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
)
from raylab.arc.config.sections import DataConfig, Precision, TrainingConfig
from raylab.arc.data.batching import Draw, build_batch
from raylab.arc.data.content import fingerprints
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import Sides
from raylab.arc.data.steps import StepPlan, TrainingStep
from raylab.arc.data.tasks import PairStore, Task, store_pairs
from raylab.arc.device import hardware_precision
from raylab.arc.grid_metrics import SCORED
from raylab.arc.loss import MeanLoss, step_loss
from raylab.arc.metrics import Count, metric_values
from raylab.arc.models import build_model
from raylab.arc.models.base import GridModel
from raylab.arc.module import LOSS_CHECK_STEPS, ArcModule
from raylab.arc.training.loop import Experiment, build_trainer
from raylab.core.config.base import ClusterConfig
from raylab.core.errors import CheckpointError, NonFiniteLossError
from tests.arc.conftest import SMALL_MODELS, batch_of, make_tasks, small_model

Fit = tuple[pl.Trainer, ArcModule]


def settings(model: ModelConfig, **training: Any) -> TrainConfig:
    given = {"precision": Precision.FLOAT32, "batch_size": 4, "patience": None} | training
    return TrainConfig(model=model, training=TrainingConfig(**given))


def sides_of(tasks: Sequence[Task]) -> Sides:
    """All pairs are trained on and validated on; all tasks but the last are of group `a`."""
    store = store_pairs(tasks)
    groups = np.zeros(len(tasks), dtype=np.int64)
    groups[-1] = 1
    pairs = np.arange(len(store.task_of))
    return Sides(store, fingerprints(store), ("a", "b"), groups, store, pairs, pairs, pairs)


def fit(
    config: TrainConfig,
    tasks: Sequence[Task],
    *callbacks: pl.Callback,
    experiment: Experiment | None = None,
    **placement: Any,
) -> Fit:
    experiment = experiment or Experiment(config, sides_of(tasks))
    trainer = build_trainer(config.training, callbacks=callbacks, accelerator="cpu", **placement)
    trainer.fit(experiment.module, datamodule=experiment)
    return trainer, experiment.module


def values_of(trainer: pl.Trainer) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@pytest.fixture(scope="module")
def tasks() -> tuple[Task, ...]:
    return make_tasks(5, longest_side=4)


# Overfitting real tasks

BARE: dict[str, Any] = {"d_model": 64, "d_ff": 128, "heads": 4, "embedding_dropout": 0.0}


@pytest.mark.parametrize(
    "model",
    [
        ChampionConfig(
            encoder_dropout=0.0, decoder_dropout=0.0, colour_relabelling=False, size_rule=False,
            **BARE,
        ),
        EncoderDecoderConfig(dropout=0.0, **BARE),
        DecoderOnlyConfig(dropout=0.0, **BARE),
    ],
    ids=lambda model: model.architecture,
)  # fmt: skip
def test_six_real_pairs_are_learnt_by_heart(model: ModelConfig) -> None:
    def stop_when_learnt(trainer: pl.Trainer, module: pl.LightningModule) -> None:
        trainer.should_stop = values_of(trainer)["val_solve_rate"] == 1.0

    config = settings(model, epochs=300, restart_epochs=300, lr=2e-3, batch_size=8)
    # Outputs of 1 x 1, 3 x 3, and of 1 x 2 and 1 x 3; inputs up to 5 x 7.
    ids = ("239be575", "25ff71a9", "d631b094")
    tasks = load_tasks(DataConfig(tasks=ids, pairs_per_task=2))
    assert sum(len(task.pairs) for task in tasks) == 6
    stop = LambdaCallback(on_validation_end=stop_when_learnt)
    trainer, _ = fit(config, tasks, stop, check_val_every_n_epoch=20)
    figures = ("val_grid_accuracy", "val_solve_rate", "val_shape_accuracy")
    assert [values_of(trainer)[name] for name in figures] == [1.0, 1.0, 1.0]


# The loss


@torch.no_grad()
def mean_loss(model: GridModel, store: PairStore, context_pairs: int, weight: float) -> float:
    """The loss over all pairs, with cells and grids taken one by one."""
    cells, sizes = list[float](), list[float]()
    for pair in store.pairs.tolist():
        batch = batch_of(store, [pair], context_pairs)
        logits = model(batch)
        colours = logits.cells[0].log_softmax(-1)
        cells += [-float(colours[i, c]) for i, c in enumerate(batch.target.cells[0].tolist())]
        sides = logits.sizes[0].log_softmax(-1)
        height, width = (batch.target.sizes[0] - 1).tolist()
        sizes.append(-float(sides[0, height] + sides[1, width]) / 2)
    assert len(cells) == store.lengths[:, 1].sum()
    return float(np.mean(cells) + weight * np.mean(sizes))


@pytest.mark.parametrize("world", [1, 2])
def test_every_cell_and_every_grid_weighs_the_same(world: int) -> None:
    store = store_pairs(make_tasks(9, longest_side=9))
    model = small_model(SMALL_MODELS["encoder_decoder"])
    losses: list[float] = []
    for rank in range(world):
        plan = StepPlan(store, store.pairs, batch_size=16, demonstrations=0, rank=rank, world=world)
        assert len(plan) > 2
        with torch.no_grad():
            losses += [float(step_loss(model, plan[draws], 0.1)) for draws in plan]
    assert np.mean(losses) == pytest.approx(mean_loss(model, store, 0, 0.1), rel=1e-5)


def test_the_validation_loss_is_a_ratio_of_sums(tasks: tuple[Task, ...]) -> None:
    """Batches of unlike sizes on two workers."""
    model, store = small_model(SMALL_MODELS["champion"]), store_pairs(tasks)
    workers = MeanLoss(0.5), MeanLoss(0.5)
    for index, pairs in enumerate(([0], [1, 2, 3], list(range(4, 12)), list(range(12, 25)))):
        batch = batch_of(store, pairs, 2)
        with torch.no_grad():
            workers[index % 2].update(model(batch), batch.target.cells, batch.target.sizes)
    workers[0].merge_state(workers[1])
    assert float(workers[0].compute()) == pytest.approx(mean_loss(model, store, 2, 0.5), rel=1e-5)


# Non-finite losses


class Poison(pl.Callback):
    """Spoils a weight before `step`, or before a validation, and notes what is trained on."""

    def __init__(self, step: int | None) -> None:
        self.step = step
        self.tasks: list[set[int]] = []
        self.rates: list[float] = []
        self.validated_epochs: list[int] = []

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: TrainingStep, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            self.spoil(pl_module)
        self.tasks.append({task for part in batch.batches for task in part.tasks.tolist()})
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.validated_epochs.append(trainer.current_epoch)
        if self.step is None:
            self.spoil(pl_module)

    @torch.no_grad()
    def spoil(self, module: pl.LightningModule) -> None:
        next(module.parameters()).fill_(torch.nan)


def test_a_nan_loss_names_step_tasks_and_learning_rate(tasks: tuple[Task, ...]) -> None:
    config = settings(SMALL_MODELS["champion"], epochs=3, batch_size=2, lr=0.0123)
    per_epoch = Experiment(config, sides_of(tasks)).module.epoch_steps
    assert 4 < per_epoch < LOSS_CHECK_STEPS
    step = per_epoch + 3
    poison = Poison(step)
    with pytest.raises(NonFiniteLossError) as caught:
        fit(config, tasks, poison)
    names = ", ".join(sorted(tasks[task].id for task in poison.tasks[step]))
    assert 0 < len(poison.tasks[step]) < len(tasks)
    assert poison.rates[step] != poison.rates[0]
    assert str(caught.value).startswith(
        f"loss is nan at step {step} (epoch 1) with learning rate {poison.rates[step]:.3g}, "
        f"on tasks {names}: lower training.lr"
    )
    # Lightning calls the module, which refuses, after the callbacks.
    assert poison.validated_epochs == [0, 1]


def test_a_nan_loss_stops_a_long_epoch_and_that_of_a_validation_is_told_with_its_epoch() -> None:
    tasks = make_tasks(2 * LOSS_CHECK_STEPS, demonstrations=1, longest_side=2)
    config, poison = settings(SMALL_MODELS["encoder_decoder"], epochs=1, batch_size=1), Poison(2)
    with pytest.raises(NonFiniteLossError, match="at step 2 "):
        fit(config, tasks, poison)
    assert len(poison.tasks) <= LOSS_CHECK_STEPS and poison.validated_epochs == []
    with pytest.raises(NonFiniteLossError, match=r"^the validation loss is nan after epoch 1: "):
        fit(config, tasks[:2], Poison(None))


# Validation


@pytest.fixture(scope="module")
def epoch(tasks: tuple[Task, ...]) -> Fit:
    return fit(settings(SMALL_MODELS["champion"], epochs=1), tasks)


def test_an_epoch_reports_every_figure_and_measures_every_group(epoch: Fit) -> None:
    values = values_of(epoch[0])
    figures = {*metric_values(torch.zeros(len(Count)).long()), *SCORED}
    assert all(0.0 <= values[f"val_{name}"] <= 1.0 for name in figures)
    # Five tasks of five pairs, the last of them in a group of its own.
    table = epoch[1].group_table
    assert {group: found.grids for group, found in table.items()} == {"a": 20, "b": 5}


def test_the_demonstration_gain_is_the_loss_with_those_of_other_tasks_less_that_with_own(
    tasks: tuple[Task, ...],
) -> None:
    trainer, module = fit(settings(SMALL_MODELS["champion"], epochs=8), tasks)
    store = store_pairs(tasks)
    cells = [int(store.lengths[shown].sum()) for shown in store.demonstrations]
    by_size = sorted(range(len(tasks)), key=cells.__getitem__)
    # From one to the next but one in size and back: 0, 2, 4, 3, 1.
    givers = {0: 1, 1: 3, 2: 0, 3: 4, 4: 2}
    own, other = MeanLoss(0.1), MeanLoss(0.1)
    for pair, task in enumerate(store.task_of.tolist()):
        giver = by_size[givers[by_size.index(task)]]
        swapped = Draw(np.array([pair]), store.demonstrations[giver][None, :2])
        for loss, batch in (
            (own, batch_of(store, [pair], 2)),
            (other, build_batch(store, swapped)),
        ):
            with torch.no_grad():
                loss.update(module.model.eval()(batch), batch.target.cells, batch.target.sizes)
    gain = values_of(trainer)["val_demonstration_gain"]
    assert gain == pytest.approx(float(other.compute() - own.compute()), abs=1e-5)
    assert abs(gain) > 1e-4


# Checkpoints


@pytest.fixture(scope="module")
def saved(epoch: Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints") / "saved.ckpt"
    epoch[0].save_checkpoint(path)
    return path


def test_a_checkpoint_gives_back_the_model_also_to_a_training_that_adds_its_tasks(
    epoch: Fit, saved: Path, tasks: tuple[Task, ...], tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(saved)
    assert checkpoint.uri == str(saved)
    assert checkpoint.seen == sides_of(tasks).seen
    assert checkpoint.model == SMALL_MODELS["champion"]
    # Dropout changes no weight, so that it may differ.
    config = settings(other("champion", embedding_dropout=0.5), epochs=1)
    others = tuple(replace(task, id=f"other-{task.id}") for task in make_tasks(2))
    sides = sides_of(others)
    experiment = Experiment(config, sides, checkpoint)
    started, trained = (module.model.state_dict() for module in (experiment.module, epoch[1]))
    assert started.keys() == trained.keys()
    assert all(torch.equal(weight, trained[name]) for name, weight in started.items())
    trainer, _ = fit(config, others, experiment=experiment)
    trainer.save_checkpoint(tmp_path / "last")
    assert read_checkpoint(tmp_path / "last").seen == sides.seen | checkpoint.seen


class Malice:
    """Would create a file when unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.trace,)


def test_nothing_in_a_file_is_executed(tmp_path: Path, saved: Path) -> None:
    trace, path = tmp_path / "executed", tmp_path / "malice.ckpt"

    def save_beside_good_weights(malice: Malice) -> None:
        torch.save(torch.load(saved, weights_only=True) | {"callbacks": malice}, path)

    for write in (
        lambda malice: torch.save(malice, path),
        lambda malice: path.write_bytes(pickle.dumps(malice, protocol=2)),
        save_beside_good_weights,
    ):
        write(Malice(trace))
        with pytest.raises(CheckpointError, match="malice"):
            read_checkpoint(path)
        assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # the trap works


def other(name: str, **changes: Any) -> ModelConfig:
    config = SMALL_MODELS[name]
    return type(config).model_validate(config.model_dump() | changes)


@pytest.mark.parametrize(
    ("config", "difference"),
    [
        (SMALL_MODELS["decoder_only"], "architecture=champion (here decoder_only)"),
        # Weights of the same shapes that would be read in another way.
        (other("champion", heads=4), "heads=5 (here 4)"),
    ],
)
def test_weights_of_another_model_are_refused(
    saved: Path, config: ModelConfig, difference: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_weights(build_model(config), config, read_checkpoint(saved))
    assert difference in str(caught.value)
    assert str(saved) in str(caught.value)


# Precision


@pytest.mark.parametrize(
    ("cuda", "native", "expected"),
    [
        (True, True, Precision.BFLOAT16),
        (True, False, Precision.FLOAT16),
        (False, True, Precision.FLOAT32),
    ],
)
def test_automatic_precision_is_half_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, native: bool, expected: Precision
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation
    )
    assert hardware_precision(Precision.AUTO) is expected
    assert hardware_precision(Precision.AUTO, "cpu") is Precision.FLOAT32
    assert hardware_precision(Precision.BFLOAT16) is Precision.BFLOAT16


@pytest.mark.parametrize(("load", "said"), [(1.5, ""), (4.26, "its load is 4.3 on 2 cores")])
def test_a_machine_that_others_use_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load: float, said: str
) -> None:
    monkeypatch.setattr(device, "_report_load", cache(device._report_load.__wrapped__))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for _ in range(2):
        device.use_share(ClusterConfig(use_gpu=False), 1)
    printed = capsys.readouterr().out
    assert said in printed and printed.count("\n") == bool(said)


def test_every_model_trains_and_validates_in_bfloat16(
    tasks: tuple[Task, ...], small_config: ModelConfig
) -> None:
    config = settings(small_config, epochs=1, precision=Precision.BFLOAT16)
    trainer, module = fit(config, tasks[:1])
    assert trainer.precision == "bf16-mixed"
    assert np.isfinite(values_of(trainer)["train_loss"])
    assert all(p.dtype == torch.float32 for p in module.parameters())
