"""The figures of a trained model on the test side of its split."""

import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import ScoringConfig
from raylab.arc.data.sides import Sides
from raylab.arc.grid_metrics import LOSS
from raylab.arc.loss import MeanLoss
from raylab.arc.metrics import as_floats, group_metrics, sum_by_task, task_metrics
from raylab.arc.models.custom import import_model_classes
from raylab.arc.records import GroupMetrics, HeldOut, TaskFigures
from raylab.arc.rules import count_rules
from raylab.arc.scoring.evaluation import count_pairs


def measure_test(
    config: TrainConfig, sides: Sides, checkpoint: Checkpoint, device: torch.device
) -> HeldOut:
    """Returns the figures of a checkpoint on the test side, computed exactly as in validation.

    A GPU uses the precision that training would choose there, a CPU float32.
    """
    import_model_classes(ScoringConfig().trusting([config.model]).model_classes)
    store, weights = sides.store, config.training.objective.model_dump()
    ids, tasks = store.task_ids, store.task_of[sides.test]
    losses = MeanLoss(config.training.shape_loss_weight).to(device)
    batch_size = config.training.batch_size
    pairs = count_pairs(checkpoint, store, sides.test, batch_size, device, losses)
    counts = sum_by_task(pairs, tasks, len(ids))
    rules = {
        rule: sum_by_task(own, tasks, len(ids))
        for rule, own in count_rules(store, sides.test).items()
    }
    groups = sides.groups, torch.tensor(sides.group_of_task), weights
    by_group = group_metrics(counts, *groups)
    by_task = group_metrics(counts, ids, torch.arange(len(ids)), weights)
    rules_by_group = {rule: group_metrics(own, *groups) for rule, own in rules.items()}
    return HeldOut(
        by=config.data.split_by,
        side="test",
        chosen_on=config.data.select_on_test,
        tasks=len(sides.tasks_of(sides.test)),
        pairs=len(sides.test),
        metrics=as_floats({**task_metrics(counts, weights), LOSS: losses.compute()}),
        groups=by_group,
        group_rules={
            group: {rule: own[group].metrics for rule, own in rules_by_group.items()}
            for group in by_group
        },
        rules={rule: as_floats(task_metrics(own, weights)) for rule, own in rules.items()},
        by_task={task: _select_figures(own) for task, own in by_task.items()},
        trained_pairs=sum(
            pair in checkpoint.seen.trained_on.pairs for pair in sides.contents[sides.test].tolist()
        ),
    )


def _select_figures(task: GroupMetrics) -> TaskFigures:
    names = TaskFigures.model_fields.keys() - {"pairs"}
    return TaskFigures(pairs=task.grids, **{name: task.metrics[name] for name in names})
