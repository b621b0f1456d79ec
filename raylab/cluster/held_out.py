"""The test of a training's best checkpoint, as one Ray task after the training."""

from functools import partial

import ray
import torch

from raylab.arc.data.sides import Sides
from raylab.arc.records import HeldOut, TrainingMetrics
from raylab.arc.scoring.held_out import measure_test
from raylab.arc.trained_models import fetch_checkpoint
from raylab.cluster.session import result_of
from raylab.cluster.tasks import as_task, own_share
from raylab.config.jobs import TrainConfig
from raylab.runs.run import Run
from raylab.training.held_out import measure_here, with_test


def tested(
    config: TrainConfig, run: Run, metrics: TrainingMetrics, sides: "ray.ObjectRef[Sides]"
) -> TrainingMetrics:
    """Returns a training's metrics with those on the test side.

    They are computed where the training ran: in this process, or by Ray tasks.

    Raises:
        RaylabError: a checkpoint or the data cannot be used, or a Ray task was lost.
    """
    if config.cluster.is_this_process:
        measure = partial(measure_here, config, ray.get(sides))
    else:
        measure = partial(_measured, config, sides)
    return with_test(config, run, metrics, measure)


def _measured(config: TrainConfig, sides: "ray.ObjectRef[Sides]", checkpoint: str) -> HeldOut:
    measure = as_task(_measure, config.cluster)
    return result_of(measure.remote(config, sides, checkpoint), f"the test of {checkpoint}")


def _measure(config: TrainConfig, sides: Sides, checkpoint: str) -> HeldOut:
    device, threads = own_share()
    torch.set_num_threads(threads)
    return measure_test(config, sides, fetch_checkpoint(checkpoint), device)
