"""Settle the open cases of an annotation run in the browser, each confirmed by the evaluator.

The page listens on loopback; on any other address it asks for the token in RAYLAB_REVIEW_TOKEN.
`export=` writes the open cases to a file to fill in instead, `import=` archives its decisions. With
`audit=` page and files are about a random sample of the decided cases too, which measures the run's
accuracy.

Examples:
    python jobs/review.py name=systems
    RAYLAB_REVIEW_TOKEN=... python jobs/review.py name=systems host=0.0.0.0 'hosts=[review.example]'
    python jobs/review.py name=systems export=systems.jsonl
    python jobs/review.py name=systems import=systems.jsonl reviewer=Ada
    python jobs/review.py name=systems audit=0.05
    python jobs/review.py name=systems audit=0.05 export=audit.jsonl
    python jobs/review.py name=systems audit=0.05 import=audit.jsonl reviewer=Ada
"""

from raylab.config.jobs import ReviewConfig
from raylab.entrypoint import run_job


def run(config: ReviewConfig) -> None:
    # Before the imports of the page and the evaluator, which take seconds.
    from raylab.annotation.run import check_reviewed

    check_reviewed(config)
    if config.audit is not None and (config.export or config.import_):
        from raylab.review.audit_exchange import export_or_import_audit

        export_or_import_audit(config, config.audit)
    elif config.export is not None:
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
