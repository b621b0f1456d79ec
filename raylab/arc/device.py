"""The device, CPU threads and precision of a computation in this process."""

import os

import torch

from raylab.arc.config.sections import Precision
from raylab.core.config.base import ClusterConfig
from raylab.core.errors import ConfigError


def use_share(cluster: ClusterConfig, threads: int | None = None) -> torch.device:
    """Sets the CPU threads of this process and returns the device for its work.

    Without `threads`, these are `cluster.cpus_per_worker` or all CPUs.
    """
    gpu = torch.cuda.is_available()
    if cluster.use_gpu and not gpu:
        raise ConfigError("cluster.use_gpu=true, but this machine has no GPU: leave it unset")
    torch.set_num_threads(threads or cluster.cpus_per_worker or len(os.sched_getaffinity(0)))
    return torch.device("cpu" if cluster.use_gpu is False or not gpu else "cuda")


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
