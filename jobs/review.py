"""Settle the open cases of an annotation run in the browser, each confirmed by the evaluator.

The page is on loopback; anywhere else it asks for the token in RAYLAB_REVIEW_TOKEN.

Examples:
    python jobs/review.py name=systems
    RAYLAB_REVIEW_TOKEN=... python jobs/review.py name=systems host=0.0.0.0 'hosts=[review.example]'
"""

from raylab.config.jobs import ReviewConfig
from raylab.entrypoint import run_job


def run(config: ReviewConfig) -> None:
    if config.cluster.joined:
        from raylab.cluster.review_page import serve
    else:
        from raylab.review.server import serve
    serve(config)


if __name__ == "__main__":
    run_job(ReviewConfig, __doc__, run)
