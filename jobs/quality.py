"""Measure the quality of a benchmark from the scores of models on it.

Writes difficulty, separability, consistency and novelty, with 95 % intervals, to `quality.json`;
and a diagnosis to `diagnosis.json`, `items.parquet` and a page: which differences between models
are real, where noise comes from, which items spoil the benchmark. Reads a tree of Inspect AI eval
logs, `<root>/<model>/<generation>/*.json`, or any directory or file that names its models: logs of
Inspect, samples of lm-evaluation-harness and Every Eval Ever, and tables.

Examples:
    python jobs/quality.py example=true
    python jobs/quality.py scores=logs
    python jobs/quality.py scores=table.csv columns.model=Model scale=[0,10]
    python jobs/quality.py run_id=run7 'quality_eval_cfg.prior_datasets=[earlier/scores]'
    BASE_ARTIFACTS_DIR=/data python jobs/quality.py run_id=run7 layout=flat strict=true
"""

from raylab.benchmark.config import QualityConfig
from raylab.core.entrypoint import run_job
from raylab.core.on_ray import workers_for


def run(config: QualityConfig) -> None:
    from raylab.benchmark.logs.trees import configured_trees
    from raylab.core.runs.run import Run

    if config.example:
        from raylab.benchmark.run import with_example

        config = with_example(config)
    run = Run.check(config)
    # What is read is said before the statistics, which take seconds to import.
    trees = configured_trees(config)
    from raylab.benchmark.run import measure_and_diagnose, write_quality

    with workers_for(config.cluster.without_gpu, run) as workers:
        quality, findings = measure_and_diagnose(trees, config, workers)
    write_quality(config, quality, findings)


if __name__ == "__main__":
    run_job(QualityConfig, __doc__, run)
