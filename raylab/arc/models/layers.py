"""The blocks that the architectures are built from.

Shape suffixes: B batch, L cells, H heads, D width. Padding lies after the last cell, so causal
attention never sees it and needs no mask. A mask is only built where keys are padded and attention
is bidirectional. There is no dropout on attention probabilities, so that training can use the fused
kernels too.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.data.batching import Grids
from raylab.arc.data.tasks import MAX_SIDE, PAD

MAX_CELLS = MAX_SIDE * MAX_SIDE


class Dropout(nn.Module):
    """Dropout whose mask costs little on a CPU.

    PyTorch draws a CPU mask one float at a time, which takes a fifth of a training step here.
    Sixteen random bits per element give the rate to 1/65536 in a quarter of the time.
    """

    def __init__(self, rate: float) -> None:
        """Drops with probability `rate` in [0, 1)."""
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zeroes elements of `x` in training and scales the others up."""
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        dropped = round(self.rate * 2**16)
        scale = x.new_tensor(2**16 / (2**16 - dropped))
        return x * torch.where(bits >= dropped - 2**15, scale, x.new_zeros(()))


def sinusoids(length: int, width: int) -> Tensor:
    """Returns (length, width) sinusoidal position codes (Vaswani et al. 2017), width even."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Positions1D(nn.Module):
    """Sinusoids over the index of a cell in its own grid."""

    table: Tensor

    def __init__(self, d_model: int) -> None:
        """Codes positions in `d_model` dimensions."""
        super().__init__()
        self.register_buffer("table", sinusoids(MAX_CELLS, d_model), persistent=False)

    def forward(self, rows: Tensor, cols: Tensor, order: Tensor) -> Tensor:
        """Returns (L, D) codes of cells at the (L,) indices `order` in their grids."""
        return self.table[order]


class Positions2D(nn.Module):
    """Sinusoids over the true row and column, half of the dimensions each."""

    table: Tensor

    def __init__(self, d_model: int) -> None:
        """Codes positions in `d_model` dimensions, a multiple of 4."""
        super().__init__()
        self.register_buffer("table", sinusoids(MAX_SIDE, d_model // 2), persistent=False)

    def forward(self, rows: Tensor, cols: Tensor, order: Tensor) -> Tensor:
        """Returns (B, L, D) codes of cells at (B, L) `rows`, `cols`."""
        return torch.cat((self.table[rows], self.table[cols]), dim=-1)


def key_mask(grids: Grids) -> Tensor | None:
    """Returns (B, 1, 1, L) bool, True for real cells; None if no grid is padded."""
    return (grids.cells != PAD)[:, None, None, :] if grids.padded else None


def masked_mean(x: Tensor, cells: Tensor) -> Tensor:
    """Returns the (B, D) mean of (B, L, D) `x` over the cells that are not padding."""
    inside = (cells != PAD).to(x.dtype)
    return torch.einsum("bld,bl->bd", x, inside) / inside.sum(1, keepdim=True)


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, d_head: int, length: int, theta: float) -> None:
        """Rotates pairs of `d_head` dimensions at `length` positions; an odd last one stays."""
        super().__init__()
        rates = theta ** (-torch.arange(0, d_head - 1, 2) / d_head)
        angles = torch.arange(length)[:, None] * rates
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates (B, H, L, D) `x` to its positions, (L,) or (B, L)."""
        cos, sin = self.cos[positions].to(x.dtype), self.sin[positions].to(x.dtype)
        if positions.dim() == 2:
            cos, sin = cos[:, None], sin[:, None]
        half = cos.shape[-1]
        a, b, odd = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat((a * cos - b * sin, a * sin + b * cos, odd), dim=-1)


@dataclass
class KeyValueCache:
    """Keys and values of the tokens decoded so far, each (B, H, capacity, D)."""

    keys: Tensor
    values: Tensor

    def reserve(self, room: int) -> None:
        """Makes room for `room` more tokens."""
        self.keys = F.pad(self.keys, (0, 0, 0, room))
        self.values = F.pad(self.values, (0, 0, 0, room))

    def append(self, key: Tensor, value: Tensor, positions: Tensor) -> None:
        """Writes (B, H, 1, D) `key`, `value` at (B,) `positions`."""
        batch = torch.arange(len(positions), device=positions.device)
        self.keys[batch, :, positions] = key[:, :, 0]
        self.values[batch, :, positions] = value[:, :, 0]

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values at the first `count` positions."""
        return self.keys[:, :, :count], self.values[:, :, :count]


class SelfAttention(nn.Module):
    """Multi-head self-attention with one packed projection."""

    def __init__(self, d_model: int, heads: int, rotary: Rotary | None = None) -> None:
        """Attends with `heads` heads of d_model / heads dimensions."""
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def project(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of (B, L, D) `x`, each (B, H, L, D / H)."""
        batch, length, width = x.shape
        packed = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        if self.rotary is not None and positions is not None:
            query, key = self.rotary(query, positions), self.rotary(key, positions)
        return query, key, value

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        """Returns (B, L, D) output; `mask` is True where a key may be seen."""
        attended = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        return self.out(attended.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Multi-head attention of queries to a memory."""

    def __init__(self, d_model: int, heads: int) -> None:
        """Attends with `heads` heads of d_model / heads dimensions."""
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of (B, L, D) `memory`, each (B, H, L, D / H)."""
        batch, length, width = memory.shape
        packed = self.key_value(memory).view(batch, length, 2, self.heads, width // self.heads)
        key, value = packed.permute(2, 0, 3, 1, 4)
        return key, value

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Returns (B, L, D) output for (B, L, D) `x`; `mask` is True where a key may be seen."""
        heads = (self.heads, x.shape[-1] // self.heads)
        query = self.query(x).unflatten(-1, heads).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, key, value, mask)
        return self.out(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        """Widens `d_model` to `d_ff` and back."""
        super().__init__()
        self.wide, self.narrow = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., D) to (..., D)."""
        return self.narrow(self.dropout(F.gelu(self.wide(x))))


class Memory(NamedTuple):
    """The memory of cross-attention: keys and values (B, H, L, D / H), and their mask."""

    key: Tensor
    value: Tensor
    mask: Tensor | None


class Layer(nn.Module):
    """Pre-norm transformer layer: self-attention, optional cross-attention, feed-forward."""

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_ff: int,
        dropout: float,
        *,
        cross: bool = False,
        rotary: Rotary | None = None,
    ) -> None:
        """Builds the layer."""
        super().__init__()
        self.attention = SelfAttention(d_model, heads, rotary)
        self.cross_attention = CrossAttention(d_model, heads) if cross else None
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.attention_norm, self.ff_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.cross_norm = nn.LayerNorm(d_model) if cross else None
        self.dropout = Dropout(dropout)

    def remember(self, memory: Tensor, mask: Tensor | None) -> Memory:
        """Projects (B, L, D) `memory` once, for any number of calls."""
        assert self.cross_attention is not None
        return Memory(*self.cross_attention.project(memory), mask)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        positions: Tensor | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Maps (B, L, D) to (B, L, D); `mask` is True where a key may be seen."""
        query, key, value = self.attention.project(self.attention_norm(x), positions)
        return self._finish(x, self.attention.attend(query, key, value, mask, causal), memory)

    def prefill(self, x: Tensor, positions: Tensor) -> tuple[Tensor, KeyValueCache]:
        """Runs `forward` causally and also returns the cached keys and values."""
        query, key, value = self.attention.project(self.attention_norm(x), positions)
        attended = self.attention.attend(query, key, value, None, causal=True)
        return self._finish(x, attended, None), KeyValueCache(key, value)

    def step(
        self,
        x: Tensor,
        positions: Tensor,
        cache: KeyValueCache,
        seen: Tensor,
        memory: Memory | None = None,
    ) -> Tensor:
        """Maps one token (B, 1, D) at (B,) `positions`; `seen` (B, 1, 1, n) masks cached keys."""
        query, key, value = self.attention.project(self.attention_norm(x), positions[:, None])
        cache.append(key, value, positions)
        keys, values = cache.first(seen.shape[-1])
        return self._finish(x, self.attention.attend(query, keys, values, seen, False), memory)

    def _finish(self, x: Tensor, attended: Tensor, memory: Memory | None) -> Tensor:
        x = x + self.dropout(attended)
        if self.cross_attention is not None and self.cross_norm is not None:
            assert memory is not None
            x = x + self.dropout(self.cross_attention(self.cross_norm(x), *memory))
        return x + self.dropout(self.feed_forward(self.ff_norm(x)))


class Stack(nn.ModuleList):
    """Layers, one after another."""

    def __iter__(self) -> Iterator[Layer]:
        """Returns the layers in order."""
        return cast("Iterator[Layer]", super().__iter__())
