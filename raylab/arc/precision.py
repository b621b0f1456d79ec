"""The floating-point precision that a machine computes in."""

import torch

from raylab.config.arc import Precision


def hardware_precision(wanted: Precision) -> Precision:
    """Returns `wanted`; `auto` becomes bfloat16 where this machine computes in it natively."""
    if wanted is not Precision.AUTO:
        return wanted
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return Precision.BFLOAT16 if native else Precision.FLOAT16
    native = any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16"))
    return Precision.BFLOAT16 if native else Precision.FLOAT32
