"""Measure the speed of training, of reading score trees, or the overhead of a sweep.

Examples:
    python jobs/benchmark.py 'models=[champion]' threads=4 rounds=5
    python jobs/benchmark.py part=quality
    python jobs/benchmark.py part=tune data.every=8
"""

from raylab.config import BenchmarkConfig
from raylab.entrypoint import run_job


def run(config: BenchmarkConfig) -> None:
    # The training part runs where ray is not installed.
    if config.part == "train":
        from raylab.arc.benchmark import run_benchmark as measure
    elif config.part == "quality":
        from raylab.cluster.benchmark import benchmark_quality as measure
    else:
        from raylab.cluster.benchmark import benchmark_tune as measure
    measure(config)


if __name__ == "__main__":
    run_job(BenchmarkConfig, __doc__, run)
