"""The test of a training's best checkpoint, once, after the choice."""

from collections.abc import Callable

from raylab.arc.data.sides import Sides
from raylab.arc.device import device_here
from raylab.arc.records import HeldOut, TrainingMetrics
from raylab.arc.scoring.held_out import measure_test
from raylab.arc.trained_models import fetch_checkpoint
from raylab.config.jobs import TrainConfig
from raylab.log import log_line
from raylab.runs.run import Run


def with_test(
    config: TrainConfig, run: Run, metrics: TrainingMetrics, measure: Callable[[str], HeldOut]
) -> TrainingMetrics:
    """Returns a training's metrics with those on the test side; measures and writes them once.

    The checkpoint that the training started from, if any, is tested on the same pairs.

    Args:
        config: Configuration of the training.
        run: Its run.
        metrics: Its metrics; its best checkpoint is tested.
        measure: Returns the figures of the checkpoint at a URI on the test side.

    Raises:
        RaylabError: A checkpoint or the data cannot be used, or the run cannot be written.
    """
    if metrics.test is not None:
        return metrics

    def measured(checkpoint: str) -> HeldOut:
        log_line(f"testing {checkpoint}", training=run.name, checkpoint=checkpoint)
        return measure(checkpoint)

    tested = metrics.model_copy(
        update={
            "test": measured(str(run / metrics.best.checkpoint)),
            "before": None if config.init_from is None else measured(config.init_from),
        }
    )
    run.write_record(tested)
    return tested


def measure_here(config: TrainConfig, sides: Sides, checkpoint: str) -> HeldOut:
    """Returns the figures of the checkpoint at a URI on the test side, computed in this process.

    Raises:
        CheckpointError: It cannot be used.
        ConfigError: `cluster.use_gpu=true` on a machine without a GPU.
    """
    return measure_test(config, sides, fetch_checkpoint(checkpoint), device_here(config.cluster))
