"""The published networks in their plainest form: the baseline of the training benchmark.

They are the same networks from `torch.nn` layers in float32: batches padded to their longest
sample, collated sample by sample, with materialised masks, and demonstrations encoded anew for
every sample. Like raylab's they use no dropout on attention probabilities. That is the default in
`torch.nn` and would make the baseline several times slower.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from raylab.arc.data.batching import MISSING, Grids
from raylab.arc.data.store import Indices, PairStore
from raylab.arc.data.tasks import COLOURS, PAD
from raylab.arc.models.autoregressive import SEPARATOR, START, VOCABULARY
from raylab.arc.models.base import Logits, SizeCode, SizeHead
from raylab.arc.models.encoder_decoder import Bridge
from raylab.arc.models.layers import MAX_CELLS, Positions1D, Positions2D, Rotary
from raylab.config.models import (
    ChampionConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
)


class NaiveGrids(NamedTuple):
    """B grids padded to the longest: colour, row and column of each cell, and the sizes."""

    cells: Tensor
    """(B, L, 3) int64, `PAD` as the colour of padding."""
    sizes: Tensor
    """(B, 2) int64."""

    @property
    def padding(self) -> Tensor:
        """(B, L) bool, True in padding."""
        return self.cells[..., 0] == PAD


class NaiveBatch(NamedTuple):
    """A batch whose samples share nothing."""

    source: NaiveGrids
    target: NaiveGrids
    demo_inputs: NaiveGrids
    """B x K grids, sample by sample."""
    demo_outputs: NaiveGrids


def naive_batch(store: PairStore, pairs: Indices, demonstrations: Indices) -> NaiveBatch:
    """Collates `pairs` with their (B, K) `demonstrations`, sample by sample."""
    if (demonstrations == MISSING).any():
        raise ValueError("the baseline needs every demonstration")
    demos = demonstrations.flatten().tolist()
    return NaiveBatch(
        _collate([_sample(store, 2 * pair) for pair in pairs.tolist()]),
        _collate([_sample(store, 2 * pair + 1) for pair in pairs.tolist()]),
        _collate([_sample(store, 2 * pair) for pair in demos]),
        _collate([_sample(store, 2 * pair + 1) for pair in demos]),
    )


def _sample(store: PairStore, grid: int) -> tuple[Tensor, Tensor]:
    height, width = store.sizes[grid].tolist()
    first = store.offsets[grid]
    colours = store.cells[first : first + height * width].tolist()
    cells = [[colour, i // width, i % width] for i, colour in enumerate(colours)]
    return torch.tensor(cells), torch.tensor([height, width])


def _collate(samples: Sequence[tuple[Tensor, Tensor]]) -> NaiveGrids:
    if not samples:
        return NaiveGrids(torch.empty(0, 1, 3, dtype=torch.int64), torch.empty(0, 2).long())
    cells = pad_sequence([sample[0] for sample in samples], True, PAD)
    return NaiveGrids(cells, torch.stack([sample[1] for sample in samples]))


def _masked_mean(x: Tensor, padding: Tensor) -> Tensor:
    inside = (~padding).float()[..., None]
    return (x * inside).sum(1) / inside.sum(1)


def _coordinates(grids: NaiveGrids) -> tuple[Tensor, Tensor, Tensor]:
    rows, cols = (grids.cells[..., i].where(~grids.padding, 0) for i in (1, 2))
    return rows, cols, torch.arange(rows.shape[1])


def _encoder_layer(d_model: int, heads: int, d_ff: int, dropout: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        d_model, heads, d_ff, dropout, "gelu", batch_first=True, norm_first=True
    )
    layer.self_attn.dropout = 0.0
    return layer


def _decoder_layer(d_model: int, heads: int, d_ff: int, dropout: float) -> nn.Module:
    layer = nn.TransformerDecoderLayer(
        d_model, heads, d_ff, dropout, "gelu", batch_first=True, norm_first=True
    )
    layer.self_attn.dropout = layer.multihead_attn.dropout = 0.0
    return layer


class NaiveContext(nn.Module):
    """The champion's context, encoded for every sample."""

    def __init__(self, config: ChampionConfig) -> None:
        """Builds the encoder."""
        super().__init__()
        width, heads, dropout = config.d_context, config.context_heads, config.encoder_dropout
        self.demonstrations = config.demonstrations
        self.narrow = nn.Linear(config.d_model, width)
        self.positions = Positions2D(width)
        self.layer = _encoder_layer(width, heads, config.context_d_ff, dropout)
        self.norm, self.pair_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.cross_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, config.pair_d_ff),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(config.pair_d_ff, width),
        )
        self.weight = nn.Linear(width, 1)

    def forward(self, batch: NaiveBatch, colours: nn.Embedding) -> Tensor:
        """Returns (B, D) contexts."""
        inputs = self._cells(batch.demo_inputs, colours)
        outputs = self._cells(batch.demo_outputs, colours)
        pooled = _masked_mean(outputs, batch.demo_outputs.padding)
        attended, _ = self.cross_attention(
            pooled[:, None], inputs, inputs, key_padding_mask=batch.demo_inputs.padding
        )
        pairs = pooled + attended[:, 0]
        pairs = (pairs + self.feed_forward(self.pair_norm(pairs))).unflatten(
            0, (-1, self.demonstrations)
        )
        return (self.weight(pairs).softmax(1) * pairs).sum(1)

    def _cells(self, grids: NaiveGrids, colours: nn.Embedding) -> Tensor:
        x = self.narrow(colours(grids.cells[..., 0])) + self.positions(*_coordinates(grids))
        return self.norm(self.layer(x, src_key_padding_mask=grids.padding))


class NaiveEncoderDecoder(nn.Module):
    """Champion or encoder-decoder."""

    def __init__(self, config: ChampionConfig | EncoderDecoderConfig) -> None:
        """Builds the model."""
        super().__init__()
        champion = isinstance(config, ChampionConfig)
        width, heads, d_ff = config.d_model, config.heads, config.d_ff
        encoder_dropout = config.encoder_dropout if champion else config.dropout
        decoder_dropout = config.decoder_dropout if champion else config.dropout
        d_context = config.d_context if champion else 0
        self.colours = nn.Embedding(VOCABULARY, width)
        self.positions = Positions2D(width) if champion else Positions1D(width)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.context = NaiveContext(config) if champion else None
        self.encoder = nn.ModuleList(
            _encoder_layer(width, heads, d_ff, encoder_dropout)
            for _ in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            _decoder_layer(width, heads, d_ff, decoder_dropout)
            for _ in range(config.decoder_layers)
        )
        self.bridges = nn.ModuleList(Bridge(width, d_context) for _ in self.decoder if champion)
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.size_head = SizeHead(width + d_context)
        self.output = nn.Linear(width, COLOURS)
        self.size_code = SizeCode(width)

    def forward(self, batch: NaiveBatch) -> Logits:
        """Returns the logits of every target cell, given the true cells before it."""
        source, target = batch.source, batch.target
        memory = self.colours(source.cells[..., 0]) + self.positions(*_coordinates(source))
        memory = self.dropout(memory)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=source.padding)
        memory = self.encoder_norm(memory)
        summary = _masked_mean(memory, source.padding)
        context = None
        if self.context is not None:
            context = self.context(batch, self.colours)
            summary = torch.cat((summary, context), dim=1)
        before = F.pad(target.cells[:, :-1, 0], (1, 0), value=START)
        x = self.colours(before) + self.positions(*_coordinates(target))
        x = self.dropout(x + self.size_code(target.sizes)[:, None])
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        for index, layer in enumerate(self.decoder):
            x = layer(
                x,
                memory,
                tgt_mask=causal,
                tgt_key_padding_mask=target.padding,
                memory_key_padding_mask=source.padding,
            )
            if context is not None:
                x = self.bridges[index](x, context)
        return Logits(self.output(self.decoder_norm(x)), self.size_head(summary, source.sizes))


class NaiveRotaryLayer(nn.Module):
    """A causal layer with rotary positions, which `torch.nn` does not have."""

    def __init__(self, config: DecoderOnlyConfig, rotary: Rotary) -> None:
        """Builds the layer."""
        super().__init__()
        width = config.d_model
        self.heads, self.rotary = config.heads, rotary
        self.attention_norm, self.ff_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Maps (B, L, D) to (B, L, D); `mask` (B, 1, L, L) is True where a key may be seen."""
        normed, places = self.attention_norm(x), torch.arange(x.shape[1])
        query, key, value = (
            linear(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        query, key = self.rotary(query, places), self.rotary(key, places)
        attended = F.scaled_dot_product_attention(query, key, value, mask)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        hidden = self.dropout(F.gelu(self.wide(self.ff_norm(x))))
        return x + self.dropout(self.narrow(hidden))


class NaiveDecoderOnly(nn.Module):
    """Decoder-only, without demonstrations."""

    def __init__(self, config: DecoderOnlyConfig) -> None:
        """Builds the model."""
        super().__init__()
        width = config.d_model
        rotary = Rotary(width // config.heads, 2 * (MAX_CELLS + 1), config.rope_theta)
        self.colours = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(NaiveRotaryLayer(config, rotary) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.size_head = SizeHead(width)
        self.output = nn.Linear(width, COLOURS)
        self.size_code = SizeCode(width)

    def forward(self, batch: NaiveBatch) -> Logits:
        """Returns the logits of every target cell, given the true cells before it."""
        source, target = batch.source, batch.target
        lengths = [sizes.prod(dim=1).tolist() for sizes in (source.sizes, target.sizes)]
        sequences = [
            torch.cat((cells[:s, 0], torch.tensor([SEPARATOR, START]), answer[: t - 1, 0]))
            for cells, answer, s, t in zip(source.cells, target.cells, *lengths, strict=True)
        ]
        tokens = pad_sequence(sequences, True, PAD)
        length = tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        mask = causal & (tokens != PAD)[:, None, None, :]
        told = [
            code.expand(len(tokens), -1) * (torch.arange(len(tokens)) > s)[:, None]
            for code, tokens, s in zip(
                self.size_code(target.sizes), sequences, lengths[0], strict=True
            )
        ]
        x = self.dropout(self.colours(tokens) + pad_sequence(told, True))
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        answers = [states[s + 1 : s + 1 + t] for states, s, t in zip(x, *lengths, strict=True)]
        separators = torch.stack([states[s] for states, s in zip(x, lengths[0], strict=True)])
        return Logits(
            self.output(pad_sequence(answers, True)), self.size_head(separators, source.sizes)
        )


def has_naive_model(config: ModelConfig) -> bool:
    """Returns True for the architectures that have a plain network here.

    The baseline of the others is their own network on grids that are padded to 900 cells.
    """
    return isinstance(config, ChampionConfig | EncoderDecoderConfig | DecoderOnlyConfig)


def build_naive_model(config: ModelConfig) -> nn.Module:
    """Returns the baseline of an architecture that has one.

    Raises:
        ValueError: for decoder-only with demonstrations, and for other architectures.
    """
    if isinstance(config, ChampionConfig | EncoderDecoderConfig):
        return NaiveEncoderDecoder(config)
    if not isinstance(config, DecoderOnlyConfig) or config.demonstrations:
        raise ValueError(f"no baseline for {config}")
    return NaiveDecoderOnly(config)


def padded_to_canvas(grids: Grids) -> Grids:
    """Returns the grids padded to 900 cells, the largest grid there is."""
    extra = (0, MAX_CELLS - grids.cells.shape[1])
    return Grids(
        cells=F.pad(grids.cells, extra, value=PAD),
        rows=F.pad(grids.rows, extra),
        cols=F.pad(grids.cols, extra),
        sizes=grids.sizes,
        padded=True,
    )
