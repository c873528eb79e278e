# SPDX-License-Identifier: Apache-2.0
"""Tokens to what a fill is given: kept cells at their places, after what is held from the chunk before.

Chunks of one shape travel to the device together, in one piece of memory, and are laid out by one recorded call. How
many cells are kept differs from chunk to chunk, so each chunk has room for all: the shape stays, and with it the call.

Legend: B batch, C channels, T slots, H W grid, N cells of all slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inlay.codec.config import mode_of
from inlay.codec.transfer import upload
from inlay.container.tokens import Tokens
from inlay.errors import UsageError, check_kind
from inlay.fill import Filler, hold
from inlay.kernels import Replay
from inlay.masking.thin import completed

Placed = tuple[Tensor, Tensor, Tensor, int]  # latents, mask, the latent kept last at each place, slots that only lead
COUNT = torch.int64.itemsize


def check_chunk(tokens: Tokens) -> None:
    """Refuse what is not the tokens of one chunk."""
    check_kind(tokens, Tokens, "a decoder takes Tokens, a chunk at a time")
    if len(tokens.spans) != 1:
        raise UsageError(
            f"a decoder takes a chunk at a time, and these tokens are {len(tokens.spans)}; "
            "give each of tokens.chunks(), or all to Tokenizer.decode"
        )


def goes_on(tokens: Tokens, *, decoded: bool) -> bool:
    """Whether a chunk goes on from the one before it, which must then have been decoded."""
    key = tokens.spans[0].key
    if not key and not decoded:
        raise UsageError("this chunk goes on from one that was not decoded; begin at a key chunk")
    return not key


def place(filler: Filler, chunks: Sequence[Tokens], past_BCHW: Tensor | None) -> Placed:
    """What the fill of chunks of one kind is given; `past` is what was held after the chunks before.

    The first slots of the fill's answer may only lead the chunk: the past, kept whole, which any fill understands.
    """
    first = chunks[0]
    sizes = len(chunks), *first.mask.shape, first.channels
    packed = upload(pack_tokens(chunks, pinned=filler.device.type == "cuda"), filler.device)
    fills_first, thin = mode_of(first.recipe) == "dual-cache", first.recipe.key_slots == "thin"
    return _replay(packed, past_BCHW, sizes, name_of(first.values.dtype), name_of(filler.dtype), fills_first, thin)


def pack_tokens(chunks: Sequence[Tokens], *, pinned: bool) -> Tensor:
    """One piece of bytes: [B, N] int64 cells kept so far, [B, N, C] kept cells first, [B, N] mask."""
    first = chunks[0]
    B, N, C, kind = len(chunks), first.cells, first.channels, first.values.dtype
    packed = torch.empty(B * N * (COUNT + C * kind.itemsize + 1), dtype=torch.uint8, pin_memory=pinned)
    count_BN, values_BNC, keep_BN = taken_apart(packed, B, N, C, kind)
    for row, tokens in enumerate(chunks):
        keep_BN[row] = tokens.mask.flatten()
        torch.cumsum(keep_BN[row], 0, out=count_BN[row])
        values_BNC[row, : len(tokens)] = tokens.values
    return packed


def taken_apart(packed: Tensor, B: int, N: int, C: int, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The three parts of what `pack_tokens` packed."""
    count, values, keep = packed.split([B * N * COUNT, B * N * C * kind.itemsize, B * N])
    return count.view(torch.int64).view(B, N), values.view(kind).view(B, N, C), keep.view(torch.bool).view(B, N)


def lay_out(
    packed: Tensor,
    past_BCHW: Tensor | None,
    sizes: tuple[int, int, int, int, int],
    stored: str,
    dtype: str,
    fills_first: bool,
    thin: bool,
) -> Placed:
    """`place` on the device. The values of dropped cells are zeros, whatever the memory held where none were packed."""
    B, T, H, W, C = sizes
    count_BN, values_BNC, keep_BN = taken_apart(packed, B, T * H * W, C, getattr(torch, stored))
    own = (count_BN - 1).clamp_min(0)[..., None].expand(-1, -1, C)
    z_BNC = torch.where(keep_BN[..., None], values_BNC.gather(1, own), 0).to(getattr(torch, dtype))
    z_BCTHW = z_BNC.view(B, T, H, W, C).permute(0, 4, 1, 2, 3).contiguous()
    return known(z_BCTHW, keep_BN.view(B, T, H, W), past_BCHW, fills_first=fills_first, thin=thin)


def known(z_BCTHW: Tensor, keep_BTHW: Tensor, past_BCHW: Tensor | None, *, fills_first: bool, thin: bool) -> Placed:
    """What a fill is given of latents whose dropped cells are zeros."""
    if thin and past_BCHW is None:
        z_BCTHW, keep_BTHW = _begun(z_BCTHW, keep_BTHW, completed(z_BCTHW[:, :, 0], keep_BTHW[:, 0]))
    held_BCHW = hold(z_BCTHW, keep_BTHW, past_BCHW)[:, :, -1]
    if past_BCHW is None:
        return z_BCTHW, keep_BTHW, held_BCHW, 0
    if fills_first:
        first_BCHW = torch.where(keep_BTHW[:, :1], z_BCTHW[:, :, 0], past_BCHW)  # Appendix D: the fill cache
        return *_begun(z_BCTHW, keep_BTHW, first_BCHW), held_BCHW, 0
    return *_led_by(z_BCTHW, keep_BTHW, past_BCHW), held_BCHW, 1


def _begun(z_BCTHW: Tensor, keep_BTHW: Tensor, first_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """With a first slot whose holes are filled, and count as kept from then on."""
    z_BCTHW = torch.cat([first_BCHW[:, :, None], z_BCTHW[:, :, 1:]], dim=2)
    return z_BCTHW, torch.cat([torch.ones_like(keep_BTHW[:, :1]), keep_BTHW[:, 1:]], dim=1)


def _led_by(z_BCTHW: Tensor, keep_BTHW: Tensor, past_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """The past stands before the chunk as a slot kept whole, and is dropped again."""
    z_BCTHW = torch.cat([past_BCHW[:, :, None], z_BCTHW], dim=2)
    return z_BCTHW, torch.cat([torch.ones_like(keep_BTHW[:, :1]), keep_BTHW], dim=1)


def name_of(dtype: torch.dtype) -> str:
    """A recorded call takes words."""
    return str(dtype).removeprefix("torch.")


_replay = Replay(lay_out)
