# SPDX-License-Identifier: Apache-2.0
"""Values [N, C] and one step a channel in, whole numbers out, and back: q8 before any coding.

A decoded value is float32(whole number) * float32(step): one multiplication, the same on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inlay.errors import ConfigError, UsageError
from inlay.types import describe

LARGEST = (1 << 22) - 1  # whole numbers up to here, exact in float32
STEPS_PER_DEVIATION = 16  # noise of step**2 / 12: 35 dB below the latent, under 0.1 dB of a 36 dB reconstruction
_FINEST, _COARSEST = -200, 200  # half octaves; steps stay normal numbers in bfloat16


def choose_steps(values: Tensor) -> Tensor:
    """[C] float32: about 1/16 of each channel's standard deviation, rounded to a half octave.

    The coarse grid costs nothing in rate against distortion, and tokens that are read and saved again meet the same
    steps, so they do not change a second time.
    """
    v = values.detach().double().cpu()
    if len(v) == 0:
        return torch.ones(v.shape[1])
    wanted = torch.maximum(v.std(0, correction=0) / STEPS_PER_DEVIATION, v.abs().amax(0) / (LARGEST // 4))
    half_octaves = wanted.clamp_min(2.0**-100).log2().mul(2).round().clamp(_FINEST, _COARSEST)
    steps = torch.ldexp(torch.ones(()).double(), half_octaves.div(2, rounding_mode="floor"))
    steps = torch.where(half_octaves % 2 == 1, steps * (181 / 128), steps)  # sqrt(2) to the 8 bits of bfloat16
    return torch.where(wanted > 0, steps, 1.0).float()


def round_steps(steps: Tensor, channels: int) -> Tensor:
    """[C] float32: the steps as a file holds them, in bfloat16."""
    given = torch.as_tensor(steps).detach().cpu()
    if tuple(given.shape) != (channels,):
        raise ConfigError(f"{channels} channels need {channels} steps; got {describe(given)}")
    rounded = given.to(torch.bfloat16).float()
    if not bool(((rounded >= 2.0**-126) & (rounded <= 2.0**100)).all()):
        raise ConfigError(f"steps are positive numbers from 1e-37 to 1e30; got {rounded.min():g} to {rounded.max():g}")
    return rounded


def quantise(values: Tensor, steps: Tensor) -> Tensor:
    """[N, C] int32: the nearest multiple of each channel's step, halves to even."""
    ints = torch.round(values.detach().double().cpu() / steps.double())
    if ints.numel() and float(ints.abs().max()) > LARGEST:
        n, c = divmod(int(ints.abs().argmax()), ints.shape[1])
        raise UsageError(
            f"value {values[n, c]:g} of channel {c} is more than {LARGEST} steps of {steps[c]:g}; "
            f"use a coarser step or save with precision fp32"
        )
    return ints.to(torch.int32)


def dequantise(ints: Tensor, steps: Tensor) -> Tensor:
    """[N, C] float32."""
    return ints.to(torch.float32) * steps.to(torch.float32)
