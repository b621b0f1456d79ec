"""The encoder-decoder, and the base that it shares with the champion."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.data.batching import Batch
from raylab.arc.data.tasks import COLOURS
from raylab.arc.models.autoregressive import VOCABULARY, AutoregressiveModel, Decoding, shifted
from raylab.arc.models.base import Logits, SizeCode, SizeHead, network_of
from raylab.arc.models.layers import (
    Dropout,
    KeyValueCache,
    Layer,
    Memory,
    Positions1D,
    Positions2D,
    Stack,
    key_mask,
    masked_mean,
)
from raylab.config.models import ChampionConfig, EncoderDecoderConfig


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
    """An encoder of the source and a decoder that attends to it, optionally with a context."""

    def __init__(
        self,
        config: EncoderDecoderConfig | ChampionConfig,
        positions: Positions1D | Positions2D,
        *,
        encoder_dropout: float,
        decoder_dropout: float,
        context: Callable[[], nn.Module] | None = None,
        d_context: int = 0,
    ) -> None:
        """Builds the model.

        The parts draw their weights from PyTorch's random state, so their order must not change.

        Args:
            config: Widths and layers.
            positions: Codes of the cells' positions.
            encoder_dropout: Rate in the encoder.
            decoder_dropout: Rate in the decoder.
            context: Makes a module that maps a batch and the table of colours to (B, `d_context`)
                contexts, which enter the size head and the states of every decoder layer.
            d_context: Width of the context.
        """
        super().__init__()
        width, heads, d_ff = config.d_model, config.heads, config.d_ff
        self.colours = nn.Embedding(VOCABULARY, width)
        self.positions = positions
        self.dropout = Dropout(config.embedding_dropout)
        self.context = None if context is None else context()
        self.encoder = Stack(
            Layer(width, heads, d_ff, encoder_dropout) for _ in range(config.encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = Stack(
            Layer(width, heads, d_ff, decoder_dropout, cross=True)
            for _ in range(config.decoder_layers)
        )
        self.bridges = nn.ModuleList(Bridge(width, d_context) for _ in self.decoder if context)
        self.decoder_norm = nn.LayerNorm(width)
        self.size_head = SizeHead(width + d_context)
        self.output = nn.Linear(width, COLOURS)
        self.size_code = SizeCode(width)

    def forward(self, batch: Batch) -> Logits:
        """Returns the logits of every target cell, given the true cells before it."""
        memories, context, sizes = self._read(batch)
        target = batch.target
        x = self._embed(shifted(target), target.rows, target.cols, 0)
        x = self.dropout(x + self.size_code(target.sizes)[:, None])
        for index, layer in enumerate(self.decoder):
            x = self._bridged(index, layer(x, causal=True, memory=memories[index]), context)
        return Logits(self.output(self.decoder_norm(x)), sizes)

    def start(self, batch: Batch) -> Decoding:
        """Reads source and demonstrations and predicts the output's size."""
        memories, context, sizes = self._read(batch)
        empty = memories[0].key[:, :, :0]
        caches = [KeyValueCache(empty, empty) for _ in self.decoder]
        none = torch.zeros(len(empty), dtype=torch.int64, device=empty.device)
        return Decoding(sizes, caches, none, 0, memories, context)

    def step(
        self, decoding: Decoding, before: Tensor, rows: Tensor, cols: Tensor, t: int
    ) -> Tensor:
        """Returns (B, 10) logits of cell t."""
        assert decoding.told is not None
        x = self._embed(before[:, None], rows[:, None], cols[:, None], t)
        x = x + decoding.told[:, None]
        positions = decoding.prefix + t
        seen = torch.ones(len(before), 1, 1, t + 1, dtype=torch.bool, device=x.device)
        for index, layer in enumerate(self.decoder):
            x = layer.step(x, positions, decoding.caches[index], seen, decoding.memories[index])
            x = self._bridged(index, x, decoding.context)
        return self.output(self.decoder_norm(x))[:, 0]

    def _read(self, batch: Batch) -> tuple[list[Memory], Tensor | None, Tensor]:
        """Returns the memory of each decoder layer, the context and the size logits."""
        source = batch.source
        mask = key_mask(source)
        x = self.dropout(self._embed(source.cells, source.rows, source.cols, 0))
        for layer in self.encoder:
            x = layer(x, mask=mask)
        x = self.encoder_norm(x)
        summary = masked_mean(x, source.cells)
        context = None
        if self.context is not None:
            context = self.context(batch, self.colours)
            summary = torch.cat((summary, context), dim=1)
        memories = [layer.remember(x, mask) for layer in self.decoder]
        return memories, context, self.size_head(summary, source.sizes)

    def _embed(self, cells: Tensor, rows: Tensor, cols: Tensor, first: int) -> Tensor:
        order = torch.arange(first, first + cells.shape[1], device=cells.device)
        return self.colours(cells) + self.positions(rows, cols, order)

    def _bridged(self, index: int, x: Tensor, context: Tensor | None) -> Tensor:
        return x if context is None else self.bridges[index](x, context)


@network_of(EncoderDecoderConfig)
def encoder_decoder(config: EncoderDecoderConfig) -> EncoderDecoder:
    """Returns the encoder-decoder with 1-D sinusoids and no context."""
    return EncoderDecoder(
        config,
        Positions1D(config.d_model),
        encoder_dropout=config.dropout,
        decoder_dropout=config.dropout,
    )
