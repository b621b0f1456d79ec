"""Memory of this process."""

import ctypes
import gc


def give_back() -> None:
    """Returns unused memory to the system, if the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
