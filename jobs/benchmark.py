"""Measure the speed of training, annotation, score trees or sweeps against plain baselines.

Examples:
    python jobs/benchmark.py 'models=[champion]' threads=4 rounds=5
    python jobs/benchmark.py data=re_arc data.path=re_arc.zip data.every=4
    python jobs/benchmark.py part=annotate
    python jobs/benchmark.py part=quality
    python jobs/benchmark.py part=tune data.every=8
"""

from raylab.config.jobs import BenchmarkConfig
from raylab.entrypoint import run_job


def run(config: BenchmarkConfig) -> None:
    from raylab.benchmarks.parts import run_benchmark

    run_benchmark(config)


if __name__ == "__main__":
    run_job(BenchmarkConfig, __doc__, run)
