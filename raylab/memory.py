"""Memory of this process."""

import ctypes
import gc


def give_back() -> None:
    """Gives memory that nothing uses any more back to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
