"""Settle the open cases of an annotation run in the browser, each confirmed by the evaluator.

The page listens on loopback; on any other address it asks for the token in RAYLAB_REVIEW_TOKEN.
`export=` writes the open cases to a file to fill in instead, `import=` archives its decisions.

Examples:
    python jobs/review.py name=systems
    RAYLAB_REVIEW_TOKEN=... python jobs/review.py name=systems host=0.0.0.0 'hosts=[review.example]'
    python jobs/review.py name=systems export=systems.jsonl
    python jobs/review.py name=systems import=systems.jsonl reviewer=Ada
"""

from raylab.config.jobs import ReviewConfig
from raylab.entrypoint import run_job


def run(config: ReviewConfig) -> None:
    if config.export is not None:
        from raylab.review.exchange import export_cases

        export_cases(config, config.export)
    elif config.import_ is not None:
        from raylab.review.exchange import import_decisions

        import_decisions(config, config.import_)
    elif config.cluster.joined:
        from raylab.cluster.review_page import serve

        serve(config)
    else:
        from raylab.review.server import serve

        serve(config)


if __name__ == "__main__":
    run_job(ReviewConfig, __doc__, run)
