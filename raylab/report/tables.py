"""Tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from raylab.arc.records import GroupMetrics, TrainingMetrics
from raylab.arc.sweep import Trial
from raylab.config.arc import ScoringConfig
from raylab.grid_metrics import COMPARED
from raylab.report.published import CHAMPION_BASELINE


def percent(value: float | None) -> str:
    """Returns a share as a percentage; a dash if it is missing."""
    return "-" if value is None else f"{100 * value:.2f} %"


def comparison_table(results: Mapping[str, TrainingMetrics]) -> Table:
    """Returns the metrics of each model at its best epoch beside the published champion."""
    table = Table(title="Validation metrics at the best epoch, teacher-forced unless stated")
    table.add_column("metric")
    for name in results:
        table.add_column(name, justify="right")
    table.add_column("published champion", justify="right")
    for metric, label in COMPARED.items():
        ours = [percent(result.best.validation.get(metric)) for result in results.values()]
        table.add_row(label, *ours, percent(CHAMPION_BASELINE.get(metric)))
    for label, ours in (
        ("best epoch", [str(result.best.epoch) for result in results.values()]),
        ("train loss", [f"{result.best.train_loss:.4f}" for result in results.values()]),
        (
            "samples/s in training",
            [f"{result.last.samples_per_second:.1f}" for result in results.values()],
        ),
        ("parameters", [f"{result.parameters:,}" for result in results.values()]),
    ):
        table.add_row(label, *ours, "-")
    return table


def group_table(groups: Mapping[str, GroupMetrics]) -> Table:
    """Returns metrics of each group of validation tasks, with the compositional gap."""
    table = Table(title="By group of validation tasks, at the best epoch")
    for label in ("group", "grids", "cell", "grid", "gap", "change recall", "solved", "shape"):
        table.add_column(label, justify="left" if label == "group" else "right")
    keys = (
        "cell_accuracy",
        "grid_accuracy",
        "compositional_gap",
        "change_recall",
        "solve_rate",
        "shape_accuracy",
    )
    for name, group in groups.items():
        table.add_row(name, str(group.grids), *(percent(group.metrics[key]) for key in keys))
    return table


def sweep_table(trials: Sequence[Trial], monitor: str) -> Table:
    """Returns trials by rank, best first; `monitor` is the name of the score."""
    table = Table(title=f"Trials by {monitor} at their best epoch")
    for label in ("rank", monitor, "at epoch", "epochs", "parameters", "trial", "drawn"):
        table.add_column(label, justify="left" if label in ("trial", "drawn") else "right")
    for rank, trial in enumerate(trials, 1):
        if trial.trained is None:
            reason = f"{trial.description}: {trial.failure or 'no epoch was finished'}"
            table.add_row("-", "failed", "-", "-", "-", trial.trial, reason)
            continue
        found = trial.trained
        numbers = (str(found.epoch), str(found.epochs), f"{found.parameters:,}")
        table.add_row(str(rank), f"{found.score:.4f}", *numbers, trial.trial, trial.description)
    return table


def accuracy_table(accuracies: Mapping[str, Mapping[str, float]], scoring: ScoringConfig) -> Table:
    """Returns mean accuracies, in [0, 1]; every model has the same generations."""
    table = Table(title=f"Mean {scoring.metric} of a {scoring.unit}")
    table.add_column("model")
    for generation in next(iter(accuracies.values()), {}):
        table.add_column(generation, justify="right")
    for model, by_generation in accuracies.items():
        table.add_row(model, *map(percent, by_generation.values()))
    return table
