"""Settle the open cases of an annotation run in the browser or in Label Studio.

The page listens on loopback; on any other address it asks for the token in RAYLAB_REVIEW_TOKEN.
`export=` writes the open cases as tasks of Label Studio instead, `import=` archives its
annotations. With `audit=` people also classify a random sample of the decided cases, which measures
the accuracy.
Nothing is sent to a model: the next run of jobs/annotate.py with resume=true confirms what people
decided.

Examples:
    python jobs/review.py name=systems
    RAYLAB_REVIEW_TOKEN=... python jobs/review.py name=systems host=0.0.0.0 'hosts=[review.example]'
    python jobs/review.py name=systems export=systems.json
    python jobs/review.py name=systems import=systems.json reviewer=Ada
    python jobs/review.py name=systems audit=0.05
    python jobs/review.py name=systems audit=0.05 export=audit.json
"""

from raylab.core.entrypoint import run_job
from raylab.label.config.jobs import ReviewConfig


def run(config: ReviewConfig) -> None:
    if config.export is not None:
        from raylab.label.review.server import export_cases

        export_cases(config, config.export)
    elif config.import_ is not None:
        from raylab.label.review.server import import_decisions

        import_decisions(config, config.import_)
    else:
        from raylab.label.review.server import serve

        serve(config)


if __name__ == "__main__":
    run_job(ReviewConfig, __doc__, run)
