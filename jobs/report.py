"""Compare any runs side by side: metrics, configurations, learning curves, quality, annotation.

Prints tables and leaves `report.html`, one self-contained page. Needs no Ray.
With `drift=true` it compares the annotation runs of an archive over time and leaves `drift.json`.

Examples:
    python jobs/report.py 'runs=[monday,tuesday]' name=comparison
    python jobs/report.py 'runs=[sweep,/data/runs/champion,s3://bucket/runs/pipeline]'
    python jobs/report.py 'runs=[january,march]' name=annotations resume=true
    python jobs/report.py drift=true
"""

from raylab.core.entrypoint import run_job
from raylab.together.config import ReportConfig


def run(config: ReportConfig) -> None:
    if config.drift:
        from raylab.label.pages.drift import report_drift

        report_drift(config.storage, config.archive)
    else:
        from raylab.together.comparison import report_runs

        report_runs(config)


if __name__ == "__main__":
    run_job(ReportConfig, __doc__, run)
