"""Published figures, shown beside ours.

Source: Ingram & Merrit 2025, *An Empirical Answer to re-arc*, and the metrics requirements of its
reproduction package (2025-10-27). All are teacher-forced, on re-arc validation tasks; none is a
free-running solve rate.
"""

SOURCE = "Ingram & Merrit 2025, An Empirical Answer to re-arc"
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

ABLATION_GRID_ACCURACY = {
    "generic encoder-decoder": 0.0333,
    "+ 2-D positions": 0.0317,
    "+ colour embedding": 0.0325,
    "champion": 0.0317,
}
"""Best grid accuracy at any epoch, in the later ablation; cell accuracy is about 0.90 in each."""

FINE_TUNING_CELL_ACCURACY = (0.8267, 0.8471)
"""Mean cell accuracy on 18 tasks, before and after fine-tuning on them."""

CATEGORY_CELL_ACCURACY = {"A2": (0.17, 0.17), "C1": (0.95, 0.98), "S3": (0.70, 0.96)}
"""Lowest and highest cell accuracy of tasks of a category after that fine-tuning."""
