"""The champion: an encoder-decoder that reads demonstrations as a context."""

from collections.abc import Iterator
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
from raylab.config.models import ChampionConfig

PAIRS_AT_ONCE = 4


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

    def __init__(self, config: ChampionConfig) -> None:
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
        pairs = torch.cat([self._pairs(*part, table) for part in _parts(batch)])
        return self._pool(pairs, batch.demo_index)

    def _pairs(self, inputs: Grids, outputs: Grids, table: Tensor) -> Tensor:
        """Returns one vector per pair, (P, D)."""
        pooled = masked_mean(self._cells(outputs, table), outputs.cells)
        key, value = self.cross_attention.project(self._cells(inputs, table))
        attended = self.cross_attention(pooled[:, None], key, value, key_mask(inputs))
        pairs = pooled + attended[:, 0]
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


def _parts(batch: Batch) -> Iterator[tuple[Grids, Grids]]:
    """Yields demonstration inputs and outputs in parts.

    On a CPU a part holds few grids of similar size, because padding costs time. A GPU gets all at
    once, because there a kernel launch costs more than padding.
    """
    inputs, outputs = batch.demo_inputs, batch.demo_outputs
    count = len(inputs.cells)
    if inputs.cells.device.type != "cpu" or count <= PAIRS_AT_ONCE:
        yield inputs, outputs
        return
    for start in range(0, count, PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        yield inputs.part(part), outputs.part(part)
