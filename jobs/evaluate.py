"""Score trained models on generations of ARC tasks, as a tree of Inspect AI eval logs.

Examples:
    python jobs/evaluate.py models=[train-3f2a90c1de]
    python jobs/evaluate.py models=[my-pipeline] generations=[published,1,2,3] scoring.unit=group
    python jobs/evaluate.py models=[my-sweep] data.subset=evaluation scoring.metric=cell_accuracy
    python jobs/evaluate.py models=[my-run] scoring=arc data.subset=evaluation
    python jobs/evaluate.py submission=submission.json scoring=arc data.subset=evaluation
    ray job submit --working-dir . -- python jobs/evaluate.py storage=/shared/runs models=[my-sweep]
"""

from raylab.arc.config.jobs import EvaluateConfig
from raylab.core.entrypoint import run_job
from raylab.core.on_ray import workers_for


def run(config: EvaluateConfig) -> None:
    from raylab.arc.evaluation.prize import run_prize, run_submission
    from raylab.arc.evaluation.scores import run_evaluate
    from raylab.arc.scoring.plan import plan_evaluation

    if config.submission is not None:
        run_submission(config)
    else:
        planned = plan_evaluation(config)
        with workers_for(config.cluster, planned.tree) as workers:
            if config.scoring.protocol == "arc":
                run_prize(planned, workers)
            else:
                run_evaluate(planned, workers)


if __name__ == "__main__":
    run_job(EvaluateConfig, __doc__, run)
