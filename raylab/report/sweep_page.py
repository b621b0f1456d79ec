"""The page of a sweep: its trials by rank, their learning curves, and the best configuration."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raylab.arc.sweep import SweepMetrics, Trained
from raylab.grid_metrics import VALIDATION, best_rule, label_of, skill
from raylab.report.charts.curves import History
from raylab.report.charts.theme import SERIES
from raylab.report.page import counted, curves, render
from raylab.report.tables import percent
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
        sweep: The trials, best first, and the rules that they stand beside.
        histories: Rows of the epochs by trial.
        monitor: Name of the score.
        best: The best configuration as YAML.
        record: Of the run.
    """

    uri: str
    sweep: SweepMetrics
    histories: Mapping[str, History]
    monitor: str
    best: str
    record: RunRecord


def render_sweep(report: SweepReport) -> str:
    """Renders the page, a complete HTML document; names and messages in it are escaped."""
    sweep, monitor = report.sweep, report.monitor

    def over(trained: Trained) -> str:
        found = skill(trained.score, sweep.rules, monitor)
        return "-" if found is None else f"{found:+.3f}"

    drawn = [trial.trial for trial in sweep.trials if trial.trained][:SHOWN_CURVES]
    histories = {trial: report.histories[trial] for trial in drawn}
    return render(
        "sweep.html",
        report=report,
        score=label_of(report.monitor),
        lead=list(_summary(report)),
        trials=sweep.trials[:SHOWN_TRIALS],
        total=len(sweep.trials),
        skill=over,
        best_rule=best_rule(sweep.rules, monitor),
        rule_solves=best_rule(sweep.rules, "solve_rate"),
        curves=curves(histories, report.monitor),
        drawn=len(drawn),
        coloured=len(SERIES),
    )


def _summary(report: SweepReport) -> Iterator[str]:
    trials, rules = report.sweep.trials, report.sweep.rules
    best, label = trials[0], label_of(report.monitor)
    if best.trained is not None:
        yield (
            f"The best of {counted(len(trials), 'trial')} reached a {label} of "
            f"{best.trained.score:.4f} at epoch {best.trained.epoch}: {best.description}."
        )
        if best.trained.solve_rate is not None:
            yield f"Free-running, it solves {percent(best.trained.solve_rate)} of the grids."
        if rule := best_rule(rules, report.monitor):
            yield f"The best rule that learns nothing, {rule[0]}, reaches {rule[1]:.4f}."
    if test := report.sweep.test:
        key = report.monitor.removeprefix(VALIDATION)
        yield (
            f"On the test tasks, which chose nothing, it reaches a {label} of "
            f"{test.metrics[key]:.4f} and solves {percent(test.metrics.get('solve_rate'))}."
            if not test.chosen_on
            else "The same tasks chose it and are reported, so its figures are too good."
        )
    if failed := sum(trial.trained is None for trial in trials):
        yield f"{counted(failed, 'trial')} failed; the table says why."
