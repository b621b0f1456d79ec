"""The parts of the benchmark, by name."""

from raylab.arc.data.sources import load_tasks
from raylab.arc.inputs import read_sides
from raylab.config.jobs import BenchmarkConfig
from raylab.runs.run import Run


def run_benchmark(config: BenchmarkConfig) -> None:
    """Runs the part that `config` names.

    Benchmarks fail fast: tasks are read before the heavy imports. `train` works without Ray.

    Raises:
        RaylabError: the data cannot be used, or the run's name is taken.
    """
    Run.planned(config, config.job)
    match config.part:
        case "train":
            tasks = load_tasks(config.data)
            from raylab.benchmarks.train import benchmark_train

            benchmark_train(config, tasks)
        case "tune":
            sides = read_sides(config)
            from raylab.benchmarks.tune import benchmark_tune

            benchmark_tune(config, sides)
        case "quality":
            from raylab.benchmarks.quality import benchmark_quality

            benchmark_quality(config)
        case "annotate":
            from raylab.benchmarks.annotate import benchmark_annotate

            benchmark_annotate(config)
