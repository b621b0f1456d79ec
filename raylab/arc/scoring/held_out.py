"""The figures of a trained model on the test side of its split, measured once, after the choice."""

import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.comparators.rules import count_on, group_rule_metrics, rule_metrics
from raylab.arc.data.batching import Batch
from raylab.arc.data.sides import Sides
from raylab.arc.loss import MeanLoss
from raylab.arc.metrics import GridMetrics
from raylab.arc.models.base import GridModel
from raylab.arc.models.custom import import_model_classes
from raylab.arc.records import HeldOut, TaskFigures
from raylab.arc.scoring.batch import count_batch
from raylab.arc.scoring.evaluation import predict_pairs
from raylab.config.arc import ScoringConfig
from raylab.config.jobs import TrainConfig
from raylab.grid_metrics import LOSS


def measure_test(
    config: TrainConfig, sides: Sides, checkpoint: Checkpoint, device: torch.device
) -> HeldOut:
    """Returns loss and metrics of a checkpoint on the test side, exactly as validation computes it.

    A GPU uses the precision that training would choose there, a CPU float32.

    Args:
        config: configuration of the training.
        sides: its pairs.
        checkpoint: its best checkpoint.
        device: the device to compute on.

    Raises:
        CheckpointError: the checkpoint does not hold the weights of the model it names.
    """
    import_model_classes(ScoringConfig().trusting([config.model]).model_classes)
    store, weights = sides.store, config.training.objective.model_dump()
    group_of_task = torch.tensor(sides.group_of_task)
    metrics = GridMetrics(sides.groups, weights, group_of_task=group_of_task).to(device)
    losses = MeanLoss(config.training.shape_loss_weight).to(device)

    def count(model: GridModel, batch: Batch) -> None:
        count_batch(model, batch, batch.tasks, metrics, losses)

    predict_pairs(checkpoint, store, sides.test, config.training.batch_size, device, count)
    values = {**metrics.compute(), LOSS: losses.compute()}
    rules, tasks = count_on(sides, "test"), store.task_of[sides.test]
    by_task = GridMetrics(store.task_ids, weights)
    by_task.counts = metrics.counts.cpu()
    return HeldOut(
        by=config.data.split_by,
        side="test",
        chosen_on=config.data.select_on_test,
        tasks=len(sides.tasks_of(sides.test)),
        pairs=len(sides.test),
        metrics={name: float(value) for name, value in values.items()},
        groups=metrics.by_group(),
        group_rules=group_rule_metrics(rules, tasks, weights, sides.groups, sides.group_of_task),
        rules=rule_metrics(rules, tasks, weights),
        by_task={
            task: TaskFigures(
                pairs=of.grids,
                solve_rate=of.metrics["solve_rate"],
                cell_accuracy=of.metrics["cell_accuracy"],
                grid_accuracy=of.metrics["grid_accuracy"],
            )
            for task, of in by_task.by_group().items()
        },
        trained_pairs=sum(
            pair in checkpoint.seen.trained_on.pairs for pair in sides.contents[sides.test].tolist()
        ),
    )
