"""Measure the speed of training, of reading score trees, or the overhead of a sweep.

Examples:
    python jobs/benchmark.py 'models=[champion]' threads=4 rounds=5
    python jobs/benchmark.py part=quality
    python jobs/benchmark.py part=tune data.every=8
"""

from raylab.config import BenchmarkConfig
from raylab.entrypoint import run_job


def run(config: BenchmarkConfig) -> None:
    from raylab.arc.benchmark import run_benchmark
    from raylab.cluster.benchmark import benchmark_quality
    from raylab.cluster.benchmark_tune import benchmark_tune

    parts = {"train": run_benchmark, "quality": benchmark_quality, "tune": benchmark_tune}
    parts[config.part](config)


if __name__ == "__main__":
    run_job(BenchmarkConfig, __doc__, run)
