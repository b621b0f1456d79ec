"""Draw conclusions from the labels of models, corrected by labels of people.

Shares, means, differences and regressions as the labels of models give them, as those of people
alone, and corrected: with intervals that hold although models err. People label a random sample
first: of a run on the page of jobs/review.py with `audit=`; of a table of labels that were made
elsewhere in a column of their own. Needs no Ray.

Examples:
    python jobs/review.py name=tickets audit=0.1
    python jobs/conclude.py run=tickets
    python jobs/conclude.py table=labels.csv models=gpt people=ada
    python jobs/conclude.py run=tickets field=topics 'labels=[billing]' by=team cluster=author
    python jobs/conclude.py run=tickets 'labels=[billing]' 'covariates=[age,region]'
    python jobs/conclude.py run=tickets 'labels=[billing]' outcome=days_to_close 'covariates=[team]'
"""

from raylab.core.entrypoint import run_job
from raylab.label.config.jobs import ConcludeConfig


def run(config: ConcludeConfig) -> None:
    from raylab.label.pages.conclusions import run_conclude

    run_conclude(config)


if __name__ == "__main__":
    run_job(ConcludeConfig, __doc__, run)
