# SPDX-License-Identifier: Apache-2.0
"""Wan's autoencoder slot by slot, its feature cache taken out and put back, so that a video can go on in a later call.

diffusers keeps, for each causal convolution over time, the last frames that it saw: none at first, then one, then two;
where the decoder doubles time, the word "Rep" after the first slot. All of these mean "zeros before what was seen".
Here a state has two frames everywhere, zeros included, so that states of all ages have one shape, and streams are the
first axis of every tensor. Slots run one by one, as diffusers runs them: a video gives the same numbers however cut.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.base import State

FRAMES = 2  # that a convolution over three frames remembers


def encode_next(model: Any, x_BCTHW: Tensor, state: State, stride: int) -> tuple[Tensor, State]:
    """Means of the posterior for the next frames: 1 + k * `stride` without a state, k * `stride` with one."""
    x_BCTHW = fold_pixels(x_BCTHW, model.config.patch_size or 1)
    first = [1] if state is None else []
    sizes = first + [stride] * ((x_BCTHW.shape[2] - len(first)) // stride)
    cache, used, slots = open_cache(model.encoder, state), [0], []
    for part in x_BCTHW.split(sizes, dim=2):
        used = [0]
        found = model.quant_conv(model.encoder(part, feat_cache=cache, feat_idx=used))
        slots.append(found.chunk(2, dim=1)[0])  # the other half is the logarithm of the variance
    return torch.cat(slots, dim=2), close_cache(cache[: used[0]])


def decode_next(model: Any, z_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
    """Pixels of the next slots, not clamped; without a state the first slot is a single frame."""
    cache, used, frames = open_cache(model.decoder, state), [0], []
    for index, part in enumerate(z_BCTHW.split(1, dim=2)):
        used = [0]
        first = state is None and index == 0
        z_BC1HW = model.post_quant_conv(part)
        frames.append(model.decoder(z_BC1HW, feat_cache=cache, feat_idx=used, first_chunk=first))
    return unfold_pixels(torch.cat(frames, dim=2), model.config.patch_size or 1), close_cache(cache[: used[0]])


def open_cache(half: nn.Module, state: State) -> list[Any]:
    """A feature cache that goes on from a state: a place for each convolution; the network leaves some empty."""
    places = sum(isinstance(part, nn.Conv3d) for part in half.modules())
    kept = list(state) if isinstance(state, list | tuple) else []
    return kept + [None] * (places - len(kept))


def close_cache(cache: list[Any]) -> State:
    """The state that a feature cache amounts to."""
    state: list[Tensor] = []
    for kept in cache:
        if isinstance(kept, str):  # "Rep": zeros only, of the shape that the convolution before it saw
            state.append(torch.zeros_like(state[-1]))
        else:
            state.append(F.pad(kept, (0, 0, 0, 0, FRAMES - kept.shape[2], 0)))
    return [*state]


def fold_pixels(x_BCTHW: Tensor, side: int) -> Tensor:
    """Blocks of `side` x `side` pixels as channels: colour, then column, then row, as Wan 2.2 has them."""
    blocks = x_BCTHW.unflatten(4, (-1, side)).unflatten(3, (-1, side))  # B C T H row W column
    return blocks.permute(0, 1, 6, 4, 2, 3, 5).flatten(1, 3)


def unfold_pixels(x_BCTHW: Tensor, side: int) -> Tensor:
    """The inverse of `fold_pixels`."""
    blocks = x_BCTHW.unflatten(1, (-1, side, side))  # B C column row T H W
    return blocks.permute(0, 1, 4, 5, 3, 6, 2).flatten(5, 6).flatten(3, 4)
