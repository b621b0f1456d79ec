"""The encoder-decoder, and the champion: one with 2-D positions that reads demonstrations."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.config.models import ChampionConfig, EncoderDecoderConfig
from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import COLOURS
from raylab.arc.models.base import (
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
    Dropout,
    EdgePositions,
    KeyValueCache,
    Layer,
    Positions,
    Stack,
    masked_mean,
)


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
        """Builds the model.

        The layers draw their weights from PyTorch's random state, so their order must not change.
        """
        super().__init__()
        width, heads, d_ff = config.d_model, config.heads, config.d_ff
        champion = config if isinstance(config, ChampionConfig) else None
        d_context = D_CONTEXT if champion else 0
        self.colours = nn.Embedding(VOCABULARY, width)
        self.positions = EdgePositions(width) if champion else Positions(width)
        self.dropout = Dropout(config.embedding_dropout)
        self.context = ContextEncoder(champion) if champion else None
        if isinstance(config, ChampionConfig):
            rates = config.encoder_dropout, config.decoder_dropout
        else:
            rates = config.dropout, config.dropout
        self.encoder = Stack(
            Layer(width, heads, d_ff, rates[0]) for _ in range(config.encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = Stack(
            Layer(width, heads, d_ff, rates[1], cross=True) for _ in range(config.decoder_layers)
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
