"""The decoder-only architecture."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.config.models import DecoderOnlyConfig
from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import COLOURS, PAD
from raylab.arc.models.base import (
    SEPARATOR,
    VOCABULARY,
    AutoregressiveModel,
    Decoding,
    Logits,
    SizeCode,
    SizeHead,
    shift_right,
)
from raylab.arc.models.layers import MAX_CELLS, Dropout, KeyValueCache, Layer, Rotary, Stack

ROPE_BASE = 10_000.0
"""Base of the rotary frequencies."""


class DecoderOnly(AutoregressiveModel):
    """A decoder of one causal sequence: demonstrations, source, `SEPARATOR`, `START`, output.

    The tokens of a sample are contiguous, with padding after the last, so that positions do not
    depend on the batch and causal attention needs no mask.
    """

    def __init__(self, config: DecoderOnlyConfig) -> None:
        super().__init__()
        width, heads = config.d_model, config.heads
        longest = 2 * (MAX_CELLS + 1) * (config.demonstrations + 1)
        self.colours = nn.Embedding(VOCABULARY, width)
        self.dropout = Dropout(config.embedding_dropout)
        self.rotary = Rotary(width // heads, longest, ROPE_BASE)
        self.layers = Stack(
            Layer(width, heads, config.d_ff, config.dropout, rotary=self.rotary)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.size_head = SizeHead(width)
        self.output = nn.Linear(width, COLOURS)
        self.size_code = SizeCode(width)

    def forward(self, batch: Batch) -> Logits:
        prefix = _prefix(batch)
        target = shift_right(batch.target).masked_fill(batch.target.cells == PAD, PAD)
        x = self.colours(_align_left(torch.cat((prefix, target), dim=1)))
        positions = torch.arange(x.shape[1], device=x.device)
        lengths = (prefix != PAD).sum(1)
        of_output = (positions >= lengths[:, None])[..., None]
        x = self.dropout(x + self.size_code(batch.target.sizes)[:, None] * of_output)
        for layer in self.layers:
            x = layer(x, causal=True, positions=positions)
        x = self.norm(x)
        steps = torch.arange(target.shape[1], device=x.device)
        places = (lengths[:, None] + steps).clamp(max=x.shape[1] - 1)
        cells = x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))
        return Logits(self.output(cells), self._sizes(x, lengths, batch))

    def start(self, batch: Batch) -> Decoding:
        prefix = _align_left(_prefix(batch))
        x = self.colours(prefix)
        positions = torch.arange(x.shape[1], device=x.device)
        caches = [KeyValueCache() for _ in self.layers]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, causal=True, positions=positions, cache=cache)
        lengths = (prefix != PAD).sum(1)
        sizes = self._sizes(self.norm(x), lengths, batch)
        return Decoding(sizes, caches, lengths, prefix.shape[1])

    def embed(self, cells: Tensor, places: Grids, first: int = 0) -> Tensor:
        return self.colours(cells)

    def step(self, decoding: Decoding, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        for layer, cache in zip(self.layers, decoding.caches, strict=True):
            x = layer(x, mask=mask, positions=positions, cache=cache)
        return self.output(self.norm(x))

    def _sizes(self, x: Tensor, lengths: Tensor, batch: Batch) -> Tensor:
        """Returns the size logits, computed at the separator after the source."""
        separator = x[torch.arange(len(x), device=x.device), lengths - 1]
        return self.size_head(separator, batch.source.sizes)


def _prefix(batch: Batch) -> Tensor:
    """Returns the (B, L) tokens before `START`, with padding between the grids."""
    inputs, outputs, index = batch.demo_inputs.cells, batch.demo_outputs.cells, batch.demo_index
    tokens: list[Tensor] = []
    for demo in index.unbind(1):
        tokens += [
            _segment(F.pad(side, (0, 0, 0, 1), value=PAD)[demo]) for side in (inputs, outputs)
        ]
    return torch.cat((*tokens, _segment(batch.source.cells)), dim=1)


def _segment(cells: Tensor) -> Tensor:
    """Returns (B, L + 1) cells and a `SEPARATOR`; a row is all padding if it has no cell."""
    present = (cells[:, :1] != PAD).long()
    return torch.cat((cells, PAD + present * (SEPARATOR - PAD)), dim=1)


def _align_left(tokens: Tensor) -> Tensor:
    """Moves the padding of (B, L) `tokens` behind the last token."""
    return tokens.gather(1, (tokens == PAD).long().argsort(dim=1, stable=True))
