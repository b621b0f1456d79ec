"""A sweep: its trials by rank in the terminal, and its page."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raylab.arc.sweep import SweepMetrics
from raylab.grid_metrics import VALIDATION, best_rule, label_of, skill
from raylab.report.charts import History
from raylab.report.page import Block, Code, Fold, Page, Section, curves, provenance, render
from raylab.report.table import BEST, MISSING, Cell, Column, Row, Table, counted, percent
from raylab.runs.run_record import RunRecord

SHOWN_TRIALS = 200
"""Most rows of the table on the page."""
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
    """Renders the page, a complete HTML document."""
    trials = report.sweep.trials
    trained = [trial.trial for trial in trials if trial.trained]
    drawn = {trial: report.histories[trial] for trial in trained[:SHOWN_CURVES]}
    lines: list[Block] = [curves(drawn, report.monitor)]
    if len(drawn) < len(trained):
        lines.insert(0, f"Of {len(trained)} trials the first {len(drawn)} are drawn.")
    again = shlex.join(["python", "jobs/train.py", "--config", f"{report.uri}/best.yaml"])
    best = ["To train it in full:", Code(again), Fold("best.yaml", [Code(report.best)])]
    page = Page(
        "sweep",
        report.record.name,
        report.uri,
        list(_summary(report)),
        [
            Section(
                "trials",
                "Trials by rank",
                [sweep_table(report.sweep, report.monitor, most=SHOWN_TRIALS)],
                "Trials",
            ),
            Section("curves", "Learning curves", lines),
            Section("best", "Best configuration", best),
            provenance(report.uri, report.record),
        ],
    )
    return render(page)


def sweep_table(sweep: SweepMetrics, monitor: str, most: int | None = None) -> Table:
    """Returns trials by rank, best first, and the best rule.

    Args:
        sweep: The trials and the rules.
        monitor: Name of the score.
        most: Most trials; None for all.
    """
    notes = f"{label_of(monitor)} of each trial at its best epoch, in [0, 1]."
    rows = [_trial_row(place, sweep, monitor) for place in range(len(sweep.trials[:most]))]
    if best := best_rule(sweep.rules, monitor):
        notes += " In the column skill, 0 is no better than the best rule that learns nothing."
        solved = best_rule(sweep.rules, "solve_rate")
        free = percent(None if solved is None else solved[1])
        rows.append(["-", "best rule", free, f"{best[1]:.4f}", *["-"] * 4, best[0]])
    if len(rows) < len(sweep.trials):
        notes += f" The first {most} of {len(sweep.trials)}."
    return Table(
        f"Trials by {monitor} at their best epoch, on the validation tasks",
        [
            "rank",
            Column("trial", text=True),
            "solved, free-running",
            label_of(monitor),
            "skill",
            "at epoch",
            "epochs",
            "parameters",
            Column("drawn", text=True),
        ],
        rows,
        notes,
    )


def _trial_row(place: int, sweep: SweepMetrics, monitor: str) -> Row:
    trial = sweep.trials[place]
    if (trained := trial.trained) is None:
        reason = f"{trial.description}: {trial.failure or 'no epoch was finished'}"
        return ["-", trial.trial, "-", Cell("failed", look=MISSING), *["-"] * 4, reason]
    over = skill(trained.score, sweep.rules, monitor)
    return [
        str(place + 1),
        trial.trial,
        percent(trained.solve_rate),
        Cell(f"{trained.score:.4f}", look="" if place else BEST),
        "-" if over is None else f"{over:+.3f}",
        str(trained.epoch),
        str(trained.epochs),
        f"{trained.parameters:,}",
        trial.description,
    ]


def _summary(report: SweepReport) -> Iterator[str]:
    trials, rules = report.sweep.trials, report.sweep.rules
    best, label = trials[0], label_of(report.monitor)
    if best.trained is None:
        yield "No trial was trained."
    else:
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
