"""Published figures, shown beside ours.

Source: Ingram & Merrit 2025, *An Empirical Answer to re-arc*, and the metrics requirements of its
reproduction package (2025-10-27). Champion, teacher-forced, re-arc validation.
"""

CHAMPION_BASELINE = {
    "grid_accuracy": 0.0234,
    "cell_accuracy": 0.9039,
    "change_recall": 0.7032,
    "dense_grid_objective": 0.6876,
}
"""The published champion."""
