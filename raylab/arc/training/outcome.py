"""The end of a training: the test of its best checkpoint, its page and its main figures."""

from typing import Any

import torch

from raylab.arc.baselines import count_baselines
from raylab.arc.checkpoints import read_checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import ScoringConfig
from raylab.arc.data.split import Sides
from raylab.arc.device import use_share
from raylab.arc.grid_metrics import LOSS
from raylab.arc.loss import MeanLoss
from raylab.arc.metrics import as_floats, group_metrics, sum_by_task, task_intervals, task_metrics
from raylab.arc.models.custom import import_model_classes
from raylab.arc.pages.models import summary_table, training_page
from raylab.arc.records import HeldOut, TaskFigures, TrainingMetrics
from raylab.arc.scoring.evaluation import count_pairs
from raylab.core.config.base import ClusterConfig
from raylab.core.log import log_line
from raylab.core.page.page import PAGE, write_page
from raylab.core.page.table import print_tables
from raylab.core.runs.run import Run
from raylab.core.workers import Workers


def with_test(
    config: TrainConfig, run: Run, metrics: TrainingMetrics, sides: Any, workers: Workers
) -> TrainingMetrics:
    """Returns a training's metrics with those on the test side, measured and written once.

    The checkpoint that the training started from, if any, is tested on the same pairs. `sides` may
    be what `workers.put` returned for them.
    """
    if metrics.test is not None:
        return metrics
    checkpoints = {"test": str(run / metrics.best.checkpoint)}
    if config.init_from is not None:
        checkpoints["before"] = config.init_from
    for checkpoint in checkpoints.values():
        log_line(f"testing {checkpoint}", training=run.name, checkpoint=checkpoint)
    calls = {key: (config, sides, uri, workers.share) for key, uri in checkpoints.items()}
    tested = metrics.model_copy(update=dict(workers.run(measure_test, calls)))
    run.write_record(tested)
    return tested


def measure_test(config: TrainConfig, sides: Sides, uri: str, share: ClusterConfig) -> HeldOut:
    """Returns the figures of a checkpoint on the test side, computed exactly as in validation.

    A GPU uses the precision that training would choose there, a CPU float32.
    """
    checkpoint = read_checkpoint(uri)
    device = use_share(share)
    import_model_classes(ScoringConfig().trusting([config.model]).model_classes)
    store, weights = sides.posed, config.training.objective.model_dump()
    ids, tasks = store.task_ids, store.task_of[sides.test]
    losses = MeanLoss(config.training.shape_loss_weight).to(device)
    batch_size = config.training.batch_size
    pairs = count_pairs(checkpoint, store, sides.test, batch_size, device, losses)
    counts = sum_by_task(pairs, tasks, len(ids))
    baselines = {
        baseline: sum_by_task(own, tasks, len(ids))
        for baseline, own in count_baselines(store, sides.test).items()
    }
    groups = sides.groups, torch.tensor(sides.group_of_task), weights
    by_group = group_metrics(counts, *groups)
    by_task = group_metrics(counts, ids, torch.arange(len(ids)), weights)
    baselines_by_group = {name: group_metrics(own, *groups) for name, own in baselines.items()}
    kept = TaskFigures.model_fields.keys() - {"pairs"}
    return HeldOut(
        by=config.data.split_by,
        side="test",
        chosen_on=config.data.select_on_test,
        tasks=len(sides.tasks_of(sides.test)),
        pairs=len(sides.test),
        metrics=as_floats({**task_metrics(counts, weights), LOSS: losses.compute()}),
        intervals=task_intervals(counts, weights),
        groups=by_group,
        group_baselines={
            group: {baseline: own[group].metrics for baseline, own in baselines_by_group.items()}
            for group in by_group
        },
        baselines={n: as_floats(task_metrics(own, weights)) for n, own in baselines.items()},
        by_task={
            task: TaskFigures(pairs=own.grids, **{name: own.metrics[name] for name in kept})
            for task, own in by_task.items()
        },
        trained_pairs=sum(
            pair in checkpoint.seen.trained_on.pairs for pair in sides.contents[sides.test].tolist()
        ),
    )


def report_training(config: TrainConfig, run: Run, metrics: TrainingMetrics) -> None:
    """Writes the page of a tested training, finishes its run, and prints its figures."""
    best, models = metrics.best, {config.model.label: metrics}
    record = run.record.finish()
    write_page(run, training_page(run.uri, record, config, models))
    run.write_record(record)
    print_tables(
        summary_table(models),
        models={config.model.label: best.model_dump(mode="json")},
        reported=metrics.result.model_dump(mode="json"),
        before=None if metrics.before is None else metrics.before.model_dump(mode="json"),
    )
    checkpoint = str(run / best.checkpoint)
    log_line(
        f"run {run}\nbest checkpoint {checkpoint}\nreport {run / PAGE}",
        uri=run.uri,
        checkpoint=checkpoint,
    )
