"""The values of grid metrics, as pure functions and as one epoch-exact torchmetrics `Metric`.

`raylab.arc.grid_metrics` defines the counts, and the metrics as their ratios. Counts are summed
over grids first, so that no value depends on how grids are batched, ordered, padded or shared among
workers.

A (H, W) tensor is one grid, a (B, H, W) tensor a batch; `pad_token` in the target marks cells
outside its grid. The last dimension of integer counts is in the order of `Count`; weights are the
keyword weights of the dense grid objective.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit
from torch import Tensor
from torchmetrics import Metric

from raylab.arc.data.tasks import PAD
from raylab.arc.grid_metrics import GAP_RATE, OBJECTIVE, RATIOS, Count, count_changes, count_grids
from raylab.arc.records import GroupMetrics
from raylab.core.stats import QUANTILES, Interval, Z


def _as_batch(grids: Tensor) -> Tensor:
    if grids.dim() not in (2, 3):
        raise ValueError(
            f"expected a (H, W) grid or a (B, H, W) batch, got shape {tuple(grids.shape)}"
        )
    return grids if grids.dim() == 3 else grids.unsqueeze(0)


def _require_equal_shapes(predictions: Tensor, targets: Tensor) -> None:
    if predictions.shape != targets.shape:
        raise ValueError(
            f"predictions {tuple(predictions.shape)} and targets {tuple(targets.shape)} "
            "differ in shape"
        )


def _values(
    counts: Mapping[Count, Tensor], weights: Mapping[str, float] | None = None
) -> dict[str, Tensor]:
    """Returns every metric, float32, whose summed counts are in `counts`."""
    values = {
        name: _divide(
            torch.stack([counts[count] for count in ratio.numerator]).sum(0),
            torch.stack([counts[count] for count in ratio.denominator]).sum(0),
            ratio.empty,
        )
        for name, ratio in RATIOS.items()
        if {*ratio.numerator, *ratio.denominator} <= counts.keys()
    }
    return values | _objective(values, weights)


def _divide(numerator: Tensor, denominator: Tensor, empty: float) -> Tensor:
    # float32 counts exactly only to 2^24 cells.
    ratio = numerator.double() / denominator.clamp(min=1)
    return torch.where(denominator > 0, ratio, torch.full_like(ratio, empty)).float()


def _objective(
    values: Mapping[str, Tensor], weights: Mapping[str, float] | None
) -> dict[str, Tensor]:
    """Returns the dense grid objective, or nothing if a value that it needs is missing."""
    names = "cell_accuracy", "grid_tol_0p95", "grid_accuracy"
    if not {*names} <= values.keys():
        return {}
    objective = compute_dense_grid_objective(*(values[name] for name in names), **(weights or {}))
    return {OBJECTIVE: objective}


def compute_grid_metrics(
    predictions: Tensor, targets: Tensor, pad_token: int = PAD
) -> dict[str, Tensor]:
    """Returns the cell, grid, row and column accuracy of predicted grids.

    Predictions and targets are integers of one shape, (H, W) or (B, H, W); targets are `pad_token`
    outside each grid.

    Returns:
        Scalars in [0, 1]: `cell_accuracy` (micro, over all cells), `grid_accuracy`,
        `grid_tol_0p90`, `grid_tol_0p95`, `grid_tol_0p99` (shares of grids whose own cell accuracy
        reaches the tolerance), `row_all_correct_rate`, `col_all_correct_rate`, and
        `dense_grid_objective` with its default weights. A grid without a valid cell is not solved.

    Raises:
        ValueError: The shapes differ, or are neither 2-D nor 3-D.
    """
    _require_equal_shapes(predictions, targets)
    counts = count_grids(_as_batch(predictions), _as_batch(targets), pad_token)
    return _values({count: numbers.sum() for count, numbers in counts.items()})


def compute_dense_grid_objective(
    cell: Tensor,
    tol95: Tensor,
    grid: Tensor,
    *,
    w_cell: float = 0.0,
    w_tol: float = 0.8,
    w_ex: float = 0.2,
) -> Tensor:
    """Returns the weighted sum that selects checkpoints, a scalar.

    It weighs `cell_accuracy`, `grid_tol_0p95` and `grid_accuracy`, and is in [0, 1] if the weights
    sum to 1. Source: the metrics requirements of the ARC taxonomy reproduction (2025-10-27).
    """
    return torch.as_tensor(w_cell * cell + w_tol * tol95 + w_ex * grid)


def compute_copy_metrics_on_batch(
    source: Tensor, target: Tensor, prediction: Tensor, pad_token: int = PAD
) -> dict[str, Tensor]:
    """Returns metrics of the changed cells, which copying the source would miss.

    The integers of source, (H', W') or (B, H', W'), and target, (H, W) or (B, H, W), are
    `pad_token` outside each grid; the prediction has the shape of the target. Source and target are
    compared by (row, column). A target cell without a source cell counts as changed, whatever is
    predicted.

    Returns:
        Scalars in [0, 1]: `change_recall`, `change_precision`, `transformation_f1` (1 where there
        was nothing to change and nothing was changed) and `copy_rate`.

    Raises:
        ValueError: Target and prediction differ in shape, or source and target differ in the
            number of grids.
    """
    _require_equal_shapes(prediction, target)
    target, prediction, source = _as_batch(target), _as_batch(prediction), _as_batch(source)
    if len(source) != len(target):
        raise ValueError(f"{len(source)} source grids for {len(target)} targets")
    counts = count_changes(source, target, prediction, pad_token)
    return _values({count: numbers.sum() for count, numbers in counts.items()})


def metric_values(counts: Tensor, weights: Mapping[str, float] | None = None) -> dict[str, Tensor]:
    """Returns every metric, each a scalar in [0, 1], from summed (counts,) counts."""
    return _values({count: counts[count] for count in Count}, weights)


def standard_errors(counts: Tensor, weights: Mapping[str, float] | None = None) -> dict[str, float]:
    """Returns the standard error of every metric, over grids or tasks taken as independent draws.

    A metric R = sum y / sum x over N of them is a ratio estimator. Linearised, its deviations are
    z_i = (y_i - R x_i) / sum x and its standard error is sqrt(N / (N - 1) * sum z_i^2) (Cochran,
    *Sampling Techniques*, 3rd ed. 1977, chapter 6); with every x = 1 that is the usual standard
    error of a mean. The deviations of the dense grid objective are the weighted sums of those of
    its parts.

    `counts` are (N, counts), one row per grid or task. There are no errors if N < 2, and none for a
    metric with a denominator of 0: its value is a convention and no estimate.
    """
    rows = len(counts)
    if rows < 2:
        return {}
    deviations: dict[str, Tensor] = {}
    for name, ratio in RATIOS.items():
        y = counts[:, list(ratio.numerator)].sum(1).double()
        x = counts[:, list(ratio.denominator)].sum(1).double()
        if x.sum() > 0:
            deviations[name] = (y - x * (y.sum() / x.sum())) / x.sum()
    deviations |= _objective(deviations, weights)
    return {
        name: math.sqrt(rows / (rows - 1) * float(z.square().sum()))
        for name, z in deviations.items()
    }


def task_intervals(
    counts: Tensor, weights: Mapping[str, float] | None = None
) -> dict[str, Interval]:
    """Returns the 95 % interval of every ratio, and of the objective, for the choice of tasks.

    It is Clopper's and Pearson's for as many independent draws as have the standard error over
    tasks, fewer for few tasks (Korn and Graubard, *Survey Methodology* 24, 1998). Where that error
    is 0, there are as many draws as tasks. With a single task of the (tasks, counts) `counts` there
    is no interval, nor of an objective that exceeds 1.
    """
    # A task without a grid is no draw.
    own = counts[counts[:, Count.GRIDS] > 0]
    values = as_floats(metric_values(own.sum(0), weights))
    intervals: dict[str, Interval] = {}
    for name, error in standard_errors(own, weights).items():
        if (value := values[name]) <= 1:
            draws = float(len(own))
            if error:
                fewer = (Z / float(stdtrit(len(own) - 1, QUANTILES[1]))) ** 2
                draws = fewer * value * (1 - value) / error**2
            hits, misses = value * draws, (1 - value) * draws
            low = float(betaincinv(hits, misses + 1, QUANTILES[0])) if hits else 0.0
            high = float(betaincinv(hits + 1, misses, QUANTILES[1])) if misses else 1.0
            intervals[name] = low, high
    return intervals


def grid_counts(
    source: Tensor,
    target: Tensor,
    prediction: Tensor,
    *,
    solved: Tensor,
    shape_correct: Tensor,
    shape_by_rule: Tensor,
    free_running: bool = False,
) -> Tensor:
    """Returns the counts of B grids, (B, counts) int64 in the order of `Count`.

    The first three arguments are those of `count_changes`, with `PAD`. `free_running` predictions
    are answers, exact only in the right size.

    Args:
        solved: (B,) bool, True where free-running decoding gave the exact grid.
        shape_correct: (B,) bool, True where height and width of the answer are both right.
        shape_by_rule: (B,) bool, True where the size rule gave them.
    """
    counts = count_grids(prediction, target, PAD)
    if free_running:
        counts[Count.EXACT] *= shape_correct
    counts |= count_changes(source, target, prediction, PAD)
    counts |= {
        Count.SOLVED: solved.long(),
        Count.CORRECT_SHAPES: shape_correct.long(),
        Count.SHAPES_BY_RULE: shape_by_rule.long(),
    }
    return torch.stack([counts[count] for count in Count], dim=1)


def sum_by_task(counts: Tensor, tasks: NDArray[np.int64], size: int) -> Tensor:
    """Returns the (size, counts) sums of (pairs, counts) counts over the pairs of each task.

    The (pairs,) `tasks` are numbers of tasks from 0 to `size` - 1; there is at least one pair.
    """
    sums = counts.new_zeros(size, len(Count))
    return sums.index_add_(0, torch.tensor(tasks), counts)


def as_floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns scalars as numbers, by name."""
    return {name: float(value) for name, value in metrics.items()}


def task_metrics(counts: Tensor, weights: Mapping[str, float] | None = None) -> dict[str, Tensor]:
    """Returns every metric, each a scalar in [0, 1], from the (tasks, counts) counts of tasks.

    Among them is the formal compositional gap of Ingram & Merrit 2025, *An Empirical Answer to
    re-arc*: the share of tasks with over 80 % of their cells right and under 10 % of their grids;
    0 without a task that has a grid.
    """
    own = counts[counts[:, Count.GRIDS] > 0]
    cells = 100 * own[:, Count.CORRECT_CELLS] > 80 * own[:, Count.CELLS]
    grids = 100 * own[:, Count.EXACT] < 10 * own[:, Count.GRIDS]
    gap = _divide((cells & grids).sum(), torch.tensor(len(own), device=own.device), 0.0)
    return metric_values(counts.sum(0), weights) | {GAP_RATE: gap}


def group_metrics(
    counts: Tensor,
    groups: Sequence[str],
    group_of_task: Tensor,
    weights: Mapping[str, float] | None = None,
) -> dict[str, GroupMetrics]:
    """Returns every metric of each group that has a grid, from (tasks, counts) counts.

    Among them is `compositional_gap`, cell accuracy minus grid accuracy. The (tasks,) int64
    `group_of_task` is the position of each task's group.
    """
    table: dict[str, GroupMetrics] = {}
    for position, group in enumerate(groups):
        own = counts[group_of_task == position]
        if grids := int(own[:, Count.GRIDS].sum()):
            values = as_floats(task_metrics(own, weights))
            values["compositional_gap"] = values["cell_accuracy"] - values["grid_accuracy"]
            table[group] = GroupMetrics(grids=grids, metrics=values)
    return table


class GridMetrics(Metric):
    """All grid metrics of an epoch, in total and by group, from summed integer counts.

    The single state is a (tasks, counts) int64 tensor summed over workers, so `compute` is
    exact for any batching and any number of workers.
    """

    full_state_update = False
    counts: Tensor

    def __init__(
        self,
        groups: Sequence[str],
        group_of_task: Tensor,
        weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Starts all counts at 0; `kwargs` are those of `Metric`, the others of `group_metrics`."""
        super().__init__(**kwargs)
        self.groups, self.weights = groups, weights
        self._group_of_task = group_of_task.cpu()
        zeros = torch.zeros(len(group_of_task), len(Count), dtype=torch.int64)
        self.add_state("counts", default=zeros, dist_reduce_fx="sum")

    def update(self, counts: Tensor, task: Tensor) -> None:
        """Adds the (B, counts) `grid_counts` of B grids of the (B,) tasks at these positions."""
        self.counts.index_add_(0, task, counts)

    def compute(self) -> dict[str, Tensor]:
        """Returns every metric over all grids, each a scalar in [0, 1]."""
        return task_metrics(self.counts, self.weights)

    def by_group(self) -> dict[str, GroupMetrics]:
        """Returns `group_metrics` of the grids of all workers."""
        with self.sync_context():
            total = self.counts.cpu()
        return group_metrics(total, self.groups, self._group_of_task, self.weights)
