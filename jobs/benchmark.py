"""Measure how fast each architecture trains on this machine.

Examples:
    python jobs/benchmark.py
    python jobs/benchmark.py 'models=[champion]' threads=4 rounds=5
"""

from raylab.config import BenchmarkConfig
from raylab.entrypoint import run_job


def run(config: BenchmarkConfig) -> None:
    from raylab.arc.benchmark import run_benchmark

    run_benchmark(config)


if __name__ == "__main__":
    run_job(BenchmarkConfig, __doc__, run)
