# SPDX-License-Identifier: Apache-2.0
"""The blocks of LIT run window by window, each small enough for a CPU's cache.

After its convolution a window block mixes nothing across windows, so norm, attention and feed-forward of one window
run in one go and in place. Cells repeated outward at the border are read as keys but never asked as queries.

Legend: B batch, T slots, H W grid, D width, L tokens in one attention, E head size; s cells a side of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.kernels import bf16, int8
from inlay.kernels.rule import may_run

AT_ONCE = 1024  # tokens of axial attention that run together


class WindowLayers(Protocol):
    """The layers and sizes of a window block."""

    heads: int
    window: int
    offset: int
    near: nn.Conv2d
    norm1: nn.LayerNorm
    norm2: nn.LayerNorm
    qkv: nn.Linear
    proj: nn.Linear
    up: nn.Linear
    down: nn.Linear


@dataclass(frozen=True, kw_only=True, eq=False)
class Stretch:
    """One window along one axis: the cells there are, their places in the window, and which cell each place reads."""

    cells: slice
    places: slice
    reads: Tensor | None  # None: every place has its own cell


def stretches(size: int, window: int, offset: int) -> list[Stretch]:
    """The windows along an axis of `size` cells; each cell is in one of them."""
    found = []
    for start in range(-offset, size, window):
        first, last = max(start, 0), min(start + window, size)
        whole = last - first == window
        reads = None if whole else torch.arange(start, start + window).clamp(0, size - 1) - first
        found.append(Stretch(cells=slice(first, last), places=slice(first - start, last - start), reads=reads))
    return found


def asked_of(blocks: Sequence[WindowLayers], wanted_HW: Tensor) -> list[Tensor]:
    """[H, W] for each block: cells in windows that the wanted cells of the last one depend on.

    A window reads its own cells, and the convolution before it one more on every side. The rest may stay uncomputed:
    what is wanted is the same to the bit.
    """
    found: list[Tensor] = []
    for block in reversed(blocks):
        asked = torch.zeros_like(wanted_HW)
        for y in stretches(wanted_HW.shape[0], block.window, block.offset):
            for x in stretches(wanted_HW.shape[1], block.window, block.offset):
                asked[y.cells, x.cells] = wanted_HW[y.cells, x.cells].any()
        found.append(asked)
        wanted_HW = F.max_pool2d(asked.float()[None], 3, stride=1, padding=1)[0] > 0
    return found[::-1]


def window_block(
    block: WindowLayers, h_BTHWD: Tensor, rope: tuple[Tensor, Tensor], asked_HW: Tensor | None = None
) -> Tensor:
    """What `WindowBlock.whole` gives, to rounding; windows that are not asked for hold no answer."""
    B, T, H, W, D = h_BTHWD.shape
    s = block.window
    near = block.near(h_BTHWD.flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    h_BTHWD = h_BTHWD + near.unflatten(0, (B, T))
    tables = tuple(table.view(T, s, s, -1) for table in rope)
    for y in stretches(H, s, block.offset):
        for x in stretches(W, s, block.offset):
            if asked_HW is not None and not asked_HW[y.cells, x.cells].any():
                continue
            place = h_BTHWD[:, :, y.cells, x.cells]
            own = place.reshape(B, -1, D)
            qkv = product(block.norm1(own), block.qkv).view(*place.shape[:4], 3, block.heads, -1)
            own += product(attend(qkv, y, x, tables), block.proj)
            own += product(product(block.norm2(own), block.up, after="gelu"), block.down)
            place.copy_(own.view_as(place))
    return h_BTHWD


def product(x_BLC: Tensor, layer: nn.Linear, *, after: str = "none") -> Tensor:
    """[B, L, O]: in 8 bits where the CPU has them, off by 1 % of a change to cells that were dropped anyway."""
    if may_run("int8", tensors=(x_BLC,)):
        return int8.linear(x_BLC, int8.packed(layer), after=after)
    return F.gelu(layer(x_BLC)) if after == "gelu" else layer(x_BLC)


def attend(qkv_BTHW3nE: Tensor, y: Stretch, x: Stretch, tables: tuple[Tensor, ...]) -> Tensor:
    """[B, L, D] of the cells of one window."""
    q, k, v = qkv_BTHW3nE.unbind(4)
    for dim, stretch in ((2, y), (3, x)):
        if stretch.reads is not None:
            k, v = k.index_select(dim, stretch.reads), v.index_select(dim, stretch.reads)
    cos, sin = tables
    q = turned(q, cos[:, y.places, x.places], sin[:, y.places, x.places])
    k, v = turned(k, cos, sin), v.flatten(1, 3).transpose(1, 2)  # each [B, heads, L, E]
    return scored(q, k, v).transpose(1, 2).flatten(2)


def scored(q_BnLE: Tensor, k_BnME: Tensor, v_BnME: Tensor) -> Tensor:
    """The attention itself; with 16 bits where the CPU has instructions for it."""
    if may_run("bf16", tensors=(q_BnLE,)):
        told = bf16.attention(q_BnLE.flatten(0, 1), k_BnME.flatten(0, 1), v_BnME.flatten(0, 1))
        return told.view_as(q_BnLE)
    return F.scaled_dot_product_attention(q_BnLE, k_BnME, v_BnME)


def turned(x_BTHWnE: Tensor, cos_THWe: Tensor, sin_THWe: Tensor) -> Tensor:
    """[B, heads, L, E]: `lit.rotate` written straight to its place."""
    x = x_BTHWnE.flatten(1, 3).transpose(1, 2)
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos_THWe.flatten(0, 2), sin_THWe.flatten(0, 2)
    out = torch.empty(x.shape, dtype=x.dtype)
    first, second = out.chunk(2, dim=-1)
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
    torch.mul(a, sin, out=second).addcmul_(b, cos)
    return out


def some_rows(block: Callable[[Tensor], Tensor], h_NLD: Tensor) -> Tensor:
    """A block whose rows do not see one another, some rows at a time."""
    rows = max(1, AT_ONCE // h_NLD.shape[1])
    return torch.cat([block(part) for part in h_NLD.split(rows)])
