"""Published figures, shown beside ours.

Source: Ingram & Merrit 2025, *An Empirical Answer to re-arc*, and the metrics requirements of its
reproduction package (2025-10-27). All are teacher-forced, on re-arc validation tasks; none is a
free-running solve rate.
"""

DATA_SOURCE = "re_arc"
"""The `data.source` of the published run: 400 tasks, 150 pairs a task, 308/92 tasks."""
EPOCHS = 100
"""Epochs of the published training."""

CHAMPION_BASELINE = {
    "grid_accuracy": 0.0234,
    "cell_accuracy": 0.9039,
    "change_recall": 0.7032,
    "dense_grid_objective": 0.6876,
}
"""The published champion."""
