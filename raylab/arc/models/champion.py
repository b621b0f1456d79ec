"""The champion: an encoder-decoder that reads demonstrations as a context."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.data.batching import MISSING, Batch, Grids
from raylab.arc.models.base import network_of
from raylab.arc.models.encoder_decoder import EncoderDecoder
from raylab.arc.models.layers import (
    CrossAttention,
    FeedForward,
    Layer,
    Positions2D,
    key_mask,
    masked_mean,
)
from raylab.config.models import ChampionConfig, DemonstratedConfig

Index = Tensor | slice
LENGTH_SPREAD = 48
"""Most cells by which grids differ that a CPU pads to one length."""


@network_of(ChampionConfig)
def champion(config: ChampionConfig) -> EncoderDecoder:
    """Returns the champion: 2-D positions, and one colour table for context, source and target."""
    return EncoderDecoder(
        config,
        Positions2D(config.d_model),
        encoder_dropout=config.encoder_dropout,
        decoder_dropout=config.decoder_dropout,
        context=partial(ContextEncoder, config),
        d_context=config.d_context,
    )


class ContextEncoder(nn.Module):
    """Encoder of demonstrations, one vector per query; reads each distinct pair once per batch."""

    def __init__(self, config: DemonstratedConfig) -> None:
        """Builds the encoder."""
        super().__init__()
        width, heads = config.d_context, config.context_heads
        self.narrow = nn.Linear(config.d_model, width)
        self.positions = Positions2D(width)
        self.layer = Layer(width, heads, config.context_d_ff, config.encoder_dropout)
        self.norm, self.pair_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.cross_attention = CrossAttention(width, heads)
        self.feed_forward = FeedForward(width, config.pair_d_ff, config.encoder_dropout)
        self.weight = nn.Linear(width, 1)

    def forward(self, batch: Batch, colours: nn.Embedding) -> Tensor:
        """Returns (B, D) contexts, zero for a query without demonstrations."""
        table = self.narrow(colours.weight)
        pairs = self._pairs(batch.demo_inputs, batch.demo_outputs, table)
        return self._pool(pairs, batch.demo_index)

    def _pairs(self, inputs: Grids, outputs: Grids, table: Tensor) -> Tensor:
        """Returns one vector per pair, (P, D)."""

        def pool(part: Grids, index: Index) -> Tensor:
            return masked_mean(self._cells(part, table), part.cells)

        pooled = _by_length(outputs, pool)

        def attend(part: Grids, index: Index) -> Tensor:
            key, value = self.cross_attention.project(self._cells(part, table))
            return self.cross_attention(pooled[index, None], key, value, key_mask(part))[:, 0]

        pairs = pooled + _by_length(inputs, attend)
        return pairs + self.feed_forward(self.pair_norm(pairs))

    def _cells(self, grids: Grids, table: Tensor) -> Tensor:
        """Returns the (P, L, D) states of the cells."""
        order = torch.arange(grids.cells.shape[1], device=table.device)
        x = F.embedding(grids.cells, table) + self.positions(grids.rows, grids.cols, order)
        return self.norm(self.layer(x, mask=key_mask(grids)))

    def _pool(self, pairs: Tensor, index: Tensor) -> Tensor:
        """Returns the attention-weighted mean of the (P, D) pairs that (B, K) `index` names."""
        missing = index == MISSING
        scores = F.pad(self.weight(pairs)[:, 0], (0, 1))[index].masked_fill(missing, -1e9)
        weights = scores.softmax(dim=1).masked_fill(missing, 0.0)
        return torch.einsum("bk,bkd->bd", weights, F.pad(pairs, (0, 0, 0, 1))[index])


def _by_length(grids: Grids, work: Callable[[Grids, Index], Tensor]) -> Tensor:
    """Returns the results of `work` for all grids; it is given grids of like length at an index.

    On a CPU grids of other lengths are worked on apart, because padding costs time. A GPU gets all
    at once, because there a kernel launch costs more than padding.
    """
    lengths = grids.sizes.prod(dim=1)
    if lengths.device.type != "cpu" or len(lengths) < 2:
        return work(grids, slice(None))
    ordered, order = lengths.sort()
    starts = [0]
    for index, length in enumerate(ordered.tolist()):
        if length - ordered[starts[-1]] > LENGTH_SPREAD:
            starts.append(index)
    parts = order.tensor_split(starts[1:])
    return torch.cat([work(grids.part(part), part) for part in parts])[order.argsort()]
