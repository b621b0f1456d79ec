"""Measure the speed of training, decoding, score trees, annotation or sweeps.

Examples:
    python jobs/benchmark.py 'models=[champion]' threads=4 rounds=5
    python jobs/benchmark.py part=decode decoded_pairs=4 rounds=1
    python jobs/benchmark.py part=batches curve_steps=500 'models=[champion]'
    python jobs/benchmark.py part=quality
    python jobs/benchmark.py part=tune data.every=8
    python jobs/benchmark.py part=annotate
"""

from raylab.config.jobs import BenchmarkConfig
from raylab.entrypoint import run_job


def run(config: BenchmarkConfig) -> None:
    from raylab.benchmarks.parts import run_benchmark

    run_benchmark(config)


if __name__ == "__main__":
    run_job(BenchmarkConfig, __doc__, run)
