"""Ray tasks that compute with a worker's share of the cluster."""

from collections.abc import Callable, Generator
from typing import Any

import ray
import torch

from raylab.arc.scoring.plan import ModelOnGeneration
from raylab.cluster.session import cpus_per_worker, result_of, uses_gpu
from raylab.config.base import ClusterConfig

Pending = dict["ray.ObjectRef[Any]", ModelOnGeneration]
"""Tasks that have not ended, with the pair that each works on."""


def share_of_a_task(cluster: ClusterConfig) -> ClusterConfig:
    """Returns the configuration of one worker: its CPUs, 1 by default, and its GPU."""
    alone = {"workers": 1, "cpus_per_worker": cluster.cpus_per_worker or 1}
    return cluster.model_copy(update=alone)


def as_task(function: Callable[..., Any], cluster: ClusterConfig) -> Any:
    """Returns a function as a Ray task with the CPUs, the GPU and the retries of a worker.

    Raises:
        ConfigError: `cluster.use_gpu=true` on a cluster without a GPU.
    """
    return ray.remote(
        num_cpus=cpus_per_worker(cluster),
        num_gpus=int(uses_gpu(cluster)),
        max_retries=cluster.max_failures,
    )(function)


def own_share() -> tuple[torch.device, int]:
    """Returns the device and the CPU threads of the Ray task that calls."""
    given = ray.get_runtime_context().get_assigned_resources()
    return torch.device("cuda" if given.get("GPU") else "cpu"), int(given.get("CPU", 1))


def results(pending: Pending, what: str) -> Generator[tuple[ModelOnGeneration, Any]]:
    """Yields the results of tasks as they end; cancels those that are left when it is closed.

    Args:
        pending: The tasks.
        what: What they do, for the message of an error.

    Raises:
        RaylabError: A task failed, or was lost again and again.
    """
    try:
        while pending:
            (ready,), _ = ray.wait(list(pending), num_returns=1)
            model, generation = pending[ready]
            result = result_of(ready, f"{what} {model} on {generation}")
            del pending[ready]
            yield (model, generation), result
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
