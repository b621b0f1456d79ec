"""Baselines, which learn nothing, measured like the models that they are compared with.

Teacher-forced, a baseline knows what a model knows at a cell: the source, the size of the target,
and the true cells before it.

- *Copy the source* answers with the source cell at the same place, and with nothing outside the
  source.
- *Previous cell* answers with the true cell before it in row-major order, and first with the first
  cell of the source.
- *Copy, else previous* copies inside the source and repeats the previous true cell outside it.

Free-running, a baseline writes in the size that the size rule reads off `DEMONSTRATIONS`
demonstrations, or else in the source's. *Previous cell* then gives a grid of one colour.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from raylab.arc.data.batching import Batch, BatchPlan, Draw, Grids, build_batch, demonstration_table
from raylab.arc.data.tasks import PAD, Grid, Indices, PairStore, Task, store_pairs
from raylab.arc.grid_metrics import BASELINES, COPY_ELSE_PREVIOUS, COPY_SOURCE, PREVIOUS_CELL, Count
from raylab.arc.metrics import as_floats, grid_counts, sum_by_task, task_metrics
from raylab.arc.models.base import canvas, demonstrated_sizes, exact_matches, inside, overlay

BATCH_SIZE = 256
DEMONSTRATIONS = 2
"""Demonstrations of a query whose sizes are read, as many as most models read by default."""


def count_baselines(store: PairStore, pairs: Indices) -> Mapping[str, Tensor]:
    """Returns the counts of every baseline on N `pairs` of the store, at least one.

    They are (N, counts) int64 by baseline, in the order of `Count`.
    """
    size = len(store.task_of), len(Count)
    counts = {name: torch.zeros(size, dtype=torch.int64) for name in BASELINES}
    plan = BatchPlan(store, pairs, batch_size=BATCH_SIZE, demonstrations=DEMONSTRATIONS)
    for batch in plan.batches():
        source, target = (side.as_images(side.cells) for side in (batch.source, batch.target))
        by_rule = demonstrated_sizes(batch.without_outputs)[:, 0] > 0
        answers = free_answers(batch.without_outputs)
        for name, prediction in forced_answers(batch).items():
            counts[name][batch.pairs] = grid_counts(
                source,
                target,
                prediction,
                solved=exact_matches(answers[name], batch.target),
                shape_correct=(answers[name].sizes == batch.target.sizes).all(dim=1),
                shape_by_rule=by_rule,
            )
    # Batches come by length, and the counts in the order of `pairs`.
    return {name: own[torch.tensor(pairs)] for name, own in counts.items()}


def baseline_metrics(
    store: PairStore, pairs: Indices, weights: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Returns every metric by baseline, each in [0, 1], over `pairs` of the store, at least one.

    The dense grid objective has these keyword `weights`.
    """
    tasks, size = store.task_of[pairs], len(store.task_ids)
    return {
        name: as_floats(task_metrics(sum_by_task(counts, tasks, size), weights))
        for name, counts in count_baselines(store, pairs).items()
    }


def forced_answers(batch: Batch) -> dict[str, Tensor]:
    """Returns the teacher-forced answers of every baseline to a batch, (B, H, W) by baseline.

    `PAD` stands for no answer, and fills cells outside a target.
    """
    source, target = batch.source, batch.target
    previous = target.as_images(
        torch.cat((source.cells[:, :1], F.pad(target.cells, (0, -1))), dim=1)
    )
    copied = target.as_images(overlay(source, target))
    return {
        COPY_SOURCE: copied,
        PREVIOUS_CELL: previous,
        COPY_ELSE_PREVIOUS: torch.where(copied == PAD, previous, copied),
    }


def free_answers(batch: Batch) -> dict[str, Grids]:
    """Returns the free-running answers of every baseline to a batch; `PAD` stands for no answer."""
    source, sizes = batch.source, demonstrated_sizes(batch)
    blank = canvas(torch.where(sizes > 0, sizes, source.sizes))
    within, copied = inside(blank), overlay(source, blank)
    # The place of the last copied cell, at or before each cell.
    last = torch.where(copied != PAD, torch.arange(copied.shape[1]), 0).cummax(dim=1).values
    answers = {
        COPY_SOURCE: copied,
        PREVIOUS_CELL: source.cells[:, :1].expand_as(copied),
        COPY_ELSE_PREVIOUS: copied.gather(1, last),
    }
    return {name: blank._replace(cells=own.where(within, PAD)) for name, own in answers.items()}


def baseline_attempts(task: Task) -> dict[str, list[tuple[Grid, Grid]]]:
    """Returns the two free-running attempts of every baseline at each question of a task.

    The first is its own answer, the second that of another baseline.
    """
    store = store_pairs([task.without_outputs])
    questions = store.pairs[len(task.demonstrations) :]
    shown = demonstration_table(store, questions, DEMONSTRATIONS, None)
    grids = free_answers(build_batch(store, Draw(questions, shown)))
    answers = {name: [*own.arrays()] for name, own in grids.items()}
    second = dict.fromkeys(BASELINES, PREVIOUS_CELL) | {PREVIOUS_CELL: COPY_ELSE_PREVIOUS}
    return {name: [*zip(answers[name], answers[second[name]], strict=True)] for name in BASELINES}
