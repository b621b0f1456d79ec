"""What a machine can do and what a computation needs: peak rate and peak memory."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from raylab.benchmarks.figures import timed
from raylab.config.arc import Precision
from raylab.memory import give_back
from raylab.runs.records import Part

T = TypeVar("T")

GPU_PEAKS = {
    "H200": 989.4e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989.4e12,
    "A100": 312e12,
}
"""Dense FLOP/s in bfloat16 and float16 by part of the device's name, the first that fits.

From NVIDIA's data sheets of the H200, H100 and A100 Tensor Core GPUs; those of the H100 and the
H200 give the rate with sparsity, which is twice the dense one.
"""
DTYPES = {
    Precision.FLOAT32: torch.float32,
    Precision.BFLOAT16: torch.bfloat16,
    Precision.FLOAT16: torch.float16,
}
PRODUCTS = 5
MAX_RESIDENT = "5"
"""What resets `VmHWM`, see clear_refs in proc(5)."""


class Peak(Part):
    """The rate at which a device multiplies matrices at best."""

    flops_per_second: float
    source: str
    """"data sheet" or "measured"."""


def device_peak(device: torch.device, precision: Precision) -> Peak:
    """Returns the documented peak of a GPU in half precision, else that of a large product."""
    if device.type == "cuda" and precision is not Precision.FLOAT32:
        name = torch.cuda.get_device_name(device)
        for part, rate in GPU_PEAKS.items():
            if part in name:
                return Peak(flops_per_second=rate, source="data sheet")
    rate = _measured_rate(device, DTYPES[precision])
    return Peak(flops_per_second=rate, source="measured")


def _measured_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the FLOP/s of the fastest of some products of two square matrices."""
    side = 8192 if device.type == "cuda" else 2048
    matrix = torch.randn(side, side, device=device).to(dtype)

    def product() -> float:
        return (matrix @ matrix)[0, 0].item()  # waits for a GPU

    product()
    return 2 * side**3 / min(timed(product)[0] for _ in range(PRODUCTS))


def resident_bytes() -> int:
    """Returns the resident memory of this process after giving unused memory back; 0 if unknown."""
    give_back()
    return _status("VmRSS") if _tells_peaks() else 0


def with_peak_memory(
    work: Callable[[], T], device: torch.device, before: int
) -> tuple[T, int | None]:
    """Returns the result of `work` and the peak of its memory, in bytes.

    On a GPU it is that of PyTorch's tensors. On a CPU it is the growth of the process's resident
    memory from `before`, which `resident_bytes` told; None where the system does not tell it.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        done = work()
        return done, torch.cuda.max_memory_allocated(device)
    if not _tells_peaks():
        return work(), None
    resident_bytes()
    Path("/proc/self/clear_refs").write_text(MAX_RESIDENT)
    done = work()
    return done, max(0, _status("VmHWM") - before)


def _tells_peaks() -> bool:
    return Path("/proc/self/clear_refs").exists()


def _status(field: str) -> int:
    """Returns a field of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values[field].removesuffix("kB")) * 1024
