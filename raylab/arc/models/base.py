"""The interface of every architecture: a network that writes an output grid cell by cell.

It starts from a start token, and predicts the height and width of the output from what is known
before the first cell. Every token of the output then carries the height and width that it is
written in: the true ones under teacher forcing, the predicted ones free-running. The token at step
t also carries the colour of cell t - 1 and the coordinates of cell t, the cell to predict. Logits
are over the ten colours: padding is never an answer.
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
    """The state of decoding B outputs."""

    sizes: Tensor
    """(B, 2, 30) logits of height - 1 and width - 1."""
    caches: list[KeyValueCache]
    prefix: Tensor
    """(B,) number of tokens in the caches before those of the output."""
    capacity: int
    """Number of tokens in the caches before those of the output, padding included."""
    memories: list[Memory]
    context: Tensor | None
    told: Tensor | None = None
    """(B, D) codes of the height and width that the outputs are written in; None before `begin`."""


class SizeCode(nn.Module):
    """Code of the height and width of the output, added to every token of it.

    All architectures have it, so that none knows more of the shape than another. It starts at zero:
    without it a model computes what one without it computed.
    """

    def __init__(self, d_model: int) -> None:
        """Codes sizes in `d_model` dimensions."""
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2, MAX_SIDE, d_model))

    def forward(self, sizes: Tensor) -> Tensor:
        """Returns (B, D) codes of (B, 2) heights and widths, each 1 to 30."""
        height, width = (sizes - 1).unbind(1)
        return self.table[0, height] + self.table[1, width]


class GridModel(nn.Module, ABC):
    """A model that writes an output grid cell by cell."""

    size_code: SizeCode

    @abstractmethod
    def forward(self, batch: Batch) -> Logits:
        """Returns the logits of every target cell, given the true cells before it."""

    @abstractmethod
    def start(self, batch: Batch) -> Decoding:
        """Reads source and demonstrations and predicts the output's size."""

    def begin(self, decoding: Decoding, sizes: Tensor) -> None:
        """Begins to write outputs of (B, 2) `sizes`, and makes room for their cells."""
        decoding.told = self.size_code(sizes)
        room = int(sizes.prod(dim=1).max())
        for cache in decoding.caches:
            cache.reserve(room)

    @abstractmethod
    def step(
        self, decoding: Decoding, before: Tensor, rows: Tensor, cols: Tensor, t: int
    ) -> Tensor:
        """Returns (B, 10) logits of cell t at (B,) `rows`, `cols`.

        Args:
            decoding: the state after `start` and `begin`, updated by earlier steps.
            before: (B,) cell t - 1; `START` at t = 0.
            rows: (B,) row of cell t.
            cols: (B,) column of cell t.
            t: index of the cell in its grid, from 0.
        """


def shifted(target: Grids) -> Tensor:
    """Returns the (B, T) cells before each target cell: `START`, then all but the last."""
    return F.pad(target.cells[:, :-1], (1, 0), value=START)


class SizeHead(nn.Module):
    """Predictor of the output's height and width from a summary and the size of the source."""

    def __init__(self, d_summary: int) -> None:
        """Reads summaries of `d_summary` dimensions."""
        super().__init__()
        self.linear = nn.Linear(d_summary + 2 * MAX_SIDE, 2 * MAX_SIDE)

    def forward(self, summary: Tensor, sizes: Tensor) -> Tensor:
        """Returns (B, 2, 30) logits of height - 1 and width - 1, given (B, 2) source `sizes`."""
        known = F.one_hot(sizes - 1, MAX_SIDE).flatten(1).to(summary.dtype)
        return self.linear(torch.cat((summary, known), dim=1)).view(-1, 2, MAX_SIDE)


Build = Callable[[Any], GridModel]
"""Makes a network from a configuration of its architecture."""
B = TypeVar("B", bound=Build)
NETWORKS: dict[type[TransformerConfig], Build] = {}
"""The builder of each configuration class's network."""


def network_of(config: type[TransformerConfig]) -> Callable[[B], B]:
    """Registers the decorated class or function as the builder of a configuration's network.

    Raises:
        TypeError: The configuration already has a network.
    """

    def register(build: B) -> B:
        if config in NETWORKS:
            raise TypeError(
                f"{config.__name__} has two networks, in {NETWORKS[config].__module__} and "
                f"{build.__module__}: decorate only one of them with @network_of"
            )
        NETWORKS[config] = build
        return build

    return register


def check_networks(configs: Iterable[type[TransformerConfig]]) -> None:
    """Checks that every configuration class has a network.

    Raises:
        TypeError: A class has no network.
    """
    lacking = [config.__name__ for config in configs if config not in NETWORKS]
    if lacking:
        raise TypeError(
            f"{', '.join(lacking)} has no network: decorate one in raylab/arc/models/ with "
            "@network_of"
        )


def build_model(config: TransformerConfig) -> GridModel:
    """Returns the network of `config`, freshly initialised from PyTorch's random state."""
    return NETWORKS[type(config)](config)
