"""Training and evaluation on Ray, which leave what one process leaves."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from jobs.evaluate import run as run_evaluate
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.models import ChampionConfig
from raylab.arc.config.sections import DataConfig, ScoringConfig, TaskTrainingConfig
from raylab.arc.data.split import load_sides
from raylab.arc.on_ray.train import fit
from raylab.arc.on_ray.train_worker import SETTINGS, work
from raylab.arc.records import TrainingMetrics
from raylab.arc.training import local
from raylab.arc.training.reporter import EpochListener
from raylab.core.config.base import ClusterConfig
from raylab.core.errors import NonFiniteLossError, RunError, WorkersLostError
from raylab.core.log import details, json_lines
from raylab.core.runs.run import Run
from raylab.core.tracking import Figures
from tests.arc.conftest import small_training
from tests.arc.evaluation.models import evaluation, train_small
from tests.log_lines import id_in, lines_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

EPOCHS = 6
TWO_WORKERS = {"cluster": ClusterConfig(workers=2, cpus_per_worker=1)}


def run(settings: TrainConfig) -> TrainingMetrics:
    return fit(settings, Run.open(settings), ray.put(load_sides(settings.data)))


def metrics_in(directory: Path) -> TrainingMetrics:
    metrics = Run.at(str(directory)).read_record(TrainingMetrics)
    assert metrics is not None
    return metrics


def losses(metrics: TrainingMetrics) -> list[tuple[int, float, float]]:
    return [(e.epoch, e.train_loss, e.validation["cell_accuracy"]) for e in metrics.history]


def when(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """Do `act` in the background as soon as `condition` holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def actors_of(name: str) -> list[Any]:
    from ray.util.state import list_actors

    # Named, since other Rays may run on this machine.
    here = ray.get_runtime_context().gcs_address
    return list_actors(address=here, filters=[("class_name", "=", name)])


def train_worker_pids() -> list[int]:
    return [actor.pid for actor in actors_of("RayTrainWorker") if actor.state == "ALIVE"]


def test_a_killed_worker_costs_at_most_the_epoch_in_flight_and_the_run_is_as_one_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    # Without chance in the model, workers train what one process does but for the order of sums.
    certain = dict.fromkeys(("embedding_dropout", "encoder_dropout", "decoder_dropout"), 0.0)
    steady = ChampionConfig(d_model=16, d_ff=32, heads=2, decoder_layers=1, **certain)
    data = DataConfig(every=20, max_side=12, val_fraction=0.4)
    fields: dict[str, Any] = {"model": steady, "data": data}
    training = {"epochs": EPOCHS, "batch_size": 7}
    settings = small_training(tmp_path, "killed", fields | TWO_WORKERS, **training)
    directory = tmp_path / "killed"
    seen: list[int] = []

    def two_epochs_are_stored() -> bool:
        if (directory / "metrics.json").exists():
            seen[:] = [epoch.epoch for epoch in metrics_in(directory).history]
        return len(seen) >= 2

    killer = when(two_epochs_are_stored, lambda: os.kill(train_worker_pids()[-1], signal.SIGKILL))
    with json_lines("train"):
        metrics = run(settings)
    killer.join(timeout=120)
    assert 2 <= len(seen) < EPOCHS
    out, err = map(lines_of, capsys.readouterr())
    assert metrics == metrics_in(directory) and metrics.ended
    # Each epoch is there once: none was lost or repeated.
    alone = small_training(tmp_path, "alone", fields, **training)
    sides = load_sides(data)
    here = local.fit(alone, Run.open(alone), sides, threads=1)
    for ours, theirs in zip(losses(metrics), losses(here), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    for ours, theirs in zip(metrics.history, here.history, strict=True):
        gains = [epoch.validation["demonstration_gain"] for epoch in (ours, theirs)]
        assert gains[0] == pytest.approx(gains[1], abs=1e-4)

    assert {line["run_id"] for line in (*out, *err)} == {id_in(directory)}
    epochs = [line for line in out if "train_loss" in line]
    told = [(line["epoch"], line["train_loss"], line["val_cell_accuracy"]) for line in epochs]
    assert told == losses(metrics)
    failures = [line for line in err if "worker" in line]
    assert failures and all(line["level"] == "warning" for line in failures)

    assert not Run.at(str(directory)).is_finished
    assert list((directory / "tensorboard").iterdir())
    # Each pair is counted once.
    assert sum(group.grids for group in metrics.best.groups.values()) == len(sides.val)
    content = torch.load(directory / metrics.best.checkpoint, weights_only=True)
    assert content["raylab"]["run_id"] == id_in(directory)
    # The best and, where it is another, the latest.
    kept = {path.name for path in (directory / "checkpoints").glob("epoch-*")}
    assert kept == {f"epoch-{epoch:04d}" for epoch in {metrics.best.epoch, EPOCHS}}
    assert actors_of("PreemptionWatcher")
    assert run(settings) == metrics
    assert "trained already" in capsys.readouterr().out


def test_a_run_goes_on_here_and_by_ray_train_where_workers_that_die_too_often_are_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        pass

    def die(figures: Figures, best: float) -> None:
        raise Killed

    def here(settings: TrainConfig, on_epoch: EpochListener | None = None) -> TrainingMetrics:
        return local.fit(settings, Run.open(settings), sides, on_epoch=on_epoch, threads=1)

    cluster = ClusterConfig(cpus_per_worker=1, max_failures=0)
    fields = {"cluster": cluster, "data": DataConfig(every=40)}
    begun = small_training(tmp_path, "begun", fields, epochs=12)
    sides = load_sides(begun.data)
    with pytest.raises(Killed):
        here(begun, die)
    monkeypatch.setattr("raylab.arc.on_ray.train.SILENT_SECONDS", 1)
    killer = when(
        lambda: len(metrics_in(tmp_path / "begun").history) > 1,
        lambda: os.kill(train_worker_pids()[-1], signal.SIGKILL),
    )
    with pytest.raises(WorkersLostError, match=r"(?s)/begun failed: .*resume=true"):
        run(begun)
    killer.join(timeout=120)
    told = capfd.readouterr().out
    assert re.search(r"no message from the workers for 1 s: .* of 2 CPUs are free", told)
    assert "worker 0 failed (" in told and "start again" not in told
    assert 2 <= len(metrics_in(tmp_path / "begun").history) < 12
    # To the last digit.
    unbroken = small_training(tmp_path, "unbroken", fields, epochs=12)
    assert losses(here(begun)) == losses(here(unbroken))


def test_ray_train_gets_the_numbers_of_workers_and_their_nodes_and_its_error_is_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options: dict[str, Any] = {}

    def take(work: object, **given: Any) -> Any:
        options.update(given)
        ended = SimpleNamespace(return_value=NonFiniteLossError("the loss is nan"))
        return SimpleNamespace(fit=lambda: ended)

    monkeypatch.setattr("raylab.arc.on_ray.train.TorchTrainer", take)
    nodes = {"accelerator_type": "A100", "label_selector": {"pool": "spot"}}
    cluster = ClusterConfig(workers=(1, 2), cpus_per_worker=1, **nodes)
    for name, output, level in (("quiet", nullcontext(), "CRITICAL"), ("loud", details(), "INFO")):
        with output, pytest.raises(NonFiniteLossError, match="the loss is nan"):
            run(small_training(tmp_path, name, {"cluster": cluster}))
        assert options["run_config"].logging_config.log_level == level
    scaling = options["scaling_config"]
    assert (scaling.num_workers, scaling.use_gpu) == ((1, 2), False)
    assert (scaling.accelerator_type, scaling.label_selector) == tuple(nodes.values())


def test_workers_agree_on_the_steps_of_a_given_time(tmp_path: Path):
    training = {"epochs": None, "max_minutes": 0.05, "schedule": "wsd"}
    metrics = run(small_training(tmp_path, "timed", TWO_WORKERS, **training))
    # Workers that disagreed would wait for each other's gradients.
    assert metrics.ended and metrics.last.step == metrics.last.planned_steps


def test_a_worker_returns_the_errors_that_no_retry_would_fix(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise error

    context = SimpleNamespace(get_world_rank=lambda: 1, get_world_size=lambda: 2)
    monkeypatch.setattr("ray.train.get_context", lambda: context)
    monkeypatch.setattr("raylab.arc.on_ray.train_worker._build_together", fail)
    settings: Any = {SETTINGS: SimpleNamespace(run=None, queue=None)}
    error = NonFiniteLossError("the loss is nan")
    assert work(settings) is error
    error = RunError("no space left")
    with pytest.raises(RunError):
        work(settings)


def test_tasks_that_are_trained_on_are_answered_alike_by_ray_tasks(tmp_path: Path):
    train_small(Run.at(f"{tmp_path}/one"))
    adapted = TaskTrainingConfig(steps=2, augmentations=2, keep=True)
    scoring = ScoringConfig(protocol="arc", metric="two_attempts", test_time_training=adapted)

    def answers(name: str, **cluster: Any) -> dict[str, Any]:
        changes = {"models": ("one",), "generations": ("published",), "scoring": scoring}
        run_evaluate(evaluation(tmp_path, name, cluster=ClusterConfig(**cluster), **changes))
        files = (tmp_path / name / "answers/one/published").iterdir()
        return {path.stem: json.loads(path.read_text())["questions"] for path in files}

    there = answers("arc", workers=2)
    # With the threads that a Ray task has.
    assert len(there) == 2 and there == answers("here", cpus_per_worker=1)
    kept = tmp_path / "arc/specialists/one/published"
    assert {path.stem for path in kept.iterdir()} == there.keys()
