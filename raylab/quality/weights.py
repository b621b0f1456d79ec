"""The weights of score files in the replicates of the bootstrap.

The bootstrap is Poisson's (Oza and Russell 2001; Chamandy et al. 2012, "Estimating uncertainty for
massive data streams"): in each replicate the weight of a file is a Poisson(1) draw. The draw is a
hash of the file's key, so that files with the same key get the same draw on any machine.
"""

import functools
import hashlib
import math

import numpy as np
from numpy.typing import NDArray

DRAW_LEVELS = 1 << 16
"""Number of values of the two bytes that draw a weight."""
REMEMBERED_WEIGHTS = 1 << 13
REMEMBERED_CHUNKS = 16

Array = NDArray[np.float64]


# Directories tend to hold files with the same names.
@functools.lru_cache(maxsize=REMEMBERED_CHUNKS)
def chunk_weights(keys: tuple[str, ...], replicates: int) -> tuple[Array, Array]:
    """Returns the (keys, replicates) weights of files and their (replicates,) sums."""
    weights = np.stack([_weights(key, replicates) for key in keys]).astype(np.float64)
    return weights, weights.sum(axis=0)


@functools.lru_cache(maxsize=REMEMBERED_WEIGHTS)
def _weights(key: str, replicates: int) -> NDArray[np.uint8]:
    """Returns (replicates,) Poisson(1) draws, a hash of the key."""
    digest = hashlib.shake_128(key.encode(errors="surrogateescape")).digest(2 * replicates)
    return _poisson_quantiles()[np.frombuffer(digest, "<u2")]


@functools.cache
def _poisson_quantiles() -> NDArray[np.uint8]:
    """Returns the (DRAW_LEVELS,) quantiles of Poisson(1) at evenly spaced probabilities."""
    densities = [math.exp(-1) / math.factorial(k) for k in range(12)]
    probabilities = (np.arange(DRAW_LEVELS) + 0.5) / DRAW_LEVELS
    return np.searchsorted(np.cumsum(densities), probabilities).astype(np.uint8)
