"""The blocks that the architectures are built from.

Shape suffixes: B batch, L cells, H heads, D width. Padding lies after the last cell, so causal
attention never sees it and needs no mask. A mask is only built where keys are padded and attention
is bidirectional. Attention probabilities have no dropout, so that training can use the fused
kernels.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raylab.arc.data.batching import Grids
from raylab.arc.data.tasks import MAX_SIDE, PAD

MAX_CELLS = MAX_SIDE * MAX_SIDE
AXIAL_THETA = 100.0
"""Rows and columns turn by 1 down to nearly 1 / `AXIAL_THETA` radians a cell."""
CACHE_GROWTH = 64
"""A full cache of keys and values grows by this many tokens."""


class Dropout(nn.Module):
    """Dropout with masks that cost little on a CPU, at a rate that is exact to 1/65536."""

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
        # PyTorch draws a mask one float at a time, which takes a fifth of a training step. Sixteen
        # random bits an element take a quarter of that.
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        dropped = round(self.rate * 2**16)
        scale = x.new_tensor(2**16 / (2**16 - dropped))
        return x * torch.where(bits >= dropped - 2**15, scale, x.new_zeros(()))


class Positions(nn.Module):
    """Sinusoids over the index of a cell in its grid (Vaswani et al. 2017)."""

    table: Tensor

    def __init__(self, d_model: int) -> None:
        """Codes positions in `d_model` dimensions, an even number."""
        super().__init__()
        rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model))
        angles = torch.arange(MAX_CELLS)[:, None] * rates
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        self.register_buffer("table", table, persistent=False)

    def forward(self, places: Grids, first: int = 0) -> Tensor:
        """Returns (L, D) codes of the cells of (B, L) places, from index `first` on."""
        return self.table[first : first + places.rows.shape[1]]


class EdgePositions(nn.Module):
    """Codes of a cell's distances from all four edges of its grid, a quarter of the width each.

    All four use one table, so that mirrored and transposed cells have the same quarters in another
    order.
    """

    def __init__(self, d_model: int) -> None:
        """Codes positions in `d_model` dimensions, a multiple of 4."""
        super().__init__()
        self.table = nn.Embedding(MAX_SIDE, d_model // 4)

    def forward(self, grids: Grids, first: int = 0) -> Tensor:
        """Returns (B, L, D) codes of the places of cells; those of padding are arbitrary.

        They do not depend on `first`, the index of the first of the cells.
        """
        height, width = grids.sizes.unbind(1)
        below = (height[:, None] - 1 - grids.rows).clamp(min=0)
        right = (width[:, None] - 1 - grids.cols).clamp(min=0)
        return self.table(torch.stack((grids.rows, below, grids.cols, right), dim=2)).flatten(2)


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
        return turn(x, cos, sin) if positions.dim() == 1 else turn(x, cos[:, None], sin[:, None])


class AxialRotary(nn.Module):
    """Rotary embedding of rows, columns and roles of cells, by parts of a head.

    Attention then sees how far apart two cells are in each direction, also from a cell of the
    source to one of the output.
    """

    rates: Tensor
    role_rates: Tensor

    def __init__(self, d_head: int) -> None:
        """Turns pairs of `d_head` dimensions: a quarter by role, and half the rest by row."""
        super().__init__()
        pairs = d_head // 2
        by_side = (pairs - pairs // 4) // 2
        rates = AXIAL_THETA ** (-torch.arange(by_side) / max(by_side, 1))
        role_rates = torch.linspace(1.5, 0.375, pairs - 2 * by_side)
        self.register_buffer("rates", rates, persistent=False)
        self.register_buffer("role_rates", role_rates, persistent=False)

    def places(self, grids: Sequence[Grids]) -> Tensor:
        """Returns the places of grids that are read one after the other, each in its own role.

        They are (2, B, 1, L, D / 2) cosines and sines.
        """
        angles = torch.cat(
            [
                torch.cat(
                    (
                        own.rows[..., None] * self.rates,
                        own.cols[..., None] * self.rates,
                        (role * self.role_rates).expand(*own.rows.shape, -1),
                    ),
                    dim=-1,
                )
                for role, own in enumerate(grids)
            ],
            dim=1,
        )
        return torch.stack((angles.cos(), angles.sin()))[:, :, None]

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates (B, H, L, D) `x` to `places`."""
        cos, sin = positions.to(x.dtype)
        return turn(x, cos, sin)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs of the dimensions of (B, H, L, D) `x`; those without an angle stay."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), dim=-1)


class KeyValueCache:
    """Keys and values of the tokens decoded so far, each (B, H, capacity, D)."""

    def __init__(self) -> None:
        self.keys, self.values = torch.empty(0), torch.empty(0)

    def update(
        self, key: Tensor, value: Tensor, positions: Tensor, count: int
    ) -> tuple[Tensor, Tensor]:
        """Adds tokens, and returns the keys and values at the first `count` positions.

        The first call stores all of its tokens; each later call adds one to each sample, (B, H, 1,
        D) at (B, 1) `positions`.
        """
        if not self.keys.numel():
            self.keys, self.values = key, value
            return key, value
        # Growing by one token would copy the cache for every token.
        if count > self.keys.shape[2]:
            room = (0, 0, 0, CACHE_GROWTH)
            self.keys, self.values = F.pad(self.keys, room), F.pad(self.values, room)
        batch = torch.arange(len(positions), device=positions.device)
        self.keys[batch, :, positions[:, 0]] = key[:, :, 0]
        self.values[batch, :, positions[:, 0]] = value[:, :, 0]
        return self.keys[:, :, :count], self.values[:, :, :count]


class Memory(NamedTuple):
    """The memory of cross-attention: keys and values (B, H, L, D / H), and their mask."""

    key: Tensor
    value: Tensor
    mask: Tensor | None


def _heads(packed: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Splits (B, L, parts * D) into the parts, each (B, H, L, D / H)."""
    return packed.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind()


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **how: Any) -> Tensor:
    """Returns (B, L, D) attention of (B, H, L, D / H) queries, its heads joined."""
    attended = F.scaled_dot_product_attention(query, key, value, mask, **how)
    return attended.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head self-attention with one packed projection."""

    def __init__(
        self, d_model: int, heads: int, rotary: Rotary | AxialRotary | None = None
    ) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Returns (B, L, D) output for (B, L, D) `x`.

        A (B, 1, 1, keys) `mask` is True where a key may be seen; `positions` are those of the
        rotary embedding; `cache` holds the tokens before `x`, and then `x` as well.
        """
        query, key, value = _heads(self.qkv(x), 3, self.heads)
        if self.rotary is not None and positions is not None:
            query, key = self.rotary(query, positions), self.rotary(key, positions)
        if cache is not None and positions is not None:
            count = key.shape[2] if mask is None else mask.shape[-1]
            key, value = cache.update(key, value, positions, count)
        return self.out(attend(query, key, value, mask, is_causal=causal))


class CrossAttention(nn.Module):
    """Multi-head attention of queries to a memory."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def remember(self, memory: Tensor, mask: Tensor | None) -> Memory:
        """Projects (B, L, D) `memory`, once for all calls."""
        return Memory(*_heads(self.key_value(memory), 2, self.heads), mask=mask)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Returns (B, L, D) output for (B, L, D) `x`."""
        (query,) = _heads(self.query(x), 1, self.heads)
        return self.out(attend(query, *memory))


class FeedForward(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., D) to (..., D)."""
        return self.narrow(self.dropout(F.gelu(self.wide(x))))


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
        super().__init__()
        self.attention = SelfAttention(d_model, heads, rotary)
        self.cross_attention = CrossAttention(d_model, heads) if cross else None
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.attention_norm, self.ff_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.cross_norm = nn.LayerNorm(d_model) if cross else None
        self.dropout = Dropout(dropout)

    def remember(self, memory: Tensor, mask: Tensor | None) -> Memory:
        assert self.cross_attention is not None
        return self.cross_attention.remember(memory, mask)

    def forward(self, x: Tensor, *, memory: Memory | None = None, **attention: Any) -> Tensor:
        """Maps (B, L, D) to (B, L, D); `attention` holds the arguments of `SelfAttention`."""
        x = x + self.dropout(self.attention(self.attention_norm(x), **attention))
        if self.cross_attention is not None and self.cross_norm is not None:
            assert memory is not None
            x = x + self.dropout(self.cross_attention(self.cross_norm(x), memory))
        return x + self.dropout(self.feed_forward(self.ff_norm(x)))


class Stack(nn.ModuleList):
    """Layers, one after another."""

    def __iter__(self) -> Iterator[Layer]:
        return cast("Iterator[Layer]", super().__iter__())
