"""The scoring of a model: of a batch, as in validation, and of a checkpoint on tasks.

Models answer `Batch.without_outputs`, which holds no target.
"""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raylab.arc.baselines import count_baselines
from raylab.arc.checkpoints import Checkpoint, restore_model
from raylab.arc.config.sections import ObjectiveConfig, Precision, ScoringConfig
from raylab.arc.data.batching import Batch, BatchPlan
from raylab.arc.data.content import fingerprints
from raylab.arc.data.tasks import PAD, Indices, PairStore, Task, store_pairs
from raylab.arc.device import hardware_precision
from raylab.arc.grid_metrics import Count
from raylab.arc.loss import MeanLoss
from raylab.arc.metrics import as_floats, grid_counts, metric_values, standard_errors
from raylab.arc.models.base import GridModel, exact_matches, overlay
from raylab.arc.models.custom import import_model_classes
from raylab.arc.scoring.plan import part_seen
from raylab.core.runs.eval_logs import is_estimated
from raylab.core.workers import advance

OBJECTIVE_WEIGHTS = ObjectiveConfig().model_dump()
"""The published weights of the objective, the same for every model so that scores compare."""
HALF_TYPES = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}


def count_batch(model: GridModel, batch: Batch, losses: MeanLoss | None = None) -> Tensor:
    """Predicts B queries and returns their counts, (B, counts) int64 in the order of `Count`.

    A model that writes cell by cell is teacher-forced, as in the published protocol; any other
    predicts the cells of the size that it answers in. Free-running answers decide which grids are
    solved. Their loss is added to `losses`.
    """
    target, logits = batch.target, None
    if model.teacher_forced:
        logits = model(batch)
        cells = logits.cells.argmax(dim=-1)
        sizes = model.choose_sizes(batch.without_outputs, logits.sizes)
        by_rule, right_size = sizes.by_rule, (sizes.sides == target.sizes).all(dim=1)
        right_cells = ((cells == target.cells) | (target.cells == PAD)).all(dim=1)
        solved = torch.zeros_like(right_size)
        # Only these are decoded. No other grid can be solved, because greedy decoding sees the same
        # true prefix up to its first wrong cell.
        candidates = (right_size & right_cells).nonzero()[:, 0]
        if len(candidates):
            queries = batch.select(candidates)
            answers = model.answers(queries.without_outputs)
            solved[candidates] = exact_matches(answers.grids, queries.target)
    else:
        answers = model.answers(batch.without_outputs)
        cells, by_rule = overlay(answers.grids, target), answers.by_rule
        right_size = (answers.grids.sizes == target.sizes).all(dim=1)
        solved = exact_matches(answers.grids, target)
    if losses is not None:
        losses.update(logits or model(batch), target.cells, target.sizes)
    return grid_counts(
        batch.source.as_images(batch.source.cells),
        target.as_images(target.cells),
        target.as_images(cells),
        solved=solved,
        shape_correct=right_size,
        shape_by_rule=by_rule,
        free_running=not model.teacher_forced,
    )


@dataclass(frozen=True)
class UnitScore:
    """The score of a model on one unit: a task or a group of tasks."""

    grids: int
    """Scored pairs, at least 1."""
    metrics: dict[str, float]
    """Every metric of `GridMetrics`, each in [0, 1]."""
    standard_errors: dict[str, float]
    """By metric, from `raylab.arc.metrics.standard_errors`; only those that `is_estimated`."""


def score_tasks(
    checkpoint: Checkpoint,
    tasks: Sequence[Task],
    unit_of: Mapping[str, str],
    scoring: ScoringConfig,
    device: torch.device,
    seen: frozenset[int] = frozenset(),
) -> dict[str, UnitScore]:
    """Scores every pair of `tasks` exactly as validation during training does; returns it by unit.

    Every demonstration and question is a query; its context is the first other demonstrations of
    its task. Pairs in `seen`, by fingerprint, are not queries; a task that has some shows only
    them. A GPU uses the precision that training would choose there, a CPU float32. The dense grid
    objective has its default weights. `unit_of` names the unit of each task, by id.
    """
    import_model_classes(scoring.model_classes)
    store, pairs = _queries(tasks, seen)
    counts = count_pairs(checkpoint, store, pairs, scoring.batch_size, device)
    return _unit_scores(counts, store, pairs, unit_of)


@torch.inference_mode()
def count_pairs(
    checkpoint: Checkpoint,
    store: PairStore,
    pairs: Indices,
    batch_size: int,
    device: torch.device,
    losses: MeanLoss | None = None,
) -> Tensor:
    """Returns the counts of a model on `pairs` of the store, (pairs, counts) int64 on the CPU.

    Adds to `losses`, which are on the device, and reports the share of the cells that is done to
    `raylab.core.workers.advance`.
    """
    model, shown = model_on(checkpoint, device), checkpoint.model.context_pairs
    counts = torch.zeros(len(store.task_of), len(Count), dtype=torch.int64, device=device)
    plan = BatchPlan(store, pairs, batch_size=batch_size, demonstrations=shown)
    cells, done = store.lengths.sum(axis=1), 0
    with autocast_on(device):
        for batch in plan.batches():
            moved = batch.to(device)
            counts[moved.pairs] = count_batch(model, moved, losses)
            done += cells[batch.pairs.numpy()].sum()
            advance(float(done / cells[pairs].sum()))
    return counts.cpu()[torch.tensor(pairs)]


def score_baselines(
    tasks: Sequence[Task],
    unit_of: Mapping[str, str],
    metric: str,
    seen: frozenset[int] = frozenset(),
) -> dict[str, float]:
    """Returns the mean of a metric over the units, by baseline.

    The arguments and the scored pairs are those of `score_tasks`.
    """
    store, pairs = _queries(tasks, seen)
    return {
        baseline: statistics.fmean(
            score.metrics[metric] for score in _unit_scores(counts, store, pairs, unit_of).values()
        )
        for baseline, counts in count_baselines(store, pairs).items()
    }


def _queries(tasks: Sequence[Task], seen: frozenset[int]) -> tuple[PairStore, Indices]:
    """Returns the pairs of tasks, and the positions of the unseen ones."""
    store = store_pairs(part_seen(tasks, seen))
    if not seen:
        return store, store.pairs
    return store, np.flatnonzero(~np.isin(fingerprints(store), [*seen]))


def model_on(checkpoint: Checkpoint, device: torch.device) -> GridModel:
    """Returns the model of a checkpoint in evaluation mode, on a device."""
    return restore_model(checkpoint).eval().to(device)


def autocast_on(device: torch.device) -> AbstractContextManager[object]:
    """Returns the context of scoring on a device: half precision on a GPU."""
    if device.type != "cuda":
        return nullcontext()
    return torch.autocast(device.type, HALF_TYPES[hardware_precision(Precision.AUTO)])


def _unit_scores(
    counts: Tensor, store: PairStore, pairs: Indices, unit_of: Mapping[str, str]
) -> dict[str, UnitScore]:
    """Returns the score of every unit from the (pairs, counts) counts of pairs of a store."""
    unit_of_pair = np.array([unit_of[id_] for id_ in store.task_ids])[store.task_of[pairs]]
    scores: dict[str, UnitScore] = {}
    for unit in np.unique(unit_of_pair):
        own = counts[torch.from_numpy(unit_of_pair == unit)]
        metrics = as_floats(metric_values(own.sum(0), OBJECTIVE_WEIGHTS))
        errors = standard_errors(own, OBJECTIVE_WEIGHTS)
        kept = {name: e for name, e in errors.items() if is_estimated(metrics[name], len(own))}
        scores[str(unit)] = UnitScore(len(own), metrics, kept)
    return scores
