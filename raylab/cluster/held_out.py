"""The test of a training's best checkpoint, as one Ray task after the training."""

import ray
import torch

from raylab.arc.records import HeldOut, TrainingMetrics
from raylab.arc.scoring.held_out import measure_test
from raylab.arc.trained_models import fetch_checkpoint
from raylab.cluster.session import cpus_per_worker, result_of, uses_gpu
from raylab.config.jobs import TrainConfig
from raylab.log import log_line
from raylab.runs.run import Run


def with_test(config: TrainConfig, run: Run, metrics: TrainingMetrics) -> TrainingMetrics:
    """Returns a training's metrics with those on the test side; measures and writes them once.

    The checkpoint that the training started from, if any, is tested on the same pairs.

    Args:
        config: configuration of the training.
        run: its run.
        metrics: its metrics; its best checkpoint is tested.

    Raises:
        RaylabError: a checkpoint or the data cannot be used, or a Ray task was lost.
    """
    if metrics.test is not None:
        return metrics
    gpu = uses_gpu(config.cluster)
    measure = ray.remote(_measure).options(
        num_cpus=cpus_per_worker(config.cluster),
        num_gpus=int(gpu),
        max_retries=config.cluster.max_failures,
    )

    def measured(checkpoint: str) -> HeldOut:
        log_line(f"testing {checkpoint}", training=run.name, checkpoint=checkpoint)
        return result_of(measure.remote(config, checkpoint, gpu), f"the test of {checkpoint}")

    tested = metrics.model_copy(
        update={
            "test": measured(str(run / metrics.best.checkpoint)),
            "before": None if config.init_from is None else measured(config.init_from),
        }
    )
    run.write_record(tested)
    return tested


def _measure(config: TrainConfig, checkpoint: str, gpu: bool) -> HeldOut:
    torch.set_num_threads(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    device = torch.device("cuda" if gpu else "cpu")
    return measure_test(config, fetch_checkpoint(checkpoint), device)
