"""In which floating-point numbers a machine computes."""

import torch

from raylab.config.arc import Precision


def hardware_precision(wanted: Precision) -> Precision:
    """`wanted`, with `auto` resolved for this machine: bfloat16 where it is computed natively."""
    if wanted is not Precision.AUTO:
        return wanted
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return Precision.BFLOAT16 if native else Precision.FLOAT16
    native = any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16"))
    return Precision.BFLOAT16 if native else Precision.FLOAT32
