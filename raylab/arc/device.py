"""What a computation in this process may use: a GPU, and CPU threads."""

import os

import torch

from raylab.config.base import ClusterConfig
from raylab.errors import ConfigError


def device_here(cluster: ClusterConfig) -> torch.device:
    """Returns the device that work in this process uses.

    Raises:
        ConfigError: `cluster.use_gpu=true` on a machine without a GPU.
    """
    there = torch.cuda.is_available()
    if cluster.use_gpu and not there:
        raise ConfigError("cluster.use_gpu=true, but this machine has no GPU: leave it unset")
    return torch.device("cpu" if cluster.use_gpu is False or not there else "cuda")


def threads_here(cluster: ClusterConfig) -> int:
    """Returns the CPU threads of work in this process: as configured, or one per CPU."""
    return cluster.cpus_per_worker or len(os.sched_getaffinity(0))


def use_share(cluster: ClusterConfig) -> torch.device:
    """Sets the CPU threads of work in this process; returns the device that it uses.

    Raises:
        ConfigError: As `device_here`.
    """
    torch.set_num_threads(threads_here(cluster))
    return device_here(cluster)
