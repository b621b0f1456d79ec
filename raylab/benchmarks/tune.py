"""Overhead of a trial of a sweep against a training that is called directly."""

import time
from typing import ClassVar

import torch

from raylab.arc.training import build_experiment, build_trainer
from raylab.benchmarks.figures import timed
from raylab.cluster.session import session
from raylab.cluster.tune import tune
from raylab.config.arc import Search, TrainingConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import BenchmarkConfig, TrainConfig, TuneConfig
from raylab.config.models import ModelConfig
from raylab.log import log_line
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run

ONE_EPOCH = TrainingConfig(epochs=1, patience=None)


class TrialOverhead(Part):
    """Mean seconds of one training, called directly and as a trial."""

    direct_seconds: float
    trial_seconds: float
    overhead_seconds: float
    """Time of a trial minus that of a direct call."""
    ratio: float
    """Time of a trial divided by that of a direct call."""


class TuneBenchmark(Record):
    """The overhead of a trial."""

    file: ClassVar[str] = METRICS
    tune: TrialOverhead


def benchmark_tune(config: BenchmarkConfig) -> None:
    """Times a sweep of `config.rounds` trials, one at a time, and as many direct trainings.

    Both train the first of `config.models` for one epoch on one CPU thread. Ray is
    started, and torch imported in this process, before the clock starts.

    Raises:
        RaylabError: the tasks cannot be used, or the run's name is taken.
    """
    run = Run.open(config, config.job)
    model = config.models[0]
    direct = _direct_seconds(config, model)
    with session(ClusterConfig()):
        swept = timed(lambda: tune(_sweep(config, model, run)))[0] / config.rounds
    overhead = TrialOverhead(
        direct_seconds=direct,
        trial_seconds=swept,
        overhead_seconds=swept - direct,
        ratio=swept / direct,
    )
    run.write_record(TuneBenchmark(tune=overhead))
    log_line(
        f"{model.architecture}, one epoch: {direct:.1f} s called directly, {swept:.1f} s a trial, "
        f"{swept - direct:.1f} s more ({swept / direct:.2f} times), mean of {config.rounds}",
        **overhead.model_dump(),
    )
    run.finish()


def _direct_seconds(config: BenchmarkConfig, model: ModelConfig) -> float:
    torch.set_num_threads(1)
    since = time.perf_counter()
    for _ in range(config.rounds):
        training = TrainConfig(model=model, data=config.data, training=ONE_EPOCH)
        experiment = build_experiment(training)
        trainer = build_trainer(training, accelerator="cpu", devices=1)
        trainer.fit(experiment.module, datamodule=experiment.data)
    return (time.perf_counter() - since) / config.rounds


def _sweep(config: BenchmarkConfig, model: ModelConfig, run: Run) -> TuneConfig:
    fixed = {
        key: {"choice": [value]}
        for key, value in model.model_dump(mode="json", exclude={"architecture"}).items()
    }
    return TuneConfig.model_validate(
        {
            "storage": run.uri,
            "name": "sweep",
            "space": {"model": {model.architecture: fixed}},
            "search": Search.RANDOM,
            "stop_early": False,
            "trials": config.rounds,
            "concurrent": 1,
            "data": config.data,
            "training": ONE_EPOCH,
            "cluster": ClusterConfig(cpus_per_worker=1, use_gpu=False),
        }
    )
