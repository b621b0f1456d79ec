"""Learning curves of trainings, for every page that shows some."""

from collections.abc import Mapping

from markupsafe import Markup

from raylab.arc.grid_metrics import LOSS, OBJECTIVE, VALIDATION, label_of
from raylab.core.page.charts import SERIES, History, learning_curves
from raylab.core.page.page import block

MONITOR = f"{VALIDATION}{OBJECTIVE}"
"""The metric that selects checkpoints unless the configuration says otherwise."""


def curves(histories: Mapping[str, History], monitor: str) -> Markup:
    """Draws the main validation metrics and both losses, but none whose values are all equal."""
    shares = ("val_solve_rate", monitor, "val_grid_accuracy", "val_cell_accuracy")
    rows = [row for history in histories.values() for row in history]
    charts = [
        learning_curves(histories, metric, label_of(metric), prefix=f"curve-{metric}")
        for metric in dict.fromkeys((*shares, "train_loss", f"{VALIDATION}{LOSS}"))
        if len({row.get(metric) for row in rows} - {None}) > 1
    ]
    caption = (
        "Losses and validation metrics after each epoch; a large mark is the best epoch on that "
        "metric."
    )
    if len(histories) > len(SERIES):
        caption += f" Only the best of {len(histories)} curves is in colour."
    return block("charts", charts, caption)
