"""What Tune and Ray Train add to the time of a trial, against the same training called directly."""

import time
from typing import Any

import torch

from raylab.arc.training import build_experiment, build_trainer
from raylab.cluster.session import session
from raylab.cluster.train import METRICS
from raylab.cluster.tune import tune
from raylab.config import (
    BenchmarkConfig,
    ClusterConfig,
    ModelConfig,
    Search,
    TrainConfig,
    TrainingConfig,
    TuneConfig,
)
from raylab.entrypoint import console
from raylab.runs import Run

ONE_EPOCH = TrainingConfig(epochs=1, patience=None)


def benchmark_tune(config: BenchmarkConfig) -> None:
    """Time a sweep of `config.rounds` trials, one at a time, and as many direct trainings.

    Both train the first of `config.models` for one epoch on one CPU thread. Ray has started, and
    this process has imported torch, before a clock runs.

    Raises:
        RaylabError: the tasks cannot be used, or the run's name is taken.
    """
    run = Run.open(config, config.job)
    model = config.models[0]
    direct = _direct_seconds(config, model)
    with session(ClusterConfig()):
        since = time.perf_counter()
        tune(_sweep(config, model, run))
        swept = (time.perf_counter() - since) / config.rounds
    result: dict[str, Any] = {
        "direct_seconds": direct,
        "trial_seconds": swept,
        "overhead_seconds": swept - direct,
        "ratio": swept / direct,
    }
    run.write_json(METRICS, {"tune": result})
    console().print(
        f"{model.architecture}, one epoch: {direct:.1f} s called directly, {swept:.1f} s a trial, "
        f"{swept - direct:.1f} s more ({swept / direct:.2f} times), mean of {config.rounds}"
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
