"""What every architecture is: a network that writes an output grid cell by cell.

It predicts from a start token, and the height and width of the output from what is known before the
first cell. The token at step t carries the colour of cell t - 1 and the coordinates of cell t, the
cell to predict. Logits are over the ten colours: padding is never an answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, PAD
from raylab.arc.models.layers import KeyValueCache, Memory
from raylab.config.models import TransformerConfig

START = PAD + 1
SEPARATOR = PAD + 2
VOCABULARY = COLOURS + 3


class Logits(NamedTuple):
    """Logits under teacher forcing."""

    cells: Tensor
    """(B, T, 10): colours of each target cell, given the true cells before it."""
    sizes: Tensor
    """(B, 2, 30): height - 1 and width - 1 of the output."""


@dataclass
class Decoding:
    """B outputs in the making."""

    sizes: Tensor
    """(B, 2, 30) logits of height - 1 and width - 1."""
    caches: list[KeyValueCache]
    prefix: Tensor
    """(B,) tokens in the caches that come before the output's."""
    capacity: int
    """Tokens in the caches before the output's, padding included."""
    memories: list[Memory]
    context: Tensor | None

    def reserve(self, room: int) -> None:
        """Make room for `room` output cells."""
        for cache in self.caches:
            cache.reserve(room)


class GridModel(nn.Module, ABC):
    """A model that writes an output grid cell by cell."""

    @abstractmethod
    def forward(self, batch: Batch) -> Logits:
        """Logits of every target cell, given the true cells before it."""

    @abstractmethod
    def start(self, batch: Batch) -> Decoding:
        """Read source and demonstrations and predict the output's size."""

    @abstractmethod
    def step(
        self, decoding: Decoding, before: Tensor, rows: Tensor, cols: Tensor, t: int
    ) -> Tensor:
        """(B, 10) logits of cell t at (B,) `rows`, `cols`.

        Args:
            decoding: what `start` returned and earlier steps went on with.
            before: (B,) cell t - 1; `START` at t = 0.
            rows: (B,) row of cell t.
            cols: (B,) column of cell t.
            t: place of the cell in its grid, counted from 0.
        """


def shifted(target: Grids) -> Tensor:
    """(B, T) the cell before each target cell: `START`, then all cells but the last."""
    return F.pad(target.cells[:, :-1], (1, 0), value=START)


class SizeHead(nn.Module):
    """Height and width of the output from a summary and the size of the source."""

    def __init__(self, d_summary: int) -> None:
        """Read summaries of `d_summary` dimensions."""
        super().__init__()
        self.linear = nn.Linear(d_summary + 2 * MAX_SIDE, 2 * MAX_SIDE)

    def forward(self, summary: Tensor, sizes: Tensor) -> Tensor:
        """(B, 2, 30) logits of height - 1 and width - 1, given (B, 2) source `sizes`."""
        known = F.one_hot(sizes - 1, MAX_SIDE).flatten(1).to(summary.dtype)
        return self.linear(torch.cat((summary, known), dim=1)).view(-1, 2, MAX_SIDE)


Build = Callable[[Any], GridModel]
"""Makes a network from a configuration of its architecture."""
B = TypeVar("B", bound=Build)
NETWORKS: dict[type[TransformerConfig], Build] = {}
"""What makes the network of each configuration class."""


def network_of(config: type[TransformerConfig]) -> Callable[[B], B]:
    """Registers the decorated class or function as what makes the network of a configuration.

    Raises:
        TypeError: The configuration has a network already.
    """

    def register(build: B) -> B:
        if config in NETWORKS:
            raise TypeError(
                f"{config.__name__} has two networks, in {NETWORKS[config].__module__} and "
                f"{build.__module__}: decorate one of them alone with @network_of"
            )
        NETWORKS[config] = build
        return build

    return register


def check_networks(configs: Iterable[type[TransformerConfig]]) -> None:
    """Checks that every configuration class has a network.

    Raises:
        TypeError: One has none.
    """
    lacking = [config.__name__ for config in configs if config not in NETWORKS]
    if lacking:
        raise TypeError(
            f"{', '.join(lacking)} has no network: decorate one in raylab/arc/models/ with "
            "@network_of"
        )


def build_model(config: TransformerConfig) -> GridModel:
    """The network of `config`, freshly initialised from PyTorch's random state."""
    return NETWORKS[type(config)](config)
