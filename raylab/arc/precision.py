"""The floating-point precision that a machine computes in."""

import torch

from raylab.config.arc import Precision


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
