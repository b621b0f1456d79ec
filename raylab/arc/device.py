"""What a computation in this process uses: a GPU, CPU threads, and a precision."""

import os

import torch

from raylab.config.arc import Precision
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


def hardware_precision(wanted: Precision) -> Precision:
    """Returns `wanted`; `auto` becomes a GPU's half precision, and float32 on a CPU.

    That is bfloat16 on a GPU that computes in it natively, else float16. CPUs are slower in
    bfloat16, even those with instructions for it.
    """
    if wanted is not Precision.AUTO:
        return wanted
    if not torch.cuda.is_available():
        return Precision.FLOAT32
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    return Precision.BFLOAT16 if native else Precision.FLOAT16
