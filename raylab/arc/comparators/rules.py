"""Rules that learn nothing, measured like the models that they stand beside.

Teacher-forced, a rule knows what a model knows at a cell: the source, the size of the target, and
the true cells before.

- *Copy the source* answers with the source's cell in the same place, and with none outside it.
- *Previous cell* answers with the true cell before in row-major order; first, with the source's
  first cell.
- *Copy, else previous* copies inside the source and repeats the true cell before outside it.

Free-running, a rule writes a grid of the source's size. *Previous cell* then repeats its own cells,
a grid of one colour, and *copy, else previous* never leaves the source: it is *copy the source*.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raylab.arc.data.batching import Batch, BatchPlan
from raylab.arc.data.store import Indices, PairStore
from raylab.arc.data.tasks import PAD, Grid
from raylab.arc.metrics import as_floats, grid_counts, sum_by_task, task_metrics
from raylab.arc.models.base import exact_matches
from raylab.grid_metrics import COPY_ELSE_PREVIOUS, COPY_SOURCE, PREVIOUS_CELL, RULES, Count

BATCH_SIZE = 256

RuleCounts = Mapping[str, Tensor]
"""(N, counts) int64 by rule: the counts of N pairs, in the order of `Count`."""


def count_rules(store: PairStore, pairs: Indices) -> RuleCounts:
    """Returns the counts of every rule on `pairs` of the store, at least one."""
    counts = {
        rule: torch.zeros(len(store.task_of), len(Count), dtype=torch.int64) for rule in RULES
    }
    plan = BatchPlan(store, pairs, batch_size=BATCH_SIZE, demonstrations=0)
    for batch in plan.batches():
        source, target = (side.as_images(side.cells) for side in (batch.source, batch.target))
        shaped = (batch.source.sizes == batch.target.sizes).all(dim=1)
        solved = _solved(batch)
        for rule, prediction in forced_answers(batch).items():
            counts[rule][batch.pairs] = grid_counts(
                source, target, prediction, solved=solved[rule], shape_correct=shaped
            )
    return {rule: own[torch.tensor(pairs)] for rule, own in counts.items()}


def rule_metrics(
    store: PairStore, pairs: Indices, weights: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Returns every metric by rule, each in [0, 1], over `pairs` of the store, at least one.

    The dense grid objective has these keyword `weights`.
    """
    tasks, size = store.task_of[pairs], len(store.task_ids)
    return {
        rule: as_floats(task_metrics(sum_by_task(counts, tasks, size), weights))
        for rule, counts in count_rules(store, pairs).items()
    }


def forced_answers(batch: Batch) -> dict[str, Tensor]:
    """Returns the teacher-forced answers of every rule to a batch, (B, H, W) by rule.

    `PAD` stands for no answer, and fills what lies outside a target.
    """
    source, target = batch.source, batch.target
    previous = target.as_images(
        torch.cat((source.cells[:, :1], F.pad(target.cells, (0, -1))), dim=1)
    )
    copied = torch.full_like(previous, PAD)
    height, width = previous.shape[1:]
    common = source.as_images(source.cells)[:, :height, :width]
    copied[:, : common.shape[1], : common.shape[2]] = common
    copied = copied.masked_fill(target.as_images(target.cells) == PAD, PAD)
    return {
        COPY_SOURCE: copied,
        PREVIOUS_CELL: previous,
        COPY_ELSE_PREVIOUS: torch.where(copied == PAD, previous, copied),
    }


def rule_attempts(source: Grid) -> dict[str, tuple[Grid, Grid]]:
    """Returns the two free-running attempts of every rule at an input.

    The first is its own answer, the second that of the other rule: together they are the two.
    """
    flat = np.full_like(source, source[0, 0])
    return {
        COPY_SOURCE: (source, flat),
        PREVIOUS_CELL: (flat, source),
        COPY_ELSE_PREVIOUS: (source, flat),
    }


def _solved(batch: Batch) -> dict[str, Tensor]:
    """Returns (B,) bool by rule, True where its free-running answer is the exact target."""
    source = batch.source
    inside = source.cells != PAD
    repeated = source._replace(cells=torch.where(inside, source.cells[:, :1], PAD))
    copied = exact_matches(source, batch.target)
    return {
        COPY_SOURCE: copied,
        PREVIOUS_CELL: exact_matches(repeated, batch.target),
        COPY_ELSE_PREVIOUS: copied,
    }
