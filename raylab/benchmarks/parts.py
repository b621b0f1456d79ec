"""The parts of `jobs/benchmark.py` that need Ray."""

from raylab.benchmarks.on_ray import benchmark_annotate, benchmark_quality, benchmark_tune
from raylab.benchmarks.scaling import benchmark_scaling
from raylab.config.jobs import BenchmarkConfig

PARTS = {
    "quality": benchmark_quality,
    "tune": benchmark_tune,
    "annotate": benchmark_annotate,
    "scaling": benchmark_scaling,
}


def measure_part(config: BenchmarkConfig) -> None:
    """Run the part of `config`; see its function."""
    PARTS[config.part](config)
