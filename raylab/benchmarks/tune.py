"""Overhead of a trial of a sweep against a training that is called directly."""

import time
from typing import ClassVar

import ray
import torch

from raylab.arc.data.sides import Sides
from raylab.arc.training import build_experiment, build_trainer
from raylab.benchmarks.figures import timed
from raylab.cluster.session import session
from raylab.cluster.tune import tune
from raylab.config.arc import TrainingConfig
from raylab.config.base import ClusterConfig
from raylab.config.jobs import BenchmarkConfig, TrainConfig, TuneConfig
from raylab.config.models import ModelConfig
from raylab.config.search import Search
from raylab.log import log_line
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run

ONE_EPOCH = TrainingConfig(epochs=1, patience=None)
ONE_CPU = ClusterConfig(cpus_per_worker=1, use_gpu=False)
CONCURRENT = 2


class TrialOverhead(Part):
    """Seconds of a place for one training of one epoch, by the way it is run."""

    direct_seconds: float
    """Called directly, as many at a time as there are trials at a time."""
    trial_seconds: float
    """As a trial of a sweep, in a process that earlier trials have used."""
    overhead_seconds: float
    """Time of a trial minus that of a direct call."""


class TuneBenchmark(Record):
    """The overhead of a trial."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 3
    tune: TrialOverhead


def benchmark_tune(config: BenchmarkConfig, sides: Sides) -> None:
    """Times a sweep of `config.rounds` trials, two at a time, and as many direct trainings.

    All train the first of `config.models` for one epoch on one CPU thread each. Ray is started, and
    torch imported in the processes of direct trainings, before the clock starts; the sweep's clock
    includes the start of its two processes.

    Raises:
        RaylabError: the run's name is taken, or a training failed.
    """
    run = Run.open(config, config.job)
    model = config.models[0]
    training = TrainConfig(model=model, data=config.data, training=ONE_EPOCH, cluster=ONE_CPU)
    with session(ClusterConfig()):
        direct = _direct_seconds(training, sides, config.rounds)
        swept, _ = timed(lambda: tune(_sweep(config, model, run), sides))
    trial = swept * min(CONCURRENT, config.rounds) / config.rounds
    overhead = TrialOverhead(
        direct_seconds=direct, trial_seconds=trial, overhead_seconds=trial - direct
    )
    run.write_record(TuneBenchmark(tune=overhead))
    log_line(
        f"{model.architecture}, one epoch: {direct:.1f} s called directly, {trial:.1f} s as a "
        f"trial, {trial - direct:.1f} s more, mean of {config.rounds}, {CONCURRENT} at a time",
        **overhead.model_dump(),
    )
    run.finish()


def _direct_seconds(training: TrainConfig, sides: Sides, count: int) -> float:
    """Returns the seconds of a place for one training; each place has a process of its own."""
    work = ray.remote(_train_directly).options(num_cpus=1)
    shared = ray.put(sides)
    places = min(CONCURRENT, count)
    shares = [count // places + (place < count % places) for place in range(places)]
    seconds = ray.get([work.remote(training, shared, share) for share in shares])
    return max(seconds) * places / count


def _train_directly(training: TrainConfig, sides: Sides, count: int) -> float:
    torch.set_num_threads(1)
    since = time.perf_counter()
    for _ in range(count):
        experiment = build_experiment(training, sides)
        trainer = build_trainer(training.training, accelerator="cpu", devices=1)
        trainer.fit(experiment.module, datamodule=experiment.data)
    return time.perf_counter() - since


def _sweep(config: BenchmarkConfig, model: ModelConfig, run: Run) -> TuneConfig:
    fixed = {
        key: {"choice": [value]}
        for key, value in model.model_dump(mode="json", exclude={"architecture"}).items()
    }
    seeds = {"choice": list(range(config.rounds))}
    return TuneConfig.model_validate(
        {
            "storage": run.uri,
            "name": "sweep",
            "space": {"model": {model.architecture: fixed}, "training": {"seed": seeds}},
            "search": Search.GRID,
            "stop_early": False,
            "concurrent": CONCURRENT,
            "data": config.data,
            "training": ONE_EPOCH,
            "cluster": ONE_CPU,
        }
    )
