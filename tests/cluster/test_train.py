import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import ray
import torch
import torch.distributed as dist

from raylab.arc.checkpoints import read_checkpoint
from raylab.arc.data.sides import load_sides
from raylab.arc.inputs import read_inputs
from raylab.arc.records import TrainingMetrics
from raylab.cluster.train import fit
from raylab.cluster.train_messages import WorkerSettings
from raylab.cluster.train_worker import _prepare
from raylab.config.arc import DataConfig, TrainingConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import TrainConfig
from raylab.config.models import EncoderDecoderConfig
from raylab.errors import ConfigError, NonFiniteLossError, WorkersLostError
from raylab.log import details, json_lines
from raylab.runs.run import Run
from raylab.training import local
from raylab.training.listeners import EpochListener
from tests.cluster.scrape import exported
from tests.told import id_in, lines_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

SMALL = EncoderDecoderConfig(d_model=16, d_ff=32, heads=2, decoder_layers=1)
DATA = DataConfig(every=40)
"""Ten tasks of ARC-AGI-1."""


def config(tmp_path: Path, name: str, *, workers: int = 1, **changes: Any) -> TrainConfig:
    training = {"epochs": 3, "batch_size": 4, "patience": None} | changes.pop("training", {})
    fields: dict[str, Any] = {
        "model": SMALL,
        "data": DATA,
        "training": TrainingConfig(**training),
        "cluster": ClusterConfig(workers=workers, cpus_per_worker=1),
        "storage": str(tmp_path),
        "name": name,
    }
    return TrainConfig(**(fields | changes))


def run(settings: TrainConfig) -> TrainingMetrics:
    inputs = read_inputs(settings)
    return fit(settings, Run.open(settings, "train"), ray.put(inputs.sides), inputs.start)


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


EPOCHS = 6


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> TrainConfig:
    """A run of two workers that is done, in a directory no test changes."""
    training = {"epochs": EPOCHS, "keep_checkpoints": 1}
    settings = config(tmp_path_factory.mktemp("runs"), "base", workers=2, training=training)
    run(settings)
    return settings


def directory_of(settings: TrainConfig) -> Path:
    return Path(settings.storage) / str(settings.name)


def test_a_run_leaves_what_one_here_does_and_ray_exports_its_last_epoch(finished: TrainConfig):
    directory = directory_of(finished)
    metrics = metrics_in(directory)
    assert metrics.ended and not Run.at(str(directory)).finished
    assert list((directory / "tensorboard").iterdir())
    # The drawn split validates on 1 of the 10 tasks, which has 4 pairs: each is counted once.
    assert sum(group.grids for group in metrics.best.groups.values()) == 4
    content = torch.load(directory / metrics.best.checkpoint, weights_only=True)
    assert content["raylab"]["run_id"] == id_in(directory)
    # The best and, where it is another, the latest.
    kept = {path.name for path in (directory / "checkpoints").glob("epoch-*")}
    assert kept == {f"epoch-{epoch:04d}" for epoch in {metrics.best.epoch, EPOCHS}}
    last = metrics.last.row()
    series = {
        "ray_raylab_training_epoch": EPOCHS,
        "ray_raylab_training_objective": last["val_dense_grid_objective"],
        "ray_raylab_training_samples_per_second": last["samples_per_second"],
    }
    samples = exported("base", series)
    assert [samples[name][0][0]["training"] for name in series] == ["base"] * 3
    assert actors_of("PreemptionWatcher")


def test_finished_run_is_not_trained_again(
    finished: TrainConfig, capsys: pytest.CaptureFixture[str]
):
    before = metrics_in(directory_of(finished))
    assert run(finished.model_copy(update={"resume": True})) == before
    assert "epoch" not in capsys.readouterr().out


def test_killed_worker_costs_at_most_the_epoch_in_flight(
    tmp_path: Path, finished: TrainConfig, capsys: pytest.CaptureFixture[str]
):
    unbroken = metrics_in(directory_of(finished))
    target = tmp_path / "killed" / "metrics.json"
    seen: list[int] = []

    def two_epochs_are_stored() -> bool:
        if target.exists():
            seen[:] = [epoch.epoch for epoch in metrics_in(target.parent).history]
        return len(seen) >= 2

    def kill() -> None:
        os.kill(train_worker_pids()[-1], signal.SIGKILL)

    killer = when(two_epochs_are_stored, kill)
    capsys.readouterr()
    with json_lines("train"):
        killed = run(config(tmp_path, "killed", workers=2, training={"epochs": EPOCHS}))
    killer.join(timeout=10)

    assert not killer.is_alive()
    assert 2 <= len(seen) < EPOCHS
    # Each epoch is there once, and equal to that of the unbroken run: none was lost or repeated.
    assert losses(killed) == losses(unbroken)

    out, err = map(lines_of, capsys.readouterr())
    assert {line["run_id"] for line in (*out, *err)} == {id_in(tmp_path / "killed")}
    epochs = [line for line in out if "train_loss" in line]
    assert [(e["epoch"], e["train_loss"], e["val_cell_accuracy"]) for e in epochs] == losses(killed)
    failures = [line for line in err if "worker" in line]
    assert failures and all(line["level"] == "warning" for line in failures)
    exported("killed", {"ray_raylab_training_worker_failures_total": len(failures)})


def test_a_run_goes_on_here_and_by_ray_train_where_workers_that_die_too_often_are_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        pass

    def die(metrics: TrainingMetrics) -> None:
        raise Killed

    def here(settings: TrainConfig, **listeners: EpochListener) -> TrainingMetrics:
        opened = Run.open(settings, "train")
        return local.fit(settings, opened, sides, listeners=listeners, threads=1)

    sides = load_sides(DATA)
    fields = {"cluster": ClusterConfig(cpus_per_worker=1, max_failures=0), "resume": True}
    begun = config(tmp_path, "begun", training={"epochs": 12}, **fields)
    with pytest.raises(Killed):
        here(begun, last=die)
    monkeypatch.setattr("raylab.cluster.train.SILENT_SECONDS", 1)
    killer = when(
        lambda: len(metrics_in(tmp_path / "begun").history) > 1,
        lambda: os.kill(train_worker_pids()[-1], signal.SIGKILL),
    )
    with pytest.raises(WorkersLostError, match=r"(?s)/begun failed: .*resume=true"):
        run(begun)
    killer.join(timeout=10)
    told = capfd.readouterr().out
    assert re.search(r"no sign of the workers for 1 s: .* of 2 CPUs are free", told)
    assert "worker 0 failed (" in told and "start again" not in told
    assert 2 <= len(metrics_in(tmp_path / "begun").history) < 12
    # To the last digit.
    unbroken = config(tmp_path, "unbroken", training={"epochs": 12}, **fields)
    assert losses(here(begun)) == losses(here(unbroken))


def test_ray_train_gets_the_numbers_of_workers_and_their_nodes_and_its_log_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Taken(BaseException):
        pass

    options: dict[str, Any] = {}

    def take(work: object, **given: Any) -> None:
        options.update(given)
        raise Taken

    monkeypatch.setattr("raylab.cluster.train.TorchTrainer", take)
    nodes = {"accelerator_type": "A100", "label_selector": {"pool": "in(a,b)"}}
    cluster = ClusterConfig(workers=(1, 2), cpus_per_worker=1, **nodes)
    for name, output, level in (("quiet", nullcontext(), "CRITICAL"), ("loud", details(), "INFO")):
        with output, pytest.raises(Taken):
            run(config(tmp_path, name, cluster=cluster))
        assert options["run_config"].logging_config.log_level == level
    scaling = options["scaling_config"]
    assert (scaling.num_workers, scaling.use_gpu) == ((1, 2), False)
    assert (scaling.accelerator_type, scaling.label_selector) == tuple(nodes.values())


def test_an_error_of_one_worker_is_told_by_all(tmp_path: Path):
    settings = config(tmp_path, "run", training={"batch_size": 4})
    sides = load_sides(settings.data)
    short = replace(sides, train=sides.train[:0])
    given = WorkerSettings(settings, Run.at(tmp_path), ray.put(short), ray.put(None), Queue())
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match="workers"):
            _prepare(given, 0, 1)
    finally:
        dist.destroy_process_group()


def test_workers_start_from_given_weights_and_a_loss_that_is_no_number_stops_them_for_good(
    finished: TrainConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    base = directory_of(finished)
    parent = read_checkpoint(base / metrics_in(base).best.checkpoint)
    spoilt = {name: torch.full_like(tensor, torch.nan) for name, tensor in parent.weights.items()}
    settings = config(tmp_path, "nan")
    sides = ray.put(read_inputs(settings).sides)
    with pytest.raises(NonFiniteLossError, match=r"at step 0 .*learning rate 0.0\d+, on tasks \w+"):
        fit(settings, Run.open(settings, "train"), sides, replace(parent, weights=spoilt))
    assert capfd.readouterr().out.count("training pairs in") == 1
