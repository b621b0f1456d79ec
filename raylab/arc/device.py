"""The device, CPU threads and precision of a computation in this process."""

import os
from functools import cache

import torch

from raylab.arc.config.sections import Precision
from raylab.core.config.base import ClusterConfig
from raylab.core.errors import ConfigError
from raylab.core.log import log_line


def use_share(cluster: ClusterConfig, threads: int | None = None) -> torch.device:
    """Sets the CPU threads of this process and returns the device for its work.

    Without `threads`, these are `cluster.cpus_per_worker` or all CPUs.
    """
    gpu = torch.cuda.is_available()
    if cluster.use_gpu and not gpu:
        raise ConfigError("cluster.use_gpu=true, but this machine has no GPU: leave it unset")
    torch.set_num_threads(threads or cluster.cpus_per_worker or len(os.sched_getaffinity(0)))
    if cluster.use_gpu is not False and gpu:
        return torch.device("cuda")
    _report_load()
    return torch.device("cpu")


@cache
def _report_load() -> None:
    """Tells once if others already use all cores of this machine."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        busy = f"this machine is busy: its load is {load:.1f} on {cores} cores, which slows the job"
        log_line(busy, load=load, cores=cores)


def hardware_precision(wanted: Precision, device: str | None = None) -> Precision:
    """Returns `wanted`; `auto` becomes the fastest precision that trains as well as float32.

    That is bfloat16 on a GPU that computes in it natively, float16 on another GPU, and float32 on a
    CPU. `device` is `cuda` or `cpu`; by default, the GPU if there is one.
    """
    if wanted is not Precision.AUTO:
        return wanted
    if device == "cpu" or not torch.cuda.is_available():
        # bfloat16 needs a kernel for each shape of a batch, and batches have many.
        return Precision.FLOAT32
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    return Precision.BFLOAT16 if native else Precision.FLOAT16
