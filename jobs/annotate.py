"""Classify texts by a codebook: annotators, evaluator, adjudicator.

Each case ends as one row of the archive. Answered calls are never sent again.

Examples:
    python jobs/annotate.py cases.take=12
    python jobs/annotate.py --config models.yaml cases.path=systems.jsonl name=systems
    python jobs/annotate.py --config models.yaml cases.path=systems.jsonl name=systems resume=true
"""

from raylab.config.jobs import AnnotateConfig
from raylab.entrypoint import run_job


def run(config: AnnotateConfig) -> None:
    from raylab.cluster.annotate import run_annotate

    run_annotate(config)


if __name__ == "__main__":
    run_job(AnnotateConfig, __doc__, run)
