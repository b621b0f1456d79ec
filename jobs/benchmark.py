"""Measure the speed of training or annotation against a plain baseline.

Examples:
    python jobs/benchmark.py 'models=[champion]' threads=4 rounds=5
    python jobs/benchmark.py data=re_arc data.path=re_arc.zip data.every=4
    python jobs/benchmark.py part=annotate
"""

from raylab.config.jobs import BenchmarkConfig
from raylab.entrypoint import run_job


def run(config: BenchmarkConfig) -> None:
    from raylab.runs.run import Run

    # Benchmarks fail fast: tasks are read before the heavy imports.
    Run.check(config)
    if config.part == "train":
        from raylab.arc.data.sources import load_tasks

        tasks = load_tasks(config.data)
        from raylab.benchmarks.train import benchmark_train

        benchmark_train(config, tasks)
    else:
        from raylab.benchmarks.annotate import benchmark_annotate

        benchmark_annotate(config)


if __name__ == "__main__":
    run_job(BenchmarkConfig, __doc__, run)
