"""Exact grid metrics, as pure functions and as one epoch-exact torchmetrics `Metric`.

Formulas follow the metrics requirements of the ARC taxonomy reproduction (2025-10-27) and
Ingram & Merrit 2025, *An Empirical Answer to re-arc*. All rest on counts summed over grids, so a
value never depends on how grids are batched, ordered, padded or shared among workers.

A (H, W) tensor is one grid, a (B, H, W) tensor a batch; `pad_token` in the target marks cells
outside its grid.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum, auto
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from raylab.arc.tasks import PAD


class Count(IntEnum):
    """The counts all metrics are ratios of."""

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


def _batched(grids: Tensor) -> Tensor:
    if grids.dim() not in (2, 3):
        raise ValueError(
            f"expected a (H, W) grid or a (B, H, W) batch, got shape {tuple(grids.shape)}"
        )
    return grids if grids.dim() == 3 else grids.unsqueeze(0)


def _check_shapes(predictions: Tensor, targets: Tensor) -> None:
    if predictions.shape != targets.shape:
        raise ValueError(
            f"predictions {tuple(predictions.shape)} and targets {tuple(targets.shape)} "
            "differ in shape"
        )


def _grid_counts(predictions: Tensor, targets: Tensor, pad_token: int) -> dict[Count, Tensor]:
    """Per-grid counts, each (B,) int64, of (B, H, W) grids."""
    valid = targets != pad_token
    correct = valid & (predictions == targets)
    cells, correct_cells = valid.sum((1, 2)), correct.sum((1, 2))
    counts = {
        Count.GRIDS: torch.ones_like(cells),
        Count.EXACT: ((cells > 0) & (correct_cells == cells)).long(),
        Count.CELLS: cells,
        Count.CORRECT_CELLS: correct_cells,
    }
    for count, percent in ((Count.TOL_90, 90), (Count.TOL_95, 95), (Count.TOL_99, 99)):
        counts[count] = ((cells > 0) & (100 * correct_cells >= percent * cells)).long()
    for dim, total, right in (
        (2, Count.ROWS, Count.CORRECT_ROWS),
        (1, Count.COLS, Count.CORRECT_COLS),
    ):
        held = valid.any(dim)
        counts[total] = held.sum(1)
        counts[right] = (held & ~(valid & ~correct).any(dim)).sum(1)
    return counts


def _align(source: Tensor, like: Tensor, pad_token: int) -> Tensor:
    """Crop or pad (B, H', W') `source` to the (H, W) of `like`: cells keep their (row, column)."""
    height, width = like.shape[1:]
    aligned = torch.full_like(like, pad_token)
    common = source[:, :height, :width]
    aligned[:, : common.shape[1], : common.shape[2]] = common
    return aligned


def _copy_counts(
    source: Tensor, targets: Tensor, predictions: Tensor, pad_token: int
) -> dict[Count, Tensor]:
    """Per-grid change counts, each (B,) int64; a cell without a source cell counts as changed."""
    aligned = _align(source, targets, pad_token)
    valid = targets != pad_token
    absent = aligned == pad_token
    target_changes = valid & (absent | (targets != aligned))
    predicted_changes = valid & (absent | (predictions != aligned))
    return {
        Count.TARGET_CHANGES: target_changes.sum((1, 2)),
        Count.PREDICTED_CHANGES: predicted_changes.sum((1, 2)),
        Count.COMMON_CHANGES: (target_changes & predicted_changes).sum((1, 2)),
        Count.COPIES: (valid & ~predicted_changes).sum((1, 2)),
    }


def _ratio(numerator: Tensor, denominator: Tensor, empty: float) -> Tensor:
    ratio = numerator.double() / denominator.clamp(min=1)
    return torch.where(denominator > 0, ratio, torch.full_like(ratio, empty)).float()


def _grid_values(counts: Mapping[Count, Tensor]) -> dict[str, Tensor]:
    grids = counts[Count.GRIDS]
    return {
        "cell_accuracy": _ratio(counts[Count.CORRECT_CELLS], counts[Count.CELLS], 0.0),
        "grid_accuracy": _ratio(counts[Count.EXACT], grids, 0.0),
        "grid_tol_0p90": _ratio(counts[Count.TOL_90], grids, 0.0),
        "grid_tol_0p95": _ratio(counts[Count.TOL_95], grids, 0.0),
        "grid_tol_0p99": _ratio(counts[Count.TOL_99], grids, 0.0),
        "row_all_correct_rate": _ratio(counts[Count.CORRECT_ROWS], counts[Count.ROWS], 0.0),
        "col_all_correct_rate": _ratio(counts[Count.CORRECT_COLS], counts[Count.COLS], 0.0),
    }


def _copy_values(counts: Mapping[Count, Tensor]) -> dict[str, Tensor]:
    """Recall, precision and F1 are 1 where there was nothing to change and nothing was changed."""
    common = counts[Count.COMMON_CHANGES]
    target, predicted = counts[Count.TARGET_CHANGES], counts[Count.PREDICTED_CHANGES]
    return {
        "change_recall": _ratio(common, target, 1.0),
        "change_precision": _ratio(common, predicted, 1.0),
        "transformation_f1": _ratio(2 * common, target + predicted, 1.0),
        "copy_rate": _ratio(counts[Count.COPIES], counts[Count.CELLS], 0.0),
    }


def _total(counts: Mapping[Count, Tensor]) -> dict[Count, Tensor]:
    return {count: values.sum() for count, values in counts.items()}


def compute_grid_metrics(
    predictions: Tensor, targets: Tensor, pad_token: int = PAD
) -> dict[str, Tensor]:
    """Cell, grid, row and column accuracy of predicted grids.

    Args:
        predictions: (H, W) or (B, H, W) integers.
        targets: the same shape; `pad_token` outside each grid.
        pad_token: the value of cells outside a grid.

    Returns:
        Scalars in [0, 1]: `cell_accuracy` (micro, over all cells), `grid_accuracy`,
        `grid_tol_0p90`, `grid_tol_0p95`, `grid_tol_0p99` (shares of grids whose own cell accuracy
        reaches the tolerance), `row_all_correct_rate`, `col_all_correct_rate`. A grid without a
        valid cell is not solved.

    Raises:
        ValueError: if the shapes differ or are neither 2-D nor 3-D.
    """
    _check_shapes(predictions, targets)
    return _grid_values(_total(_grid_counts(_batched(predictions), _batched(targets), pad_token)))


def compute_dense_grid_objective(
    cell_accuracy: Tensor,
    grid_tol_0p95: Tensor,
    grid_accuracy: Tensor,
    *,
    w_cell: float = 0.0,
    w_tol: float = 0.8,
    w_exact: float = 0.2,
) -> dict[str, Tensor]:
    """The weighted sum that selects checkpoints: `{"dense_grid_objective": scalar}`.

    In [0, 1] for accuracies in [0, 1] and weights that sum to 1.
    """
    value = w_cell * cell_accuracy + w_tol * grid_tol_0p95 + w_exact * grid_accuracy
    return {"dense_grid_objective": torch.as_tensor(value)}


def compute_copy_metrics_on_batch(
    source: Tensor, target: Tensor, prediction: Tensor, pad_token: int = PAD
) -> dict[str, Tensor]:
    """How well changed cells are found, against copying the source.

    Source and target are compared on common (row, column); a target cell that has no source cell
    counts as changed, whatever is predicted.

    Args:
        source: (H', W') or (B, H', W') integers, `pad_token` outside each grid.
        target: (H, W) or (B, H, W), likewise.
        prediction: the shape of `target`.
        pad_token: the value of cells outside a grid.

    Returns:
        Scalars in [0, 1]: `change_recall`, `change_precision`, `transformation_f1` (1 where there
        was nothing to change and nothing was changed) and `copy_rate`.

    Raises:
        ValueError: if target and prediction differ in shape, or source holds another number of
            grids.
    """
    _check_shapes(prediction, target)
    target, prediction, source = _batched(target), _batched(prediction), _batched(source)
    if len(source) != len(target):
        raise ValueError(f"{len(source)} source grids for {len(target)} targets")
    counts = _copy_counts(source, target, prediction, pad_token)
    counts[Count.CELLS] = (target != pad_token).sum((1, 2))
    return _copy_values(_total(counts))


class GridMetrics(Metric):
    """All grid metrics of an epoch, in total and by group, from summed integer counts.

    The single state is a (groups, counts) int64 tensor summed over workers, so `compute` is
    exact for any batching and any number of workers.
    """

    full_state_update = False
    counts: Tensor

    def __init__(
        self, groups: Sequence[str], weights: Mapping[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Count by `groups`; `weights` are the keyword weights of the dense grid objective."""
        super().__init__(**kwargs)
        self.groups, self.weights = tuple(groups), dict(weights or {})
        zeros = torch.zeros(len(self.groups), len(Count), dtype=torch.int64)
        self.add_state("counts", default=zeros, dist_reduce_fx="sum")

    def update(
        self,
        source: Tensor,
        target: Tensor,
        prediction: Tensor,
        group: Tensor,
        solved: Tensor,
        shape_correct: Tensor,
    ) -> None:
        """Add B grids.

        Args:
            source: (B, H', W') integers, `PAD` outside each grid.
            target: (B, H, W), likewise.
            prediction: (B, H, W).
            group: (B,) int64, position of each grid's group.
            solved: (B,) bool, whether free-running decoding gave the exact grid.
            shape_correct: (B,) bool, whether the predicted height and width are both right.
        """
        counts = _grid_counts(prediction, target, PAD)
        counts |= _copy_counts(source, target, prediction, PAD)
        counts |= {Count.SOLVED: solved.long(), Count.CORRECT_SHAPES: shape_correct.long()}
        self.counts.index_add_(0, group, torch.stack([counts[count] for count in Count], dim=1))

    def compute(self) -> dict[str, Tensor]:
        """Every metric over all grids, each a scalar in [0, 1]."""
        return self._values(self.counts.sum(0))

    def by_group(self) -> dict[str, dict[str, float]]:
        """Every metric of each group that has a grid, with `grids` and `compositional_gap`.

        The gap is cell accuracy minus grid accuracy, over the grids of all workers.
        """
        table: dict[str, dict[str, float]] = {}
        with self.sync_context():
            total = self.counts.cpu()
        for group, counts in zip(self.groups, total, strict=True):
            grids = int(counts[Count.GRIDS])
            if not grids:
                continue
            values = {name: float(value) for name, value in self._values(counts).items()}
            gap = values["cell_accuracy"] - values["grid_accuracy"]
            table[group] = {"grids": grids, **values, "compositional_gap": gap}
        return table

    def _values(self, row: Tensor) -> dict[str, Tensor]:
        counts = {count: row[count] for count in Count}
        values = _grid_values(counts) | _copy_values(counts)
        values |= compute_dense_grid_objective(
            values["cell_accuracy"],
            values["grid_tol_0p95"],
            values["grid_accuracy"],
            **self.weights,
        )
        values["solve_rate"] = _ratio(counts[Count.SOLVED], counts[Count.GRIDS], 0.0)
        values["shape_accuracy"] = _ratio(counts[Count.CORRECT_SHAPES], counts[Count.GRIDS], 0.0)
        return values
