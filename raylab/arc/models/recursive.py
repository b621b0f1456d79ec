"""The recursive architecture: all cells at once, refined in a loop by one small block."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.config.models import RecursiveConfig
from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import COLOURS
from raylab.arc.models.base import ParallelModel, SizeCode, SizeHead, inside
from raylab.arc.models.context import D_CONTEXT, ContextEncoder
from raylab.arc.models.layers import AxialRotary, Dropout, EdgePositions, SelfAttention, masked_mean


class SwiGLU(nn.Module):
    """Gated feed-forward: down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.wide = nn.Linear(d_model, 2 * d_ff, bias=False)
        self.narrow = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., D) to (..., D)."""
        gate, up = self.wide(x).chunk(2, dim=-1)
        return self.narrow(F.silu(gate) * up)


class PreNormLayer(nn.Module):
    """Pre-norm transformer layer: self-attention, then feed-forward."""

    def __init__(self, config: RecursiveConfig, rotary: AxialRotary) -> None:
        super().__init__()
        self.attention = SelfAttention(config.d_model, config.heads, rotary)
        self.feed_forward = SwiGLU(config.d_model, config.d_ff)
        self.attention_norm = nn.RMSNorm(config.d_model)
        self.ff_norm = nn.RMSNorm(config.d_model)

    def forward(self, x: Tensor, **attention: Tensor | None) -> Tensor:
        """Maps (B, L, D) to (B, L, D); `attention` holds the arguments of `SelfAttention`."""
        x = x + self.attention(self.attention_norm(x), **attention)
        return x + self.feed_forward(self.ff_norm(x))


class Recursive(ParallelModel):
    """A block that reads source and canvas together and refines the canvas, step by step.

    Each token has a latent state; each cell of the canvas also has an answer state. A step updates
    the latent states `latent_steps` times, from the embedded tokens, the answer and themselves, and
    then the answer states.
    """

    def __init__(self, config: RecursiveConfig) -> None:
        super().__init__()
        width = config.d_model
        self.config = config
        self.colours = nn.Embedding(COLOURS + 1, width)
        self.roles = nn.Embedding(2, width)
        self.positions = EdgePositions(width)
        self.size_code = SizeCode(width)
        self.dropout = Dropout(config.embedding_dropout)
        self.embedding_norm = nn.RMSNorm(width)
        self.rotary = AxialRotary(width // config.heads)
        self.block = nn.ModuleList(PreNormLayer(config, self.rotary) for _ in range(config.layers))
        self.block_norm = nn.RMSNorm(width)
        self.latent = nn.Parameter(torch.randn(width))
        self.answer = nn.Parameter(torch.randn(width))
        self.context = ContextEncoder(config)
        self.widen = nn.Linear(D_CONTEXT, width, bias=False)
        self.size_head = SizeHead(width)
        self.output = nn.Linear(width, COLOURS)

    def read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        context = self.widen(self.context(batch, self.colours))
        source = self._embed(batch.source, 0, context)
        summary = masked_mean(
            self._block(source, *self._attention(batch.source)), batch.source.cells
        )
        return self.size_head(summary, batch.source.sizes), context

    def paint(self, batch: Batch, blank: Grids, encoded: Tensor) -> Sequence[Tensor]:
        source, canvas = self._embed(batch.source, 0, encoded), self._embed(blank, 1, encoded)
        base, first = torch.cat((source, canvas), dim=1), source.shape[1]
        attention, room = self._attention(batch.source, blank), (0, 0, first, 0)
        z, y = self.latent.expand_as(base), self.answer.expand_as(canvas)
        logits: list[Tensor] = []
        for _ in range(self.config.steps):
            for _ in range(self.config.latent_steps):
                z = self._block(z + base + F.pad(y, room), *attention)
            y = self._block(z + F.pad(y, room), *attention)[:, first:]
            logits.append(self.output(y))
            # Gradients stay within a step: each answer is compared with the target by itself.
            z, y = z.detach(), y.detach()
        return logits

    def _attention(self, *grids: Grids) -> tuple[Tensor, Tensor | None]:
        """Returns the places of the cells of grids, and their mask."""
        mask = None
        if any(own.padded for own in grids):
            mask = torch.cat([inside(own) for own in grids], dim=1)[:, None, None]
        return self.rotary.places(grids), mask

    def _block(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        for layer in self.block:
            x = layer(x, positions=positions, mask=mask)
        return self.block_norm(x)

    def _embed(self, grids: Grids, role: int, context: Tensor) -> Tensor:
        """Returns (B, L, D): colours (`PAD` on a canvas), positions, size, role and context."""
        condition = self.size_code(grids.sizes) + self.roles.weight[role] + context
        x = self.colours(grids.cells) + self.positions(grids) + condition[:, None]
        return self.dropout(self.embedding_norm(x))
