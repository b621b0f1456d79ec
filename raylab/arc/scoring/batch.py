"""The scoring of a batch, shared by validation in training and by evaluation."""

from torch import Tensor

from raylab.arc.data.batching import Batch
from raylab.arc.loss import MeanLoss
from raylab.arc.metrics import GridMetrics
from raylab.arc.models.base import GridModel


def count_batch(
    model: GridModel,
    batch: Batch,
    task: Tensor,
    metrics: GridMetrics,
    losses: MeanLoss | None = None,
) -> None:
    """Predicts a batch and adds its counts to `metrics`.

    A model that writes cell by cell predicts them teacher-forced, as in the published protocol, and
    any other in the size that it has predicted. Free-running answers decide which grids are solved.

    Args:
        model: a model in evaluation mode, on the device of the batch.
        batch: B queries.
        task: (B,) int64 position of each query's task in `metrics`.
        metrics: the metrics to add to, on the device of the batch.
        losses: the loss to add to as well, on the device of the batch.
    """
    prediction = model.predict(batch)
    target = batch.target
    if losses is not None:
        logits = prediction.logits or model(batch)
        losses.update(logits, target.cells, target.sizes)
    metrics.update(
        batch.source.as_images(batch.source.cells),
        target.as_images(target.cells),
        target.as_images(prediction.cells),
        task=task,
        solved=prediction.solved,
        shape_correct=prediction.right_size,
    )
