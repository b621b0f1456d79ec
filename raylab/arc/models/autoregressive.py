"""The architectures that write cell by cell: the encoder-decoder, the champion, the decoder-only.

The champion is an encoder-decoder with 2-D positions that reads demonstrations.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.config.models import ChampionConfig, DecoderOnlyConfig, EncoderDecoderConfig
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
    inside,
    shift_right,
)
from raylab.arc.models.context import D_CONTEXT, ContextEncoder
from raylab.arc.models.layers import (
    MAX_CELLS,
    Dropout,
    EdgePositions,
    KeyValueCache,
    Layer,
    Positions,
    Rotary,
    Stack,
    masked_mean,
)

ROPE_BASE = 10_000.0
"""Base of the rotary frequencies."""


class Bridge(nn.Module):
    """Layer that adds the context to every decoder state: concatenate, linear, ReLU, LayerNorm."""

    def __init__(self, d_model: int, d_context: int) -> None:
        """Builds the bridge; the linear map of the concatenation is stored as two halves."""
        super().__init__()
        self.state = nn.Linear(d_model, d_model)
        self.context = nn.Linear(d_context, d_model, bias=False)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Returns the (B, L, D) states with the (B, C) context."""
        return x + self.norm(F.relu(self.state(x) + self.context(context)[:, None]))


class EncoderDecoder(AutoregressiveModel):
    """An encoder of the source and a decoder that attends to it.

    The champion codes places by their distances from the four edges instead of by index. It has
    one colour table for context, source and target. Its context enters the size head and the states
    of every decoder layer.
    """

    def __init__(self, config: EncoderDecoderConfig | ChampionConfig) -> None:
        super().__init__()
        width, heads, d_ff = config.d_model, config.heads, config.d_ff
        champion = config if isinstance(config, ChampionConfig) else None
        d_context = D_CONTEXT if champion else 0
        # Layers draw their weights from PyTorch's random state: another order, another model.
        self.colours = nn.Embedding(VOCABULARY, width)
        self.positions = EdgePositions(width) if champion else Positions(width)
        self.dropout = Dropout(config.embedding_dropout)
        self.context = ContextEncoder(champion) if champion else None
        if isinstance(config, ChampionConfig):
            dropout = config.encoder_dropout, config.decoder_dropout
        else:
            dropout = config.dropout, config.dropout
        self.encoder = Stack(
            Layer(width, heads, d_ff, dropout[0]) for _ in range(config.encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = Stack(
            Layer(width, heads, d_ff, dropout[1], cross=True) for _ in range(config.decoder_layers)
        )
        self.bridges = nn.ModuleList(Bridge(width, d_context) for _ in self.decoder if champion)
        self.decoder_norm = nn.LayerNorm(width)
        self.size_head = SizeHead(width + d_context)
        self.output = nn.Linear(width, COLOURS)
        self.size_code = SizeCode(width)

    def forward(self, batch: Batch) -> Logits:
        decoding, target = self.start(batch), batch.target
        x = self.embed(shift_right(target), target)
        x = self.dropout(x + self.size_code(target.sizes)[:, None])
        return Logits(self._decode(x, decoding, causal=True), decoding.sizes)

    def start(self, batch: Batch) -> Decoding:
        source = batch.source
        mask = inside(source)[:, None, None] if source.padded else None
        x = self.dropout(self.embed(source.cells, source))
        for layer in self.encoder:
            x = layer(x, mask=mask)
        x = self.encoder_norm(x)
        summary, context = masked_mean(x, source.cells), None
        if self.context is not None:
            context = self.context(batch, self.colours)
            summary = torch.cat((summary, context), dim=1)
        return Decoding(
            memories=[layer.remember(x, mask) for layer in self.decoder],
            sizes=self.size_head(summary, source.sizes),
            context=context,
            caches=[KeyValueCache() for _ in self.decoder],
            prefix=torch.zeros_like(source.sizes[:, 0]),
        )

    def embed(self, cells: Tensor, places: Grids, first: int = 0) -> Tensor:
        return self.colours(cells) + self.positions(places, first)

    def step(self, decoding: Decoding, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        return self._decode(x, decoding, positions=positions, mask=mask)

    def _decode(self, x: Tensor, decoding: Decoding, **attention: Any) -> Tensor:
        """Returns (B, L, 10) logits of (B, L, D) embedded cells after those in the caches."""
        layers = zip(self.decoder, decoding.memories, decoding.caches, strict=True)
        for index, (layer, memory, cache) in enumerate(layers):
            x = layer(x, memory=memory, cache=cache, **attention)
            if decoding.context is not None:
                x = self.bridges[index](x, decoding.context)
        return self.output(self.decoder_norm(x))


class DecoderOnly(AutoregressiveModel):
    """A decoder of one causal sequence: demonstrations, source, `SEPARATOR`, `START`, output."""

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
        # Padding comes after the last token of a sample, so that positions do not depend on the
        # batch, and causal attention needs no mask.
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
