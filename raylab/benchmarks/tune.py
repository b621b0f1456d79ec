"""Trainings as trials of a sweep, compared with trainings that are called directly."""

import statistics
import tempfile
import time

import torch

from raylab.arc.data.sides import Sides
from raylab.arc.training import build_experiment, build_trainer
from raylab.benchmarks.figures import benchmark, rate
from raylab.cluster.session import session
from raylab.cluster.tune import tune
from raylab.cluster.workers import RayWorkers
from raylab.config.arc import TrainingConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import BenchmarkConfig, TrainConfig, TuneConfig
from raylab.config.models import ModelConfig
from raylab.config.search import Search

ONE_EPOCH = TrainingConfig(epochs=1, patience=None)
ONE_CPU = ClusterConfig(cpus_per_worker=1, use_gpu=False)
CONCURRENT = ONE_CPU.model_copy(update={"workers": 2})


def benchmark_tune(config: BenchmarkConfig, sides: Sides) -> None:
    """Times a sweep of `config.rounds` trials, two at a time, and as many direct trainings.

    All train the first of `config.models` for one epoch on one CPU thread each. The time of direct
    trainings excludes the start of Ray and of processes; that of the sweep includes its two
    processes.

    Raises:
        RaylabError: The run's name is taken, or a training failed.
    """
    model, trials = config.models[0], config.rounds
    training = TrainConfig(model=model, data=config.data, training=ONE_EPOCH, cluster=ONE_CPU)
    conditions = f"{trials} trainings of one epoch, two at a time on a CPU each, as a sweep"
    with (
        benchmark(config, "trainings/s", conditions, rounds=1) as compare,
        session(ClusterConfig()),
        tempfile.TemporaryDirectory() as storage,
    ):
        workers = RayWorkers(CONCURRENT, "benchmark")
        calls = dict.fromkeys(range(trials), (training, workers.put(sides)))

        def sweep() -> float:
            tune(_sweep(config, model, storage), sides)
            return trials

        def train_directly(_: int) -> float:
            seconds = dict(workers.run(_train_directly, calls)).values()
            return min(workers.places, trials) / statistics.mean(seconds)

        compare(model.architecture, lambda _: rate(sweep), train_directly)


def _train_directly(training: TrainConfig, sides: Sides) -> float:
    """Returns the seconds of a training."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    experiment = build_experiment(training, sides)
    trainer = build_trainer(training.training, accelerator="cpu", devices=1)
    trainer.fit(experiment.module, datamodule=experiment.data)
    return time.perf_counter() - start


def _sweep(config: BenchmarkConfig, model: ModelConfig, storage: str) -> TuneConfig:
    own = model.model_dump(mode="json", exclude={"architecture"})
    seeds = {"choice": list(range(config.rounds))}
    return TuneConfig.model_validate(
        {
            "storage": storage,
            "name": "sweep",
            "space": {
                "model": {model.architecture: {k: {"choice": [v]} for k, v in own.items()}},
                "training": {"seed": seeds},
            },
            "search": Search.GRID,
            "stop_early": False,
            "concurrent": CONCURRENT.workers,
            "data": config.data,
            "training": ONE_EPOCH,
            "cluster": ONE_CPU,
        }
    )
