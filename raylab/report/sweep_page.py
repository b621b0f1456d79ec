"""The page of a sweep: its trials by rank, their learning curves, and the best configuration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from raylab.arc.sweep import Trial
from raylab.grid_metrics import label_of
from raylab.report.charts.curves import History
from raylab.report.charts.theme import SERIES
from raylab.report.page import counted, curves, render
from raylab.runs.run_record import RunRecord

SHOWN_TRIALS = 200
"""Most rows of the table."""
SHOWN_CURVES = 50
"""Most trials whose curves are drawn, to keep the page small."""


@dataclass(frozen=True)
class SweepReport:
    """Content of the page.

    Attributes:
        uri: The run directory.
        trials: Best first.
        histories: Rows of the epochs by trial.
        monitor: Name of the score.
        best: The best configuration as YAML.
        record: Of the run.
    """

    uri: str
    trials: Sequence[Trial]
    histories: Mapping[str, History]
    monitor: str
    best: str
    record: RunRecord


def render_sweep(report: SweepReport) -> str:
    """Renders the page, a complete HTML document; names and messages in it are escaped."""
    drawn = [trial.trial for trial in report.trials if trial.trained][:SHOWN_CURVES]
    histories = {trial: report.histories[trial] for trial in drawn}
    return render(
        "sweep.html",
        report=report,
        score=label_of(report.monitor),
        lead=list(_summary(report)),
        trials=report.trials[:SHOWN_TRIALS],
        curves=curves(histories, report.monitor),
        drawn=len(drawn),
        coloured=len(SERIES),
    )


def _summary(report: SweepReport) -> Iterator[str]:
    best, label = report.trials[0], label_of(report.monitor)
    if best.trained is not None:
        yield (
            f"The best of {counted(len(report.trials), 'trial')} reached a {label} of "
            f"{best.trained.score:.4f} at epoch {best.trained.epoch}: {best.description}."
        )
    if failed := sum(trial.trained is None for trial in report.trials):
        yield f"{counted(failed, 'trial')} failed; the table says why."
