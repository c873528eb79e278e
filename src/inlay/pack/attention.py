# SPDX-License-Identifier: Apache-2.0
"""Attention inside each clip of a packed batch: one plain way and three fast ones.

Legend: N cells of all clips, h heads, D head dimension. Cells of different clips never see one another.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import ShapeError, UsageError, pick
from inlay.types import describe

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from inlay.pack.batch import Packed

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@lru_cache(maxsize=1)  # one batch passes through many layers
def sdpa_mask(batch: Packed) -> Tensor:
    """Bool [N, N], true where two cells are of one clip: `attn_mask` of scaled_dot_product_attention."""
    ids_N = batch.clip_ids
    return ids_N[:, None] == ids_N[None]


def same_clip(batch: Packed) -> MaskMod:
    """The same rule as a `mask_mod` of FlexAttention; combine it with others by `and_masks`."""
    ids_N = batch.clip_ids

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ids_N[q] == ids_N[k]

    return mask_mod


@lru_cache(maxsize=1)
def flex_mask(batch: Packed) -> BlockMask:
    """The block mask of FlexAttention: blocks with no two cells of one clip are never computed."""
    from torch.nn.attention.flex_attention import create_block_mask

    n = len(batch.values)
    return create_block_mask(same_clip(batch), B=None, H=None, Q_LEN=n, KV_LEN=n, device=str(batch.values.device))


def attend(q_NhD: Tensor, k_NhD: Tensor, v_NhD: Tensor, batch: Packed, *, how: str = "nested") -> Tensor:
    """[N, h, D] attention of each cell to the cells of its own clip; all ways agree up to rounding."""
    if q_NhD.ndim != 3 or q_NhD.shape != k_NhD.shape or len(q_NhD) != len(v_NhD):
        raise ShapeError(f"q, k and v are [N, heads, D]; got {describe(q_NhD)}, {describe(k_NhD)}, {describe(v_NhD)}")
    if len(q_NhD) != len(batch.values):
        raise ShapeError(f"the batch has {len(batch.values)} cells; q has {len(q_NhD)}")
    return pick("attention", how, ATTENTIONS)(q_NhD, k_NhD, v_NhD, batch)


def per_clip(q_NhD: Tensor, k_NhD: Tensor, v_NhD: Tensor, batch: Packed) -> Tensor:
    """One clip after another: what the others are measured by."""
    lengths = batch.lengths.tolist()
    clips = zip(*(x.split(lengths) for x in (q_NhD, k_NhD, v_NhD)), strict=True)
    return torch.cat([_one(q, k, v) for q, k, v in clips])


def masked(q_NhD: Tensor, k_NhD: Tensor, v_NhD: Tensor, batch: Packed) -> Tensor:
    """All clips at once under a dense mask: simple, runs everywhere, and pays for N x N."""
    return _one(q_NhD, k_NhD, v_NhD, sdpa_mask(batch))


def nested(q_NhD: Tensor, k_NhD: Tensor, v_NhD: Tensor, batch: Packed) -> Tensor:
    """Jagged tensors: variable-length kernels on a GPU; elsewhere padded rows, one a clip."""
    if q_NhD.device.type != "cuda":
        return _rows(q_NhD, k_NhD, v_NhD, batch)
    q, k, v = (batch.nested(x).transpose(1, 2) for x in (q_NhD, k_NhD, v_NhD))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).values()


def flex(q_NhD: Tensor, k_NhD: Tensor, v_NhD: Tensor, batch: Packed) -> Tensor:
    """FlexAttention: compiled on first use on a GPU; elsewhere its plain form, which is there to be compared with."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q_NhD, k_NhD, v_NhD))
    if q.device.type == "cpu" and any(x.requires_grad for x in (q, k, v)):
        raise UsageError("FlexAttention has no backward pass on the CPU; train with the attention 'nested' there")
    run = _flex(compiled=q.device.type == "cuda")
    with warnings.catch_warnings():
        for harmless in ("flex_attention called without torch.compile", "The .grad attribute of a Tensor that is not"):
            warnings.filterwarnings("ignore", message=harmless)  # the second by the compiler, of what it was given
        return run(q, k, v, block_mask=flex_mask(batch))[0].transpose(0, 1)


ATTENTIONS = {"per-clip": per_clip, "masked": masked, "nested": nested, "flex": flex}


def _one(q_NhD: Tensor, k_NhD: Tensor, v_NhD: Tensor, mask_NN: Tensor | None = None) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_NhD, k_NhD, v_NhD))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask_NN)[0].transpose(0, 1)


def _rows(q_NhD: Tensor, k_NhD: Tensor, v_NhD: Tensor, batch: Packed) -> Tensor:
    (q, here_BL), (k, _), (v, _) = (batch.padded(x) for x in (q_NhD, k_NhD, v_NhD))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = None if bool(here_BL.all()) else here_BL[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)[here_BL]


@lru_cache(maxsize=2)
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
