"""The grid metrics by the definitions of the published logs, to stand beside the published runs.

A value is the mean over batches of a batch's own value. The first output cell is left out, and with
it every output of one cell. The change metrics and the copy rate of a batch are means over its
grids. Source: the training code of the reproduction package of Ingram & Merrit 2025, *An Empirical
Answer to re-arc*.

Batches are of 32 pairs in the order of the data, as there, whatever batches raylab predicts in: its
own hold grids of similar length, which would weigh the large ones more.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from raylab.arc.data.tasks import PAD
from raylab.arc.metrics import compute_dense_grid_objective, grid_counts, ratio_value
from raylab.grid_metrics import OBJECTIVE, PUBLISHED, RATIOS, Count

BATCH_SIZE = 32
OF_BATCHES = ("grid_accuracy", "cell_accuracy", "grid_tol_0p95")
"""Ratios of the sums of a batch."""
OF_GRIDS = ("change_recall", "change_precision", "transformation_f1", "copy_rate")
"""Means over the grids of a batch of each grid's own ratio."""


class PublishedMetrics(Metric):
    """Means over batches, from the counts of every pair, summed over workers."""

    full_state_update = False
    counts: Tensor

    def __init__(
        self, pairs: int, weights: Mapping[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Takes pairs 0 to `pairs` - 1; `weights` are those of the dense grid objective."""
        super().__init__(**kwargs)
        self.weights = dict(weights or {})
        zeros = torch.zeros(pairs, len(Count), dtype=torch.int64)
        self.add_state("counts", default=zeros, dist_reduce_fx="sum")

    def update(self, source: Tensor, target: Tensor, prediction: Tensor, pair: Tensor) -> None:
        """Adds B grids.

        Args:
            source: (B, H', W') integers, `PAD` outside each grid.
            target: (B, H, W), likewise.
            prediction: (B, H, W).
            pair: (B,) int64 position of each grid's pair in the order of the data.
        """
        target = target.clone()
        target[:, 0, 0] = PAD
        none = torch.zeros_like(pair, dtype=torch.bool)
        counts = grid_counts(source, target, prediction, solved=none, shape_correct=none)
        self.counts.index_add_(0, pair, counts)

    def compute(self) -> dict[str, Tensor]:
        """Returns the metrics by their names after `published_`; 0 without a grid of two cells."""
        seen = self.counts[self.counts[:, Count.GRIDS] > 0]
        batch = torch.arange(len(seen), device=seen.device) // BATCH_SIZE
        kept = seen[:, Count.CELLS] > 0
        seen, batch = seen[kept], batch[kept]
        sums = seen.new_zeros(len(self.counts) // BATCH_SIZE + 1, len(Count))
        sums.index_add_(0, batch, seen)
        full = sums[:, Count.GRIDS] > 0
        grids = sums[full, Count.GRIDS]
        values: dict[str, Tensor] = {}
        for name in OF_BATCHES:
            values[name] = _mean(ratio_value(RATIOS[name], _by_count(sums[full])))
        for name in OF_GRIDS:
            own = ratio_value(RATIOS[name], _by_count(seen))
            total = own.new_zeros(len(sums)).index_add_(0, batch, own)
            values[name] = _mean(total[full] / grids)
        parts = values["cell_accuracy"], values["grid_tol_0p95"], values["grid_accuracy"]
        values[OBJECTIVE] = compute_dense_grid_objective(*parts, **self.weights)
        return {f"{PUBLISHED}{name}": value for name, value in values.items()}


def _by_count(counts: Tensor) -> dict[Count, Tensor]:
    return {count: counts[:, count] for count in Count}


def _mean(values: Tensor) -> Tensor:
    return values.mean() if len(values) else values.new_zeros(())
