"""Score trained models on generations of ARC tasks, as a tree of Inspect AI eval logs.

Examples:
    python jobs/evaluate.py models=[train-3f2a90c1de]
    python jobs/evaluate.py models=[my-pipeline] generations=[published,1,2,3] scoring.unit=group
    python jobs/evaluate.py models=[my-sweep] data.subset=evaluation scoring.metric=cell_accuracy
    python jobs/evaluate.py models=[my-run] scoring=arc data.subset=evaluation
    python jobs/evaluate.py submission=submission.json scoring=arc data.subset=evaluation
    ray job submit --working-dir . -- python jobs/evaluate.py storage=/shared/runs models=[my-sweep]
"""

from raylab.config.jobs import EvaluateConfig
from raylab.entrypoint import run_job


def run(config: EvaluateConfig) -> None:
    if config.submission is not None:
        from raylab.evaluation.prize import run_submission

        run_submission(config)
    elif config.scoring.protocol == "arc":
        from raylab.arc.prize.planning import plan_models

        models = plan_models(config)
        if config.cluster.is_this_process:
            from raylab.evaluation.prize import run_prize
        else:
            from raylab.cluster.prize import run_prize
        run_prize(config, models)
    else:
        from raylab.arc.scoring.plan import plan_evaluation

        scoring = plan_evaluation(config)
        if config.cluster.is_this_process:
            from raylab.evaluation.scores import run_evaluate
        else:
            from raylab.cluster.evaluate import run_evaluate
        run_evaluate(config, scoring)


if __name__ == "__main__":
    run_job(EvaluateConfig, __doc__, run)
