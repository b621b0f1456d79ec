"""The scoring of a batch, shared by validation in training and by evaluation."""

from torch import Tensor

from raylab.arc.comparators.published_metrics import PublishedMetrics
from raylab.arc.data.batching import Batch
from raylab.arc.data.tasks import PAD
from raylab.arc.decoding import solved_grids
from raylab.arc.loss import MeanLoss
from raylab.arc.metrics import GridMetrics
from raylab.arc.models.base import GridModel


def count_batch(
    model: GridModel,
    batch: Batch,
    task: Tensor,
    metrics: GridMetrics,
    losses: MeanLoss | None = None,
    published: PublishedMetrics | None = None,
) -> None:
    """Predicts a batch and adds its counts to `metrics`.

    Cells are predicted teacher-forced, as in the published protocol, and height and width from what
    is known before the first cell. Free-running greedy decoding decides which grids are solved.

    Args:
        model: a model in evaluation mode, on the device of the batch.
        batch: B queries.
        task: (B,) int64 position of each query's task in `metrics`.
        metrics: the metrics to add to, on the device of the batch.
        losses: the loss to add to as well, on the device of the batch.
        published: metrics by the published definitions to add to as well.
    """
    prediction = model(batch)
    cells = prediction.cells.argmax(dim=-1)
    target = batch.target
    right_size = (prediction.sizes.argmax(dim=-1) + 1 == target.sizes).all(dim=1)
    right_cells = ((cells == target.cells) | (target.cells == PAD)).all(dim=1)
    grids = {
        "source": batch.source.as_images(batch.source.cells),
        "target": target.as_images(target.cells),
        "prediction": target.as_images(cells),
    }
    if losses is not None:
        losses.update(prediction, target.cells, target.sizes)
    if published is not None:
        published.update(**grids, pair=batch.pairs)
    metrics.update(
        **grids,
        task=task,
        solved=solved_grids(model, batch, right_size & right_cells),
        shape_correct=right_size,
    )
