"""Training speed of the three architectures against a naive baseline, in one run.

The baseline is the same network from `torch.nn` layers in float32: random batches padded to their
longest, collated sample by sample, with materialised masks and demonstrations encoded per sample.
`torch.nn` also drops out attention probabilities; raylab does not.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from raylab.arc.batching import PairStore, demonstration_table
from raylab.arc.layers import MAX_CELLS, Positions1D, Positions2D, Rotary
from raylab.arc.models import SEPARATOR, START, VOCABULARY, Bridge, SizeHead
from raylab.arc.tasks import COLOURS, PAD
from raylab.config import ChampionConfig, DecoderOnlyConfig, EncoderDecoderConfig, ModelConfig

Sample = tuple[Tensor, Tensor]
"""Cells (L, 3): colour, row, column; and size (2,)."""


def naive_sample(store: PairStore, grid: int) -> Sample:
    """One grid of `store`."""
    height, width = store.sizes[grid].tolist()
    cells = store.cells[store.offsets[grid] : store.offsets[grid] + height * width].tolist()
    rows = [[cells[i], i // width, i % width] for i in range(height * width)]
    return torch.tensor(rows), torch.tensor([height, width])


def naive_collate(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """(B, L, 3) padded cells and (B, 2) sizes."""
    cells = [sample[0] for sample in samples]
    return (
        pad_sequence(cells, batch_first=True, padding_value=PAD),
        torch.stack([sample[1] for sample in samples]),
    )


def encoder_layer(d_model: int, heads: int, d_ff: int, dropout: float) -> nn.Module:
    """A pre-norm encoder layer as torch.nn has it."""
    return nn.TransformerEncoderLayer(
        d_model, heads, d_ff, dropout, "gelu", batch_first=True, norm_first=True
    )


class NaiveContext(nn.Module):
    """Demonstrations of every sample, encoded per sample."""

    def __init__(self, config: ChampionConfig) -> None:
        """Build the encoder."""
        super().__init__()
        width, dropout = config.d_context, config.encoder_dropout
        self.narrow = nn.Linear(config.d_model, width)
        self.positions = Positions2D(width)
        self.layer = encoder_layer(width, config.context_heads, config.context_d_ff, dropout)
        self.norm, self.pair_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.cross = nn.MultiheadAttention(width, config.context_heads, dropout, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, config.pair_d_ff),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(config.pair_d_ff, width),
        )
        self.weight = nn.Linear(width, 1)

    def read(self, grids: Tensor, colours: nn.Embedding) -> tuple[Tensor, Tensor]:
        """(N, L, D) states and (N, L) padding of (N, L, 3) grids."""
        padding = grids[..., 0] == PAD
        rows, cols = (grids[..., i].where(~padding, 0) for i in (1, 2))
        x = self.narrow(colours(grids[..., 0])) + self.positions(rows, cols, rows)
        return self.norm(self.layer(x, src_key_padding_mask=padding)), padding

    def forward(self, inputs: Tensor, outputs: Tensor, colours: nn.Embedding) -> Tensor:
        """(B, D) contexts of (B * K, L, 3) demonstrations."""
        x, x_padding = self.read(inputs, colours)
        y, y_padding = self.read(outputs, colours)
        inside = (~y_padding).float()[..., None]
        pooled = (y * inside).sum(1) / inside.sum(1)
        pairs = pooled + self.cross(pooled[:, None], x, x, key_padding_mask=x_padding)[0][:, 0]
        pairs = pairs + self.feed_forward(self.pair_norm(pairs))
        pairs = pairs.unflatten(0, (-1, 2))
        return (self.weight(pairs).softmax(1) * pairs).sum(1)


class NaiveEncoderDecoder(nn.Module):
    """Champion or encoder-decoder."""

    def __init__(self, config: ChampionConfig | EncoderDecoderConfig) -> None:
        """Build the model."""
        super().__init__()
        champion = isinstance(config, ChampionConfig)
        d, heads, d_ff = config.d_model, config.heads, config.d_ff
        encoder_dropout = config.encoder_dropout if champion else config.dropout
        decoder_dropout = config.decoder_dropout if champion else config.dropout
        self.colours = nn.Embedding(VOCABULARY, d)
        self.positions = Positions2D(d) if champion else Positions1D(d)
        self.context = NaiveContext(config) if champion else None
        self.encoder = nn.ModuleList(
            encoder_layer(d, heads, d_ff, encoder_dropout) for _ in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(
                d, heads, d_ff, decoder_dropout, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(config.decoder_layers)
        )
        d_context = config.d_context if champion else 0
        self.bridges = nn.ModuleList(Bridge(d, d_context) for _ in self.decoder if champion)
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.size_head = SizeHead(d + d_context)
        self.output = nn.Linear(d, COLOURS)

    def embed(self, tokens: Tensor, grids: Tensor) -> Tensor:
        """(B, L, D)."""
        padding = grids[..., 0] == PAD
        rows, cols = (grids[..., i].where(~padding, 0) for i in (1, 2))
        return self.colours(tokens) + self.positions(rows, cols, torch.arange(tokens.shape[1]))

    def forward(self, source, sizes, target, demos):
        """Logits of cells and sizes."""
        padding = source[..., 0] == PAD
        x = self.embed(source[..., 0], source)
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=padding)
        memory = self.encoder_norm(x)
        inside = (~padding).float()[..., None]
        summary = (memory * inside).sum(1) / inside.sum(1)
        context = None
        if self.context is not None:
            context = self.context(*demos, self.colours)
            summary = torch.cat((summary, context), 1)
        before = F.pad(target[:, :-1, 0], (1, 0), value=START)
        y = self.embed(before, target)
        causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        for index, layer in enumerate(self.decoder):
            y = layer(y, memory, tgt_mask=causal, memory_key_padding_mask=padding)
            if context is not None:
                y = self.bridges[index](y, context)
        return self.output(self.decoder_norm(y)), self.size_head(summary, sizes)
