"""The test of a training's best checkpoint, as one Ray task after the training."""

import ray
import torch

from raylab.arc.held_out import measure_test
from raylab.arc.records import HeldOut, TrainingMetrics
from raylab.arc.trained_models import fetch_checkpoint
from raylab.cluster.session import cpus_per_worker, result_of, uses_gpu
from raylab.config.jobs import TrainConfig
from raylab.log import log_line
from raylab.runs.run import Run


def with_test(config: TrainConfig, run: Run, metrics: TrainingMetrics) -> TrainingMetrics:
    """Returns a training's metrics with those on the test side; measures and writes them once.

    Args:
        config: configuration of the training.
        run: its run.
        metrics: its metrics; its best checkpoint is tested.

    Raises:
        RaylabError: the checkpoint or the data cannot be used, or the Ray task was lost.
    """
    if metrics.test is not None:
        return metrics
    log_line(f"testing {metrics.best.checkpoint} of {run.name}", training=run.name)
    gpu = uses_gpu(config.cluster)
    measure = ray.remote(_measure).options(
        num_cpus=cpus_per_worker(config.cluster),
        num_gpus=int(gpu),
        max_retries=config.cluster.max_failures,
    )
    task = measure.remote(config, str(run / metrics.best.checkpoint), gpu)
    tested = metrics.model_copy(update={"test": result_of(task, f"the test of {run}")})
    run.write_record(tested)
    return tested


def _measure(config: TrainConfig, checkpoint: str, gpu: bool) -> HeldOut:
    torch.set_num_threads(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    device = torch.device("cuda" if gpu else "cpu")
    return measure_test(config, fetch_checkpoint(checkpoint), device)
