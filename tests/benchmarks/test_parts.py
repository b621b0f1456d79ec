"""The parts of the benchmark that need no Ray, and the record that they leave."""

import json
from pathlib import Path

import pytest
import torch

from raylab.benchmarks.figures import Spread
from raylab.benchmarks.parts import run_benchmark
from raylab.benchmarks.quality import plain_means, write_tree
from raylab.benchmarks.train import TrainBenchmark
from raylab.config.jobs import BenchmarkConfig
from raylab.config.models import DecoderOnlyConfig
from raylab.runs.run import Run
from tests.arc.conftest import SMALL_MODELS


def test_training_is_timed_against_the_baseline(tmp_path: Path) -> None:
    model = SMALL_MODELS["decoder_only"]
    assert isinstance(model, DecoderOnlyConfig)
    config = BenchmarkConfig(
        storage=str(tmp_path),
        name="b",
        models=(model,),
        data=BenchmarkConfig().data.model_copy(update={"every": 100}),
        batch_size=2,
        batches=1,
        naive_batches=1,
        rounds=2,
        threads=torch.get_num_threads(),
    )
    run_benchmark(config)
    run = Run.at(tmp_path / "b")
    record = run.read_record(TrainBenchmark)
    assert record is not None and run.finished
    speeds = record.models["decoder_only"]
    assert 0 < speeds.samples_per_second.min <= speeds.samples_per_second.median
    assert speeds.samples_ratio.min > 0
    assert record.peak is not None and speeds.flops_per_sample is not None and speeds.mfu
    rate = speeds.samples_per_second.median * speeds.flops_per_sample
    assert speeds.mfu.median == pytest.approx(rate / record.peak.flops_per_second)
    written = json.loads((tmp_path / "b" / "metrics.json").read_text())
    assert written["models"]["decoder_only"]["samples_ratio"].keys() == {"min", "median"}


def test_a_spread_is_the_least_and_the_middle() -> None:
    assert Spread.of([3.0, 1.0, 8.0, 2.0]) == Spread(min=1.0, median=2.5)


def test_the_plain_loop_averages_generations_of_a_tree(tmp_path: Path) -> None:
    """Accuracies are (7 m + 3 g + 11 t) mod 101 / 100; of model 0, g of 0..4 and t of 0, 1."""
    assert write_tree(tmp_path / "tree", 2, 2000) == 500
    expected = sum((3 * g + (3 * g + 11)) / 2 for g in range(5)) / 5 / 100
    assert abs(plain_means(tmp_path / "tree")["model-00"] - expected) < 1e-12
