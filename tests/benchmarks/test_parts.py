"""The parts of the benchmark that need no Ray, and the record that they leave."""

import json
from pathlib import Path

import pytest

from raylab.benchmarks.quality import plain_means, write_tree
from raylab.benchmarks.train import TrainBenchmark
from tests.benchmarks.conftest import Benchmark


def test_training_is_timed_against_the_baseline(benchmark: Benchmark, tmp_path: Path) -> None:
    sizes = {"batch_size": 2, "batches": 1, "naive_batches": 1, "rounds": 2}
    record = benchmark(TrainBenchmark, "decoder_only", {"every": 100}, **sizes)
    speeds = record.models["decoder_only"]
    assert 0 < speeds.samples_per_second.min <= speeds.samples_per_second.median
    assert speeds.samples_ratio.min > 0
    assert record.peak is not None and speeds.flops_per_sample is not None and speeds.mfu
    rate = speeds.samples_per_second.median * speeds.flops_per_sample
    assert speeds.mfu.median == pytest.approx(rate / record.peak.flops_per_second)
    written = json.loads((tmp_path / "b" / "metrics.json").read_text())
    assert written["models"]["decoder_only"]["samples_ratio"].keys() == {"min", "median"}


def test_the_plain_loop_averages_generations_of_a_tree(tmp_path: Path) -> None:
    """Accuracies are (7 m + 3 g + 11 t) mod 101 / 100; of model 0, g of 0..4 and t of 0, 1."""
    assert write_tree(tmp_path / "tree", 2, 2000) == 500
    expected = sum((3 * g + (3 * g + 11)) / 2 for g in range(5)) / 5 / 100
    assert abs(plain_means(tmp_path / "tree")["model-00"] - expected) < 1e-12
