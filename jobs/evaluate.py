"""Score trained models on generations of ARC tasks, as a tree of Inspect AI eval logs.

Examples:
    python jobs/evaluate.py models=[train-3f2a90c1de]
    python jobs/evaluate.py models=[my-pipeline] generations=[published,1,2,3] scoring.unit=group
    python jobs/evaluate.py models=[my-sweep] data.subset=evaluation scoring.metric=cell_accuracy
    ray job submit --working-dir . -- python jobs/evaluate.py storage=/shared/runs models=[my-sweep]
"""

from raylab.config.jobs import EvaluateConfig
from raylab.entrypoint import run_job


def run(config: EvaluateConfig) -> None:
    from raylab.arc.scoring.plan import plan_evaluation

    scoring = plan_evaluation(config)
    from raylab.cluster.evaluate import run_evaluate

    run_evaluate(config, scoring)


if __name__ == "__main__":
    run_job(EvaluateConfig, __doc__, run)
