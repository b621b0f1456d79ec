"""The three architectures: champion, encoder-decoder and decoder-only.

Facts of the architectures: Ingram & Merrit 2025, *An Empirical Answer to re-arc*. Each predicts
an output grid cell by cell from a start token, and its height and width from what is known before
the first cell. The token at step t carries the colour of cell t - 1 and the coordinates of cell t,
the cell to predict. Logits are over the ten colours: padding is never an answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.data.batching import MISSING, Batch, Grids
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, PAD
from raylab.arc.models.layers import (
    MAX_CELLS,
    CrossAttention,
    FeedForward,
    KeyValueCache,
    Layer,
    Memory,
    Positions1D,
    Positions2D,
    Rotary,
    Stack,
    key_mask,
    masked_mean,
)
from raylab.config.models import (
    ChampionConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
)

START = PAD + 1
SEPARATOR = PAD + 2
VOCABULARY = COLOURS + 3
PAIRS_AT_ONCE = 4


class Prediction(NamedTuple):
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
    def forward(self, batch: Batch) -> Prediction:
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


class ContextEncoder(nn.Module):
    """Demonstration pairs to one vector a query; each distinct pair is read once a batch."""

    def __init__(self, config: ChampionConfig) -> None:
        """Build the encoder."""
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
        """(B, D) contexts; zero for a query without demonstrations."""
        table = self.narrow(colours.weight)
        pairs = torch.cat([self._pairs(*part, table) for part in _parts(batch)])
        return self._pool(pairs, batch.demo_index)

    def _pairs(self, inputs: Grids, outputs: Grids, table: Tensor) -> Tensor:
        """(P, D) one vector a pair."""
        pooled = masked_mean(self._cells(outputs, table), outputs.cells)
        key, value = self.cross_attention.project(self._cells(inputs, table))
        attended = self.cross_attention(pooled[:, None], key, value, key_mask(inputs))
        pairs = pooled + attended[:, 0]
        return pairs + self.feed_forward(self.pair_norm(pairs))

    def _cells(self, grids: Grids, table: Tensor) -> Tensor:
        """(P, L, D) states of the cells."""
        order = torch.arange(grids.cells.shape[1], device=table.device)
        x = F.embedding(grids.cells, table) + self.positions(grids.rows, grids.cols, order)
        return self.norm(self.layer(x, mask=key_mask(grids)))

    def _pool(self, pairs: Tensor, index: Tensor) -> Tensor:
        """Attention-weighted mean of the (P, D) pairs that (B, K) `index` names."""
        missing = index == MISSING
        scores = F.pad(self.weight(pairs)[:, 0], (0, 1))[index].masked_fill(missing, -1e9)
        weights = scores.softmax(dim=1).masked_fill(missing, 0.0)
        return torch.einsum("bk,bkd->bd", weights, F.pad(pairs, (0, 0, 0, 1))[index])


def _parts(batch: Batch) -> Iterator[tuple[Grids, Grids]]:
    """Demonstration inputs and outputs, a few of like size at a time: a CPU feels all padding.

    A GPU takes all at once: there a launch costs more than padding does.
    """
    inputs, outputs = batch.demo_inputs, batch.demo_outputs
    count = len(inputs.cells)
    if inputs.cells.device.type != "cpu" or count <= PAIRS_AT_ONCE:
        yield inputs, outputs
        return
    for start in range(0, count, PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        yield inputs.part(part), outputs.part(part)


class Bridge(nn.Module):
    """Adds the context to every decoder state: concatenate, linear, ReLU, LayerNorm."""

    def __init__(self, d_model: int, d_context: int) -> None:
        """Build the bridge; the linear map of the concatenation is held as its two halves."""
        super().__init__()
        self.state = nn.Linear(d_model, d_model)
        self.context = nn.Linear(d_context, d_model, bias=False)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """(B, L, D) states with the (B, C) context."""
        return x + self.norm(F.relu(self.state(x) + self.context(context)[:, None]))


class EncoderDecoder(GridModel):
    """Encoder-decoder; with a context encoder it is the champion.

    The champion uses 2-D positions, one colour table for context, source and target, and a bridge
    from the context into every decoder layer's states; the plain one 1-D sinusoids.
    """

    def __init__(self, config: ChampionConfig | EncoderDecoderConfig) -> None:
        """Build the model."""
        super().__init__()
        champion = isinstance(config, ChampionConfig)
        width, heads, d_ff = config.d_model, config.heads, config.d_ff
        encoder_dropout = config.encoder_dropout if champion else config.dropout
        decoder_dropout = config.decoder_dropout if champion else config.dropout
        d_context = config.d_context if champion else 0
        self.colours = nn.Embedding(VOCABULARY, width)
        self.positions = Positions2D(width) if champion else Positions1D(width)
        self.context = ContextEncoder(config) if champion else None
        self.encoder = Stack(
            Layer(width, heads, d_ff, encoder_dropout) for _ in range(config.encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = Stack(
            Layer(width, heads, d_ff, decoder_dropout, cross=True)
            for _ in range(config.decoder_layers)
        )
        self.bridges = nn.ModuleList(
            Bridge(width, d_context) for _ in range(config.decoder_layers if champion else 0)
        )
        self.decoder_norm = nn.LayerNorm(width)
        self.size_head = SizeHead(width + d_context)
        self.output = nn.Linear(width, COLOURS)

    def forward(self, batch: Batch) -> Prediction:
        """Logits of every target cell, given the true cells before it."""
        memories, context, sizes = self._read(batch)
        target = batch.target
        x = self._embed(shifted(target), target.rows, target.cols, 0)
        for index, layer in enumerate(self.decoder):
            x = self._bridged(index, layer(x, causal=True, memory=memories[index]), context)
        return Prediction(self.output(self.decoder_norm(x)), sizes)

    def start(self, batch: Batch) -> Decoding:
        """Read source and demonstrations and predict the output's size."""
        memories, context, sizes = self._read(batch)
        empty = memories[0].key[:, :, :0]
        caches = [KeyValueCache(empty, empty) for _ in self.decoder]
        none = torch.zeros(len(empty), dtype=torch.int64, device=empty.device)
        return Decoding(sizes, caches, none, 0, memories, context)

    def step(
        self, decoding: Decoding, before: Tensor, rows: Tensor, cols: Tensor, t: int
    ) -> Tensor:
        """(B, 10) logits of cell t."""
        x = self._embed(before[:, None], rows[:, None], cols[:, None], t)
        positions = decoding.prefix + t
        seen = torch.ones(len(before), 1, 1, t + 1, dtype=torch.bool, device=x.device)
        for index, layer in enumerate(self.decoder):
            x = layer.step(x, positions, decoding.caches[index], seen, decoding.memories[index])
            x = self._bridged(index, x, decoding.context)
        return self.output(self.decoder_norm(x))[:, 0]

    def _read(self, batch: Batch) -> tuple[list[Memory], Tensor | None, Tensor]:
        """Memories of each decoder layer, context and size logits."""
        source = batch.source
        mask = key_mask(source)
        x = self._embed(source.cells, source.rows, source.cols, 0)
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


class DecoderOnly(GridModel):
    """One causal sequence: demonstrations if asked for, source, `SEPARATOR`, `START`, output.

    A sample's tokens lie next to one another, padding after the last, so that positions are its
    own and causal attention needs no mask.
    """

    def __init__(self, config: DecoderOnlyConfig) -> None:
        """Build the model."""
        super().__init__()
        width, heads = config.d_model, config.heads
        longest = 2 * (MAX_CELLS + 1) * (config.demonstrations + 1)
        self.colours = nn.Embedding(VOCABULARY, width)
        self.rotary = Rotary(width // heads, longest, config.rope_theta)
        self.layers = Stack(
            Layer(width, heads, config.d_ff, config.dropout, rotary=self.rotary)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.size_head = SizeHead(width)
        self.output = nn.Linear(width, COLOURS)

    def forward(self, batch: Batch) -> Prediction:
        """Logits of every target cell, given the true cells before it."""
        prefix = _prefix(batch)
        target = shifted(batch.target).masked_fill(batch.target.cells == PAD, PAD)
        x = self.colours(_left_aligned(torch.cat((prefix, target), dim=1)))
        positions = torch.arange(x.shape[1], device=x.device)
        for layer in self.layers:
            x = layer(x, causal=True, positions=positions)
        x = self.norm(x)
        known = (prefix != PAD).sum(1)
        steps = torch.arange(target.shape[1], device=x.device)
        places = (known[:, None] + steps).clamp(max=x.shape[1] - 1)
        cells = x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))
        return Prediction(self.output(cells), self._sizes(x, known, batch))

    def start(self, batch: Batch) -> Decoding:
        """Read source and demonstrations and predict the output's size."""
        prefix = _left_aligned(_prefix(batch))
        x, caches = self.colours(prefix), []
        positions = torch.arange(x.shape[1], device=x.device)
        for layer in self.layers:
            x, cache = layer.prefill(x, positions)
            caches.append(cache)
        known = (prefix != PAD).sum(1)
        sizes = self._sizes(self.norm(x), known, batch)
        return Decoding(sizes, caches, known, prefix.shape[1], [], None)

    def step(
        self, decoding: Decoding, before: Tensor, rows: Tensor, cols: Tensor, t: int
    ) -> Tensor:
        """(B, 10) logits of cell t."""
        x = self.colours(before[:, None])
        positions = decoding.prefix + t
        places = torch.arange(decoding.capacity + t + 1, device=x.device)
        seen = (places <= positions[:, None])[:, None, None, :]
        for layer, cache in zip(self.layers, decoding.caches, strict=True):
            x = layer.step(x, positions, cache, seen)
        return self.output(self.norm(x))[:, 0]

    def _sizes(self, x: Tensor, known: Tensor, batch: Batch) -> Tensor:
        """Size logits, read at the separator after the source."""
        separator = x[torch.arange(len(x), device=x.device), known - 1]
        return self.size_head(separator, batch.source.sizes)


def _prefix(batch: Batch) -> Tensor:
    """(B, L) tokens before `START`, with padding between the grids."""
    inputs, outputs, index = batch.demo_inputs.cells, batch.demo_outputs.cells, batch.demo_index
    tokens: list[Tensor] = []
    for demo in index.unbind(1):
        tokens += [
            _segment(F.pad(side, (0, 0, 0, 1), value=PAD)[demo]) for side in (inputs, outputs)
        ]
    return torch.cat((*tokens, _segment(batch.source.cells)), dim=1)


def _segment(cells: Tensor) -> Tensor:
    """(B, L + 1): cells and a `SEPARATOR`; all padding where there is no cell."""
    present = (cells[:, :1] != PAD).long()
    return torch.cat((cells, PAD + present * (SEPARATOR - PAD)), dim=1)


def _left_aligned(tokens: Tensor) -> Tensor:
    """Move the padding of (B, L) `tokens` behind the last token."""
    return tokens.gather(1, (tokens == PAD).long().argsort(dim=1, stable=True))


def demonstrations_of(model: ModelConfig) -> int:
    """Demonstration pairs the model reads with each query."""
    return 0 if isinstance(model, EncoderDecoderConfig) else model.demonstrations


def build_model(config: ModelConfig) -> GridModel:
    """The model of `config`, freshly initialised from PyTorch's random state."""
    if isinstance(config, DecoderOnlyConfig):
        return DecoderOnly(config)
    return EncoderDecoder(config)
