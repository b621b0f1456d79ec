"""A training in this process: resumed to the bit, interrupted, on a disk that fails."""

import errno
import io
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer

from raylab.arc import time_limit
from raylab.arc.checkpoints import CHECKPOINTS, checkpoint_path, read_checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.models import EncoderDecoderConfig
from raylab.arc.data.split import Sides, load_sides
from raylab.arc.inputs import read_inputs
from raylab.arc.loss import MeanLoss
from raylab.arc.module import ArcModule
from raylab.arc.records import TrainingMetrics
from raylab.arc.time_limit import Course
from raylab.arc.training import local, loop, outcome, reporter
from raylab.arc.training.local import fit, train
from raylab.arc.training.loop import Experiment
from raylab.arc.training.reporter import EpochListener
from raylab.core.config.base import ClusterConfig
from raylab.core.errors import CheckpointError, ConfigError, RunError
from raylab.core.page import table
from raylab.core.runs.run import Run
from raylab.core.tracking import Figures
from tests.arc.conftest import TINY, small_training

EPOCHS = 4
COSINES = {"restart_epochs": 2, "lr": 0.01}
Ended = tuple[Run, TrainingMetrics]


class Killed(BaseException):
    """The end of the process, as far as the training can tell."""


@pytest.fixture(scope="module")
def sides() -> Sides:
    return load_sides(small_training(Path()).data)


def trained(settings: TrainConfig, sides: Sides, on_epoch: EpochListener | None = None) -> Ended:
    run = Run.open(settings)
    return run, fit(settings, run, sides, on_epoch=on_epoch)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, sides: Sides) -> Ended:
    return trained(small_training(tmp_path_factory.mktemp("unbroken"), **COSINES), sides)


def figures(metrics: TrainingMetrics) -> list[tuple[int, float, Mapping[str, float]]]:
    return [(epoch.epoch, epoch.train_loss, epoch.validation) for epoch in metrics.history]


def close(*arguments: Any, **fields: Any) -> None:
    raise BrokenPipeError


def checkpoints(run: Run) -> set[str]:
    return {*(run / CHECKPOINTS).names()}


def die_after(epoch: int) -> EpochListener:
    def listen(figures: Figures, best: float) -> None:
        if figures["epoch"] == epoch:
            raise Killed

    return listen


def killed(settings: TrainConfig, sides: Sides, after: int = 1) -> Run:
    """A run that was killed after an epoch."""
    with pytest.raises(Killed):
        trained(settings, sides, on_epoch=die_after(after))
    return Run.locate(settings)


def test_a_run_leaves_its_record_its_curves_and_the_checkpoints_to_keep(
    unbroken: Ended, sides: Sides
) -> None:
    run, metrics = unbroken
    assert metrics.ended and run.read_record(TrainingMetrics) == metrics
    best = max(metrics.history, key=lambda e: (e.validation["dense_grid_objective"], e.epoch))
    assert checkpoints(run) == {f"epoch-{epoch:04d}" for epoch in {best.epoch, EPOCHS}}
    assert read_checkpoint(run / metrics.best.checkpoint).model == TINY
    assert (run / "tensorboard").names()
    steps = metrics.last.step // EPOCHS
    assert [(e.epoch, e.step) for e in metrics.history] == [(n, n * steps) for n in (1, 2, 3, 4)]
    # A cosine over two epochs from 0.01 to 1.68e-6: both ends' mean, then again from the start.
    rates = [epoch.learning_rate for epoch in metrics.history]
    assert rates == pytest.approx([0.01, 0.00500084] * 2)
    for epoch in metrics.history:
        seconds = len(sides.train) / epoch.samples_per_second
        assert epoch.train_seconds == pytest.approx(seconds)


def test_the_lowest_loss_is_the_best_and_among_equals_the_latest(
    tmp_path: Path, sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([0.25, 0.75, 0.25, 0.5])
    monkeypatch.setattr(MeanLoss, "compute", lambda self: torch.tensor(next(losses)))
    told: list[tuple[float, float]] = []
    settings = small_training(tmp_path, monitor="val_loss")
    _, metrics = trained(settings, sides, lambda row, best: told.append((row["val_loss"], best)))
    assert metrics.best.epoch == 3
    assert told == [(0.25, 0.25), (0.75, 0.25), (0.25, 0.25), (0.5, 0.25)]


def test_a_sign_of_life_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [60.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    lines: list[tuple[str, Mapping[str, Any]]] = []
    receiver: Any = SimpleNamespace(line=lambda *line: lines.append(line))
    trainer: Any = SimpleNamespace(global_rank=0, current_epoch=0, num_training_batches=100)
    module: Any = SimpleNamespace(course=Course(1_002))
    heartbeat = loop.Heartbeat(receiver)
    for step, now in enumerate((60.0, 60.1, 69.0), 1):
        trainer.global_step, clock[0] = step, now
        heartbeat.on_train_batch_end(trainer, module, {"loss": 1.5}, None, step - 1)
    # The first step does not count; two steps took 9 s, and 999 are left.
    fields = {"epoch": 1, "done": 3, "total": 1_002, "loss": 1.5, "eta_seconds": 4495.5}
    assert lines == [("  epoch 1: 3 of 100 steps, loss 1.5000, about 75 min left", fields)]
    # A time limit leaves 40 steps for the second epoch.
    trainer.current_epoch, trainer.global_step, clock[0] = 1, 101, 100.0
    module.course = Course(140)
    heartbeat.on_train_batch_end(trainer, module, {"loss": 1.5}, None, 0)
    assert lines[-1][0].startswith("  epoch 2: 1 of 40 steps, loss 1.5000, ")


def test_a_training_is_finished_once_it_is_tested_and_has_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of its output goes away in an epoch, again before the test, and after it."""
    settings = small_training(tmp_path)
    run = Run.at(tmp_path / "run")
    printers = {reporter: "epoch_line", outcome: "log_line", table: "console"}
    for module, printer in printers.items():
        with monkeypatch.context() as closed:
            closed.setattr(module, printer, close)
            with pytest.raises(BrokenPipeError):
                train(read_inputs(settings))
        assert run.is_finished is (module is table)
        monkeypatch.setattr(Trainer, "fit", close)
    metrics = run.read_record(TrainingMetrics)
    assert metrics is not None and metrics.test is not None and len(metrics.history) == EPOCHS
    ended = run.record.finished
    assert ended and ended in (run / "report.html").read().decode()
    train(read_inputs(settings))
    assert run.record.finished == ended


def test_a_killed_run_repeats_an_unbroken_one_with_every_switch(
    tmp_path: Path, sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "optimiser": "muon",
        "weight_decay": 0.1,
        "schedule": "wsd",
        "decay": 0.5,
        "ema": 0.9,
        "augment_colours": "all_but_0",
        "augment_symmetries": True,
        "augment_demonstrations": "batch",
    }
    whole, expected = trained(small_training(tmp_path, "whole", **options), sides)
    killed(small_training(tmp_path, **options), sides, after=2)
    epochs: list[float] = []
    build = local.Experiment

    def build_with_processes(*arguments: Any, **options: Any) -> Experiment:
        experiment = build(*arguments, **options)
        experiment.processes = 1
        return experiment

    # Batches that processes build are the same.
    monkeypatch.setattr(local, "Experiment", build_with_processes)
    settings = small_training(tmp_path, **options)
    run, metrics = trained(settings, sides, lambda row, best: epochs.append(row["epoch"]))
    assert epochs == [3, 4]
    assert figures(metrics) == figures(expected)
    assert checkpoints(run) == checkpoints(whole)
    last = checkpoint_path(EPOCHS)
    theirs, ours = (
        torch.load(io.BytesIO((of / last).read()), weights_only=True) for of in (whole, run)
    )
    for weights in ("state_dict", "current_model_state"):
        assert ours[weights].keys() == theirs[weights].keys()
        for name, tensor in ours[weights].items():
            assert torch.equal(tensor, theirs[weights][name]), name
    assert any(
        not torch.equal(ours["state_dict"][name], tensor)
        for name, tensor in ours["current_model_state"].items()
    )


@pytest.mark.parametrize("killed_at", [1, 4])
def test_a_training_of_a_given_time_ends_within_an_epoch_and_resumes_to_the_bit(
    tmp_path: Path, sides: Sides, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    clock = [0.0]

    def step(self: ArcModule, *arguments: Any) -> Any:
        clock[0] += 6.0
        return training_step(self, *arguments)

    training_step = ArcModule.training_step
    monkeypatch.setattr(ArcModule, "training_step", step)
    monkeypatch.setattr(time_limit, "perf_counter", lambda: clock[0])
    options = {"epochs": None, "max_minutes": 1.1, "schedule": "wsd", "ema": 0.9}
    whole, expected = trained(small_training(tmp_path, "whole", **options), sides)
    # Eleven steps of six seconds: four epochs of three steps, of which the last is cut.
    assert [epoch.step for epoch in expected.history] == [3, 6, 9, 11]
    assert expected.last.planned_steps == 11
    samples = expected.last.samples_per_second * expected.last.train_seconds
    assert samples == pytest.approx(2 / 3 * len(sides.train))
    killed(small_training(tmp_path, **options), sides, after=killed_at)
    clock[0] += 1_000.0
    run, metrics = trained(small_training(tmp_path, **options), sides)
    assert figures(metrics) == figures(expected)
    theirs, ours = (read_checkpoint(of / checkpoint_path(4)).weights for of in (whole, run))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())


def refuse_records(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Lets no run write the record of an epoch after the first."""
    write = Run.write_record

    def write_record(run: Run, record: Any, name: str | None = None) -> None:
        if isinstance(record, TrainingMetrics) and record.last.epoch > 1:
            raise error
        write(run, record, name)

    patch.setattr(Run, "write_record", write_record)


def test_a_run_killed_before_its_record_repeats_the_epoch(
    tmp_path: Path, sides: Sides, unbroken: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(Killed):
        refuse_records(patched, Killed())
        trained(small_training(tmp_path, **COSINES), sides)
    assert checkpoints(Run.at(tmp_path / "run")) == {"epoch-0001", "epoch-0002"}
    run, metrics = trained(small_training(tmp_path, **COSINES), sides)
    assert figures(metrics) == figures(unbroken[1])
    assert checkpoints(run) == checkpoints(unbroken[0])


def test_a_run_that_stopped_early_trains_no_further(
    tmp_path: Path, sides: Sides, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing learns at this rate, so the patience is used up soon.
    options = {"patience": 1, "epochs": 40, "lr": 1e-9}
    _, expected = trained(small_training(tmp_path, "whole", **options), sides)
    last = expected.last.epoch
    assert last < 40
    killed(small_training(tmp_path, **options), sides, after=last)
    assert figures(trained(small_training(tmp_path, **options), sides)[1]) == figures(expected)
    more = small_training(tmp_path, **options | {"epochs": 50})
    assert figures(trained(more, sides)[1]) == figures(expected)
    assert f"trained already; it stopped early, at epoch {last}" in capsys.readouterr().out


@pytest.mark.parametrize("schedule", ["cosine_restarts", "wsd"])
def test_a_finished_run_is_prolonged(
    tmp_path: Path, schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def done(name: str, **training: Any) -> TrainingMetrics:
        train(read_inputs(small_training(tmp_path, name, schedule=schedule, **training)))
        metrics = Run.at(tmp_path / name).read_record(TrainingMetrics)
        assert metrics is not None and metrics.ended and Run.at(tmp_path / name).is_finished
        return metrics

    short, whole = done("run", epochs=2), done("whole")
    with pytest.raises(RunError, match=r"training\.epochs: the run has 2, now 1"):
        read_inputs(small_training(tmp_path, epochs=1, schedule=schedule))
    longer = done("run")
    assert "run run goes on from epoch 2 to 4: its " in capsys.readouterr().out
    assert longer.history[:2] == short.history and longer.last.epoch == EPOCHS
    if schedule == "cosine_restarts":
        assert figures(longer) == figures(whole)
        assert longer.test == whole.test
    else:
        # The rate had come to its end, at which the first epoch still begins.
        assert longer.history[2].learning_rate < 1e-4 < longer.history[3].learning_rate * 10
    assert Run.at(tmp_path / "run").record.config["training"]["epochs"] == EPOCHS


def test_a_record_that_cannot_be_written_keeps_the_checkpoint_that_it_names(
    tmp_path: Path, sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_records(monkeypatch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(OSError, match="No space left"):
        trained(small_training(tmp_path), sides)
    run = Run.at(tmp_path / "run")
    metrics = run.read_record(TrainingMetrics)
    assert metrics is not None and metrics.last.epoch == 1
    assert {"epoch-0001", "epoch-0004"} <= checkpoints(run)


def test_an_epoch_is_not_stored_over_those_of_others_who_have_gone_further(
    tmp_path: Path, sides: Sides, unbroken: Ended
) -> None:
    settings, ahead = small_training(tmp_path), unbroken[1]

    def go_on(figures: Figures, best: float) -> None:
        if figures["epoch"] == 2:
            Run.at(tmp_path / "run").write_record(ahead)

    with pytest.raises(RunError, match="epoch 4 in its record, past epoch 3 of this process"):
        trained(settings, sides, on_epoch=go_on)
    run = Run.at(tmp_path / "run")
    assert run.read_record(TrainingMetrics) == ahead
    assert "epoch-0003" not in checkpoints(run)


def test_a_training_takes_the_sizes_of_the_model_that_it_starts_from(
    tmp_path: Path, unbroken: Ended
) -> None:
    run, metrics = unbroken
    storage = {"storage": str(Path(run.path).parent), "data": run.record.config["data"]}
    model = EncoderDecoderConfig(dropout=0.0)
    started = read_inputs(TrainConfig(**storage, init_from=run.name, name="new", model=model))
    # Widths and layers are the first model's, what no weight depends on is its own.
    assert started.config.model == TINY.model_copy(update={"dropout": 0.0})
    best = run / metrics.best.checkpoint
    assert started.config.init_from == str(best)
    assert started.start is not None and started.start.uri == str(best)
    wider = EncoderDecoderConfig(d_model=32)
    with pytest.raises(CheckpointError, match=r"d_model=16 \(here 32\)"):
        read_inputs(TrainConfig(**storage, init_from=run.name, name="new", model=wider))


def test_a_checkpoint_of_another_run_epoch_or_data_and_a_gpu_that_is_not_there_are_refused(
    tmp_path: Path, sides: Sides
) -> None:
    own, others = small_training(tmp_path), small_training(tmp_path / "others", keep_checkpoints=2)
    run, other = killed(own, sides), killed(others, sides, after=2)
    of_another = r"is of another run, of other tasks, or of another epoch"
    with pytest.raises(CheckpointError, match=of_another):
        trained(own, replace(sides, train=sides.train[:-1]))
    first = (other / checkpoint_path(1)).read()
    for wrong, epoch, settings in ((run, 1, own), (other, 2, others)):
        (wrong / checkpoint_path(epoch)).write(first)
        with pytest.raises(CheckpointError, match=of_another):
            trained(settings, sides)
    with pytest.raises(ConfigError, match="this machine has no GPU"):
        trained(small_training(tmp_path, fields={"cluster": ClusterConfig(use_gpu=True)}), sides)
