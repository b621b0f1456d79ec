"""The parts of the benchmark, by name."""

from raylab.config.jobs import BenchmarkConfig


def run_benchmark(config: BenchmarkConfig) -> None:
    """Runs the part that `config` names.

    A part is imported only to run it, because `train` and `decode` must work without Ray
    installed.

    Raises:
        RaylabError: the data cannot be used, or the run's name is taken.
    """
    match config.part:
        case "train":
            from raylab.benchmarks.train import benchmark_train as measure
        case "decode":
            from raylab.benchmarks.decode import benchmark_decode as measure
        case "batches":
            from raylab.benchmarks.batches import benchmark_batches as measure
        case "quality":
            from raylab.benchmarks.quality import benchmark_quality as measure
        case "tune":
            from raylab.benchmarks.tune import benchmark_tune as measure
        case "annotate":
            from raylab.benchmarks.annotate import benchmark_annotate as measure
        case "scaling":
            from raylab.benchmarks.scaling import benchmark_scaling as measure
        case "coverage":
            from raylab.benchmarks.coverage import benchmark_coverage as measure
    measure(config)
