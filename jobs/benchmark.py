"""Measure the speed of training, annotation, reading score trees, or solving ARC tasks.

Examples:
    python jobs/benchmark.py 'models=[champion]' threads=4 rounds=5
    python jobs/benchmark.py data=re_arc data.path=re_arc.zip data.every=4
    python jobs/benchmark.py speedrun=hour stages.0.data.path=re_arc.zip
    python jobs/benchmark.py part=annotate
    python jobs/benchmark.py part=quality
"""

from raylab.core.entrypoint import run_job
from raylab.together.config import BenchmarkConfig


def run(config: BenchmarkConfig) -> None:
    from raylab.core.runs.run import Run

    # Benchmarks fail fast: tasks are read before the heavy imports.
    Run.check(config)
    match config.part:
        case "train":
            from raylab.arc.data.sources import load_tasks

            tasks = load_tasks(config.data)
            from raylab.together.speed.train import benchmark_train

            benchmark_train(config, tasks)
        case "arc":
            from raylab.together.speed.arc import benchmark_arc

            benchmark_arc(config)
        case "annotate":
            from raylab.together.speed.annotate import benchmark_annotate

            benchmark_annotate(config)
        case "quality":
            from raylab.together.speed.quality import benchmark_quality

            benchmark_quality(config)


if __name__ == "__main__":
    run_job(BenchmarkConfig, __doc__, run)
