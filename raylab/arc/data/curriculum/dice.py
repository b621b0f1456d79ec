"""The chance of the curriculum: draws that are the same on every machine."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from raylab.arc.data.tasks import Grid

_T = TypeVar("_T")
BLOCK = 256
NONZERO = range(1, 10)
"""All colours but the background."""


class Dice:
    """Draws from a stream of its own for each name and seed.

    The stream is that of the raw 64-bit numbers of `PCG64`, seeded by `SeedSequence` with the seed
    and the SHA-256 of the name. numpy keeps both as they are in all versions; the methods of
    `Generator` have no such promise. A number below n is one of them modulo n.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        """Starts the stream of `name` (any text) and `seed` (>= 0)."""
        hash_ = int.from_bytes(hashlib.sha256(name.encode()).digest())
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, hash_]))
        self._block: list[int] = []

    def below(self, n: int) -> int:
        """Returns a number in 0..n-1."""
        if not self._block:
            self._block = self._bits.random_raw(BLOCK).tolist()
        return self._block.pop() % n

    def between(self, low: int, high: int) -> int:
        """Returns a number in low..high."""
        return low + self.below(high - low + 1)

    def one(self, items: Sequence[_T]) -> _T:
        """Returns one of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[_T], k: int) -> list[_T]:
        """Returns k different items, at most as many as there are, in random order."""
        left = list(items)
        for i in range(k):
            j = self.between(i, len(left) - 1)
            left[i], left[j] = left[j], left[i]
        return left[:k]

    def cells(self, height: int, width: int, colours: Sequence[int]) -> Grid:
        """Returns a grid whose cells have each one of the colours, equally likely."""
        drawn = self._bits.random_raw((height, width)) % np.uint64(len(colours))
        return np.array(colours, np.uint8)[drawn]

    def scatter(self, grid: Grid, colours: Sequence[int]) -> None:
        """Writes each of the colours, at most as many as cells, into a cell of its own."""
        grid.flat[self.sample(range(grid.size), len(colours))] = colours
