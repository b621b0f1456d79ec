"""Classify texts by a codebook: annotators, evaluator, adjudicator.

Each case ends as one row of the archive. Answered calls are never sent again.

Examples:
    python jobs/annotate.py cases.take=12
    python jobs/annotate.py --config models.yaml cases.path=systems.jsonl name=systems
    python jobs/annotate.py --config models.yaml cases.path=systems.jsonl name=systems resume=true
"""

from raylab.core.entrypoint import run_job
from raylab.label.config.jobs import AnnotateConfig


def run(config: AnnotateConfig) -> None:
    from raylab.label.on_ray.annotate import run_annotate

    run_annotate(config)


if __name__ == "__main__":
    run_job(AnnotateConfig, __doc__, run)
