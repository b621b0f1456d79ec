"""The grid metrics: the counts of predicted grids, and every metric as a ratio of counts.

A metric is added here and nowhere else: configuration, tables, charts and score files follow.
Formulas follow the metrics requirements of the ARC taxonomy reproduction (2025-10-27) and
Ingram & Merrit 2025, *An Empirical Answer to re-arc*.

Counting uses only methods of the given tensors, so that the command line knows the metrics without
importing torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

OBJECTIVE = "dense_grid_objective"
"""The weighted sum of three other metrics that selects checkpoints."""
GAP_RATE = "compositional_gap_rate"
"""The share of tasks whose cells are right and whose grids are not; counted by task."""
COPY_SOURCE = "copy_source"
PREVIOUS_CELL = "previous_cell"
COPY_ELSE_PREVIOUS = "copy_else_previous"
BASELINES = {
    COPY_SOURCE: "copy the source",
    PREVIOUS_CELL: "previous cell",
    COPY_ELSE_PREVIOUS: "copy, else previous",
}
"""Labels of the baselines, by the names that `raylab.arc.baselines` gives them."""
VALIDATION = "val_"
"""Prefix of a metric that training measures on the validation tasks."""


class Count(IntEnum):
    """The counts that metrics of a grid are made of."""

    GRIDS = 0
    EXACT = auto()
    TOL_90 = auto()
    TOL_95 = auto()
    TOL_99 = auto()
    CELLS = auto()
    CORRECT_CELLS = auto()
    ROWS = auto()
    CORRECT_ROWS = auto()
    COLS = auto()
    CORRECT_COLS = auto()
    TARGET_CHANGES = auto()
    PREDICTED_CHANGES = auto()
    COMMON_CHANGES = auto()
    COPIES = auto()
    SOLVED = auto()
    CORRECT_SHAPES = auto()
    SHAPES_BY_RULE = auto()


FREE_RUNNING = {Count.SOLVED, Count.CORRECT_SHAPES, Count.SHAPES_BY_RULE}
"""Counts of free-running answers; all others are counted under teacher forcing."""


@dataclass(frozen=True)
class GridMetric:
    """A metric: its label, its use and, if it is a ratio of counts, these counts.

    Attributes:
        label: Its name in tables and charts.
        numerator: Counts whose sum over all grids is the numerator.
        denominator: Counts whose sum over all grids is the denominator.
        empty: The value if the denominator is 0.
        compared: True if comparisons of models show it.
        higher_is_better: True if training may monitor it and score trees may record it.
    """

    label: str
    numerator: tuple[Count, ...] = ()
    denominator: tuple[Count, ...] = (Count.GRIDS,)
    empty: float = 0.0
    compared: bool = True
    higher_is_better: bool = True

    @property
    def free_running(self) -> bool:
        """True if it is measured on free-running answers."""
        return bool(FREE_RUNNING.intersection(self.numerator))


C = Count
GRID_METRICS = {
    "solve_rate": GridMetric("solve rate (free-running)", (C.SOLVED,)),
    "shape_accuracy": GridMetric("shape accuracy", (C.CORRECT_SHAPES,)),
    "shapes_by_rule": GridMetric(
        "shapes by the size rule", (C.SHAPES_BY_RULE,), higher_is_better=False
    ),
    OBJECTIVE: GridMetric("dense grid objective"),
    "grid_accuracy": GridMetric("grid accuracy", (C.EXACT,)),
    "grid_tol_0p95": GridMetric("grids with >= 95 % right", (C.TOL_95,)),
    "cell_accuracy": GridMetric("cell accuracy", (C.CORRECT_CELLS,), (C.CELLS,)),
    "change_recall": GridMetric("change recall", (C.COMMON_CHANGES,), (C.TARGET_CHANGES,), 1.0),
    "change_precision": GridMetric(
        "change precision", (C.COMMON_CHANGES,), (C.PREDICTED_CHANGES,), 1.0
    ),
    "transformation_f1": GridMetric(
        "transformation F1",
        (C.COMMON_CHANGES, C.COMMON_CHANGES),
        (C.TARGET_CHANGES, C.PREDICTED_CHANGES),
        1.0,
    ),
    "copy_rate": GridMetric("copy rate", (C.COPIES,), (C.CELLS,), higher_is_better=False),
    GAP_RATE: GridMetric("tasks with > 80 % cells and < 10 % grids right", higher_is_better=False),
    "grid_tol_0p90": GridMetric("grid tol 0p90", (C.TOL_90,), compared=False),
    "grid_tol_0p99": GridMetric("grid tol 0p99", (C.TOL_99,), compared=False),
    "row_all_correct_rate": GridMetric(
        "row all correct rate", (C.CORRECT_ROWS,), (C.ROWS,), compared=False
    ),
    "col_all_correct_rate": GridMetric(
        "col all correct rate", (C.CORRECT_COLS,), (C.COLS,), compared=False
    ),
}
"""Every metric by its name, in the order in which they are shown: free-running ones first."""
RATIOS = {name: metric for name, metric in GRID_METRICS.items() if metric.numerator}
SCORED = tuple(name for name, metric in GRID_METRICS.items() if metric.higher_is_better)
"""Metrics that a model can be chosen and scored by."""
ATTEMPTS = {
    "two_attempts": "solved in two attempts",
    "first_attempt": "solved in the first attempt",
}
"""Labels of the shares of a task's test outputs that ARC Prize scores, not ratios of counts."""
LOSS = "loss"
"""The validation loss, which is not a share; lower is better."""
DEMONSTRATION_GAIN = "demonstration_gain"
"""The loss with the demonstrations of other queries less that with a query's own; not a share."""
MONITORED = tuple(f"{VALIDATION}{name}" for name in (*SCORED, LOSS))
"""Metrics that training can monitor, and the loss, with the prefix `val_`."""
WORST_LOSS = 1e6
"""A loss above all measured losses; finite, because searches interpolate between scores."""


def mode_of(monitor: str) -> Literal["min", "max"]:
    """Returns "min" for the loss, and "max" for all other monitored metrics."""
    return "min" if monitor == f"{VALIDATION}{LOSS}" else "max"


def merit(monitor: str, value: float) -> float:
    """Returns the value of a monitored metric with its sign such that higher is better."""
    return value if mode_of(monitor) == "max" else -value


def worst(monitor: str) -> float:
    """Returns the value of a monitored metric for a training that failed."""
    return 0.0 if mode_of(monitor) == "max" else WORST_LOSS


BaselineMetrics = Mapping[str, Mapping[str, float]]
"""Metrics of the baselines, by baseline and metric."""


def best_baseline(baselines: BaselineMetrics, metric: str) -> tuple[str, float] | None:
    """Returns the label and the value of the best baseline by a metric, with or without `val_`.

    None if no baseline was measured, or if a higher value of the metric is not better.
    """
    name = metric.removeprefix(VALIDATION)
    values = {baseline: metrics[name] for baseline, metrics in baselines.items() if name in metrics}
    if not values or name not in SCORED:
        return None
    baseline = max(values, key=lambda baseline: values[baseline])
    return BASELINES.get(baseline, baseline), values[baseline]


def skill(value: float | None, baselines: BaselineMetrics, metric: str) -> float | None:
    """Returns (value - best baseline) / (1 - best baseline): 1 is perfect, 0 no better than it.

    None without a value, without a baseline to compare with, or if a baseline is perfect.
    """
    best = best_baseline(baselines, metric)
    if value is None or best is None or best[1] >= 1.0:
        return None
    return (value - best[1]) / (1 - best[1])


def label_of(name: str) -> str:
    """Returns the label of a metric, with or without `val_`, or the words of any other name."""
    if name == f"{VALIDATION}{LOSS}":
        return "validation loss"
    name = name.removeprefix(VALIDATION)
    if name in GRID_METRICS:
        return GRID_METRICS[name].label
    return ATTEMPTS.get(name, name.replace("_", " "))


def count_grids(prediction: Tensor, target: Tensor, pad: int) -> dict[Count, Tensor]:
    """Returns the numbers of right cells, rows, columns and grids, (B,) int64 by count.

    Predictions and targets are (B, H, W) integers, and targets are `pad` outside each grid.
    """
    valid = target != pad
    correct = valid & (prediction == target)
    cells, correct_cells = valid.sum((1, 2)), correct.sum((1, 2))
    counts = {
        Count.GRIDS: cells.new_ones(cells.shape),
        Count.EXACT: ((cells > 0) & (correct_cells == cells)).long(),
        Count.CELLS: cells,
        Count.CORRECT_CELLS: correct_cells,
    }
    # In whole numbers, so that no rounding decides.
    for count, percent in ((Count.TOL_90, 90), (Count.TOL_95, 95), (Count.TOL_99, 99)):
        counts[count] = ((cells > 0) & (100 * correct_cells >= percent * cells)).long()
    for dim, total, right in ((2, C.ROWS, C.CORRECT_ROWS), (1, C.COLS, C.CORRECT_COLS)):
        held = valid.any(dim)
        counts[total] = held.sum(1)
        counts[right] = (held & ~(valid & ~correct).any(dim)).sum(1)
    return counts


def count_changes(
    source: Tensor, target: Tensor, prediction: Tensor, pad: int
) -> dict[Count, Tensor]:
    """Returns the numbers of cells that target and prediction change, (B,) int64 by count.

    They are compared with the source by (row, column). A target cell without a source cell counts
    as changed, whatever colour is predicted. A cell for which nothing is predicted is neither a
    change nor a copy. `Count.CELLS` counts the cells of the target.

    The integers of source, (B, H', W'), and target, (B, H, W), are `pad` outside each grid, those
    of the prediction, (B, H, W), where nothing is predicted.
    """
    # Source cells keep their position in the shape of the target.
    aligned = target.new_full(target.shape, pad)
    common = source[:, : target.shape[1], : target.shape[2]]
    aligned[:, : common.shape[1], : common.shape[2]] = common
    valid = target != pad
    absent = aligned == pad
    target_changes = valid & (absent | (target != aligned))
    predicted = valid & (prediction != pad)
    predicted_changes = predicted & (absent | (prediction != aligned))
    return {
        Count.CELLS: valid.sum((1, 2)),
        Count.TARGET_CHANGES: target_changes.sum((1, 2)),
        Count.PREDICTED_CHANGES: predicted_changes.sum((1, 2)),
        Count.COMMON_CHANGES: (target_changes & predicted_changes).sum((1, 2)),
        Count.COPIES: (predicted & ~predicted_changes).sum((1, 2)),
    }
