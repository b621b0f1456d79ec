"""Scores of a checkpoint on tasks: every metric of every unit, with its standard error."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raylab.arc.checkpoints import Checkpoint, restored
from raylab.arc.comparators.rules import count_rules
from raylab.arc.data.batching import (
    Batch,
    BatchDataset,
    BatchPlan,
    Draw,
    Grids,
    demonstration_table,
)
from raylab.arc.data.content import contents_of
from raylab.arc.data.store import Indices, PairStore, store_pairs
from raylab.arc.data.tasks import Task
from raylab.arc.device import hardware_precision
from raylab.arc.metrics import GridMetrics, metric_values, standard_errors
from raylab.arc.models.base import GridModel
from raylab.arc.models.custom import import_model_classes
from raylab.arc.records import Example, Examples, GridRows, PredictedGrid
from raylab.arc.scoring.batch import count_batch
from raylab.arc.scoring.units import part_seen, unit_of_tasks
from raylab.config.arc import ObjectiveConfig, Precision, ScoringConfig
from raylab.runs.eval_logs import is_estimated
from raylab.workers import advance

OBJECTIVE_WEIGHTS = ObjectiveConfig().model_dump()
"""The published weights of the objective, the same for every model so that scores compare."""
HALF_TYPES = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}


@dataclass(frozen=True)
class UnitScore:
    """The score of a model on one unit: a task or a group of tasks."""

    grids: int
    """Scored pairs, at least 1."""
    metrics: dict[str, float]
    """Every metric of `GridMetrics`, each in [0, 1]."""
    standard_errors: dict[str, float]
    """By metric, from `raylab.arc.metrics.standard_errors`; none where `is_estimated` denies it."""


@dataclass(frozen=True)
class AnsweredTask:
    """The answer of a model to a task."""

    task: str
    """Id of the task."""
    input: GridRows
    target: GridRows
    answer: PredictedGrid


def score_tasks(
    checkpoint: Checkpoint,
    tasks: Sequence[Task],
    groups: Mapping[str, str],
    scoring: ScoringConfig,
    device: torch.device,
    seen: frozenset[int] = frozenset(),
) -> dict[str, UnitScore]:
    """Scores every pair of `tasks` exactly as validation during training does.

    Every pair, demonstration or question, is a query; its context is the first other
    demonstrations of its task. Pairs in `seen` are no queries, and where a task has some, they
    alone are its demonstrations. A GPU uses the precision that training would choose there, a CPU
    float32. The dense grid objective has its default weights.

    Args:
        checkpoint: a checkpoint of any architecture.
        tasks: tasks with distinct ids.
        groups: the group of each of them, by id.
        scoring: unit and batch size.
        device: the device to compute on.
        seen: fingerprints of pairs that are not scored.

    Returns:
        The score of every unit, by its name.

    Raises:
        DataError: there is no pair to score.
        CheckpointError: the checkpoint does not hold the weights of the model it names.
    """
    import_model_classes(scoring.model_classes)
    store, pairs = _queries(tasks, seen)
    counts = _count_pairs(checkpoint, store, pairs, scoring.batch_size, device)
    return _unit_scores(counts, store, pairs, unit_of_tasks(groups, scoring))


@torch.inference_mode()
def predict_pairs(
    checkpoint: Checkpoint,
    store: PairStore,
    pairs: Indices,
    batch_size: int,
    device: torch.device,
    count: Callable[[GridModel, Batch], None],
) -> None:
    """Calls `count` with the model in evaluation mode and each batch of `pairs`, on the device.

    Tells `raylab.workers.advance` which share of the cells is done.

    Raises:
        CheckpointError: the checkpoint does not hold the weights of the model it names.
    """
    model = model_on(checkpoint, device)
    plan = BatchPlan(
        store,
        pairs,
        batch_size=batch_size,
        demonstrations=checkpoint.model.context_pairs,
    )
    dataset, cells, done = BatchDataset(store), store.lengths.sum(axis=1), 0
    with autocast_on(device):
        for draw in plan:
            count(model, dataset[draw].to(device))
            done += cells[draw.pairs].sum()
            advance(float(done / cells[pairs].sum()))


def score_rules(
    tasks: Sequence[Task],
    groups: Mapping[str, str],
    scoring: ScoringConfig,
    seen: frozenset[int] = frozenset(),
) -> dict[str, float]:
    """Returns the mean accuracy over the units of each rule that learns nothing, by rule.

    The arguments are those of `score_tasks`, and the pairs and the metric are the same.

    Raises:
        DataError: there is no pair to score.
    """
    store, pairs = _queries(tasks, seen)
    units = unit_of_tasks(groups, scoring)
    return {
        rule: statistics.fmean(
            score.metrics[scoring.metric]
            for score in _unit_scores(counts, store, pairs, units).values()
        )
        for rule, counts in count_rules(store, pairs).items()
    }


def _queries(tasks: Sequence[Task], seen: frozenset[int]) -> tuple[PairStore, Indices]:
    """Returns the pairs of tasks, and the positions of those that were not seen."""
    tasks = part_seen(tasks, seen)
    store = store_pairs(tasks)
    if not seen:
        return store, np.arange(len(store.task_of))
    contents = [one for of_task in contents_of(tasks).values() for one in of_task]
    return store, np.flatnonzero([one not in seen for one in contents])


def answer_tasks(
    checkpoint: Checkpoint, tasks: Sequence[Task], device: torch.device
) -> list[AnsweredTask]:
    """Returns the free-running answers of a model to the first test pair of each of `tasks`.

    For a task without a test pair it is the first pair, which is then left out of the context.

    Raises:
        DataError: a task has no pair.
        CheckpointError: the checkpoint does not hold the weights of the model it names.
    """
    model = model_on(checkpoint, device)
    answered: list[AnsweredTask] = []
    for task in tasks:
        store = store_pairs([task])
        pair = np.array([len(task.demonstrations) if task.questions else 0])
        context = demonstration_table(store, pair, checkpoint.model.context_pairs, None)
        batch = BatchDataset(store)[Draw(pair, context, None)].to(device)
        with torch.inference_mode(), autocast_on(device):
            answer = _image(model.answers(batch.posed).grids)
        source, target = _image(batch.source), _image(batch.target)
        answered.append(
            AnsweredTask(
                task=task.id,
                input=_rows(source),
                target=_rows(target),
                answer=PredictedGrid(grid=_rows(answer), solved=torch.equal(answer, target)),
            )
        )
    return answered


def picture_examples(answers: Mapping[str, Sequence[AnsweredTask]]) -> Examples:
    """Returns the answers of every model, by its name, task by task."""
    examples = [
        Example(
            task=same[0].task,
            input=same[0].input,
            target=same[0].target,
            predictions={model: item.answer for model, item in zip(answers, same, strict=True)},
        )
        for same in zip(*answers.values(), strict=True)
    ]
    return Examples(examples=tuple(examples))


def choose_pictures(tasks: Sequence[Task], count: int) -> list[str]:
    """Returns at most `count` task ids, evenly over the tasks by size of output."""
    by_size = sorted(tasks, key=lambda task: (task.pairs[-1].output.size, task.id))
    count = min(count, len(by_size))
    steps = np.linspace(0, len(by_size) - 1, count + 2)[1:-1].round().astype(int)
    return [by_size[step].id for step in dict.fromkeys(steps.tolist())]


def model_on(checkpoint: Checkpoint, device: torch.device) -> GridModel:
    """Returns the model of a checkpoint in evaluation mode, on a device.

    Raises:
        CheckpointError: the checkpoint does not hold the weights of the model it names.
    """
    model = restored(checkpoint)
    return model.eval().to(device)


def autocast_on(device: torch.device) -> AbstractContextManager[object]:
    """Returns the context of scoring on a device: half precision on a GPU that has it."""
    if device.type != "cuda":
        return nullcontext()
    half = HALF_TYPES.get(hardware_precision(Precision.AUTO))
    return torch.autocast(device.type, half, enabled=half is not None)


def _count_pairs(
    checkpoint: Checkpoint,
    store: PairStore,
    pairs: Indices,
    batch_size: int,
    device: torch.device,
) -> Tensor:
    """Returns the counts of each of `pairs` of the store, (pairs, counts) int64 on the CPU."""
    metrics = GridMetrics([str(pair) for pair in range(len(store.task_of))]).to(device)

    def count(model: GridModel, batch: Batch) -> None:
        count_batch(model, batch, batch.pairs, metrics)

    predict_pairs(checkpoint, store, pairs, batch_size, device, count)
    return metrics.counts.cpu()[torch.tensor(pairs)]


def _unit_scores(
    counts: Tensor, store: PairStore, pairs: Indices, unit_of: Mapping[str, str]
) -> dict[str, UnitScore]:
    """Returns the score of every unit from the (pairs, counts) counts of pairs of a store."""
    unit_of_pair = np.array([unit_of[id_] for id_ in store.task_ids])[store.task_of[pairs]]
    return {
        str(unit): _unit_score(counts[torch.from_numpy(unit_of_pair == unit)])
        for unit in np.unique(unit_of_pair)
    }


def _unit_score(counts: Tensor) -> UnitScore:
    of_all = metric_values(counts.sum(0), OBJECTIVE_WEIGHTS)
    values = {name: float(value) for name, value in of_all.items()}
    errors = standard_errors(counts, OBJECTIVE_WEIGHTS)
    return UnitScore(
        grids=len(counts),
        metrics=values,
        standard_errors={
            name: error for name, error in errors.items() if is_estimated(values[name], len(counts))
        },
    )


def _image(grids: Grids) -> Tensor:
    """Returns the only grid of a batch, (H, W) int64 on the CPU."""
    return grids.as_images(grids.cells)[0].cpu()


def _rows(image: Tensor) -> GridRows:
    return tuple(tuple(row) for row in image.tolist())
