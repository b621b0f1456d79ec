"""Tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from raylab.config.arc import ScoringConfig
from raylab.grid_metrics import COMPARED
from raylab.report.published import CHAMPION_BASELINE


def percent(value: float | None) -> str:
    """A share as a percentage; a dash where it is missing."""
    return "-" if value is None else f"{100 * value:.2f} %"


def comparison_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Best-epoch metrics of each model beside the published champion.

    Args:
        results: model name to the content of its `metrics.json`.
    """
    table = Table(title="Validation metrics at the best epoch, teacher-forced unless stated")
    table.add_column("metric")
    for name in results:
        table.add_column(name, justify="right")
    table.add_column("published champion", justify="right")
    for metric, label in COMPARED.items():
        ours = [percent(result["best"].get(f"val_{metric}")) for result in results.values()]
        table.add_row(label, *ours, percent(CHAMPION_BASELINE.get(metric)))
    for key, label, form in (("epoch", "best epoch", "{}"), ("train_loss", "train loss", "{:.4f}")):
        ours = [form.format(result["best"][key]) for result in results.values()]
        table.add_row(label, *ours, "-")
    speeds = [f"{result['last']['samples_per_second']:.1f}" for result in results.values()]
    table.add_row("samples/s in training", *speeds, "-")
    table.add_row("parameters", *[f"{result['parameters']:,}" for result in results.values()], "-")
    return table


def group_table(groups: Mapping[str, Mapping[str, float]]) -> Table:
    """Metrics of each group of validation tasks, with the compositional gap."""
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
    for name, metrics in groups.items():
        table.add_row(name, str(int(metrics["grids"])), *(percent(metrics[key]) for key in keys))
    return table


def sweep_table(trials: Sequence[Mapping[str, Any]], monitor: str) -> Table:
    """Trials by rank.

    Args:
        trials: best first, each with `trial`, `drawn` (a text), `score`, which is None where the
            trial failed, and then `failure`; otherwise `epoch` of the best, `epochs`, `parameters`.
        monitor: name of the score.
    """
    table = Table(title=f"Trials by {monitor} at their best epoch")
    for label in ("rank", monitor, "at epoch", "epochs", "parameters", "trial", "drawn"):
        table.add_column(label, justify="left" if label in ("trial", "drawn") else "right")
    for rank, trial in enumerate(trials, 1):
        if trial["score"] is None:
            reason = f"{trial['drawn']}: {trial['failure'] or 'no epoch was finished'}"
            table.add_row("-", "failed", "-", "-", "-", trial["trial"], reason)
            continue
        numbers = (str(int(trial["epoch"])), str(int(trial["epochs"])), f"{trial['parameters']:,}")
        score = f"{trial['score']:.4f}"
        table.add_row(str(rank), score, *numbers, trial["trial"], trial["drawn"])
    return table


def accuracy_table(accuracies: Mapping[str, Mapping[str, float]], scoring: ScoringConfig) -> Table:
    """Mean accuracy, in [0, 1], by model and generation; every model has the same generations."""
    table = Table(title=f"Mean {scoring.metric} of a {scoring.unit}")
    table.add_column("model")
    for generation in next(iter(accuracies.values()), {}):
        table.add_column(generation, justify="right")
    for model, by_generation in accuracies.items():
        table.add_row(model, *map(percent, by_generation.values()))
    return table
