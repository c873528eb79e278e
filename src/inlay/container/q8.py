# SPDX-License-Identifier: Apache-2.0
"""q8: values as whole numbers of steps, coded by prediction, contexts and range coding, wave by wave.

A decoded value is float32(whole number) * float32(step): one multiplication, the same on every machine.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay.container.coder import TABLES, SymbolDecoder, SymbolEncoder, reach
from inlay.container.fit import fit
from inlay.container.predict import (
    CONTEXTS,
    FEATURES,
    MODE_FEATURES,
    MODES,
    Ints,
    Model,
    Neighbours,
    contexts,
    energy_sources,
    neighbours,
)
from inlay.errors import ConfigError, TokenFileError, UsageError
from inlay.types import COARSEST_STEP, FINEST_STEP

LARGEST = (1 << 22) - 1  # whole numbers up to here, exact in float32
STEPS_PER_DEVIATION = 16  # noise of step**2 / 12: 35 dB below the latent, under 0.1 dB of a 36 dB reconstruction
_FINEST, _COARSEST = -200, 200  # half octaves; steps stay normal numbers in bfloat16
_HEAD = struct.Struct("<II")  # weight sets (1, or one a channel); escapes
_LARGEST_ESCAPE = 1 << 24
_ROWS = 4096  # tokens that are worked on at once, in float64: few enough to stay in the cache
_REACH = np.array([reach(table) for table in range(TABLES)], dtype=np.int64)


def choose_steps(values: Tensor) -> Tensor:
    """[C] float32: about 1/16 of each channel's standard deviation, rounded to a half octave.

    The coarse grid costs nothing in rate against distortion, and tokens that are read and saved again meet the same
    steps, so they do not change a second time.
    """
    v = values.detach().cpu()
    if len(v) == 0:
        return torch.ones(v.shape[1])
    mean = sum(part.double().sum(0) for part in v.split(_ROWS)) / len(v)
    deviation = (sum((part.double() - mean).square_().sum(0) for part in v.split(_ROWS)) / len(v)).sqrt()
    wanted = torch.maximum(deviation / STEPS_PER_DEVIATION, v.abs().amax(0).double() / (LARGEST // 4))
    half_octaves = wanted.clamp_min(2.0**-100).log2().mul(2).round().clamp(_FINEST, _COARSEST)
    steps = torch.ldexp(torch.ones(()).double(), half_octaves.div(2, rounding_mode="floor"))
    steps = torch.where(half_octaves % 2 == 1, steps * (181 / 128), steps)  # sqrt(2) to the 8 bits of bfloat16
    return torch.where(wanted > 0, steps, 1.0).float()


def quantise(values: Tensor, steps: Tensor) -> Tensor:
    """[N, C] int32: the nearest multiple of each channel's step, halves to even."""
    v, divisor, largest = values.detach().cpu(), steps.double(), 0.0
    ints = torch.empty(v.shape, dtype=torch.int32)
    for part, out in zip(v.split(_ROWS), ints.split(_ROWS), strict=True):
        rounded = torch.round(part.double() / divisor)
        largest = max(largest, float(rounded.abs().max()) if len(rounded) else 0.0)
        out.copy_(rounded)
    if largest > LARGEST:
        n, c = divmod(int((v.double() / divisor).abs().argmax()), v.shape[1])
        raise UsageError(
            f"value {values[n, c]:g} of channel {c} is more than {LARGEST} steps of {steps[c]:g}; "
            f"use a coarser step or save with precision fp32"
        )
    return ints


def dequantise(ints: Tensor, steps: Tensor) -> Tensor:
    """[N, C] float32."""
    return ints.to(torch.float32) * steps.to(torch.float32)


def steps_for(values: Tensor, steps: Tensor | None) -> Tensor:
    """[C] float32: the steps given, in bfloat16, or those that suit the values."""
    if steps is None:
        return choose_steps(values)
    if len(steps) != values.shape[1]:
        raise ConfigError(f"{values.shape[1]} channels need {values.shape[1]} steps; got {len(steps)}", about="step")
    return steps


def rounded_q8(values: Tensor, steps: Tensor | None) -> Tensor:
    """[N, C] float32: the values as a reader will get them."""
    chosen = steps_for(values, steps)
    return dequantise(quantise(values, chosen), chosen)


def pack_q8(values: Tensor, mask_THW: NDArray[np.bool_], steps: Tensor | None) -> bytes:
    """The value section of a chunk."""
    steps = steps_for(values, steps)
    numbers = quantise(values, steps).numpy().astype(np.int64)
    if len(numbers) == 0:
        return b""
    near = neighbours(mask_THW)
    model, residual, tables = fit(numbers, near)
    widest = _REACH[tables]
    escaped = np.abs(residual) > widest
    symbols = np.where(escaped, 2 * widest + 1, residual + widest).astype(np.int32)
    encoder = SymbolEncoder()
    encoder.bells(symbols[near.order].ravel(), tables[near.order].ravel(), near.ends * numbers.shape[1])
    escapes = residual[near.order][escaped[near.order]].astype("<i4")
    head = _HEAD.pack(model.weights.shape[2], len(escapes))
    halves = (steps.numpy().astype("<f4").view("<u4") >> 16).astype("<u2")  # a recipe's steps have zeros below
    return head + halves.tobytes() + _pack_model(model) + escapes.tobytes() + encoder.words()


def unpack_q8(data: bytes, mask_THW: NDArray[np.bool_], channels: int) -> Tensor:
    """[N, C] float32: the inverse of `pack_q8`, bit for bit on every machine."""
    if not mask_THW.any():
        if data:
            raise TokenFileError(f"the value section has {len(data)} bytes that nothing refers to")
        return torch.zeros(0, channels)
    near = neighbours(mask_THW)
    sets, count = _HEAD.unpack(_take(data, 0, _HEAD.size))
    if sets not in (1, channels):
        raise TokenFileError(f"a chunk has 1 weight set or {channels}; found {sets}")
    steps, at = stored_steps(data, channels), _HEAD.size + 2 * channels
    model_bytes = 2 * channels + sum(MODE_FEATURES) * sets + MODES * channels + CONTEXTS
    model = _unpack_model(_take(data, at, model_bytes), channels, sets)
    at += model_bytes
    escapes = np.frombuffer(_take(data, at, 4 * count), dtype="<i4").astype(np.int64)
    if count and int(np.abs(escapes).max()) > _LARGEST_ESCAPE:
        raise TokenFileError(f"an escaped number is larger than {_LARGEST_ESCAPE}")
    numbers = _decode(SymbolDecoder(data[at + 4 * count :]), escapes, model, near)
    return dequantise(torch.from_numpy(numbers), steps)


def _decode(decoder: SymbolDecoder, escapes: Ints, model: Model, near: Neighbours) -> NDArray[np.int32]:
    n, channels = len(near.order), len(model.centres)
    past, energies = np.zeros((2, n + 1, channels), dtype=np.int32)  # as large as the file says: kept narrow
    mode, sources, used = near.seen.astype(np.int64), energy_sources(near), 0
    for start, end in pairwise([0, *near.ends]):
        wave = near.order[start:end]
        m = mode[wave]
        tables = model.tables(contexts(energies, sources[wave]), m)
        symbols = decoder.bells(tables.ravel()).reshape(tables.shape)
        widest = _REACH[tables]
        residual = symbols - widest
        escaped = symbols == 2 * widest + 1
        found = int(escaped.sum())
        if used + found > len(escapes):
            raise TokenFileError(f"the chunk uses more escaped numbers than the {len(escapes)} it holds")
        residual[escaped] = escapes[used : used + found]
        used += found
        past[wave] = model.guess(past, near.last[wave], m) + residual
        energies[wave] = model.energy(residual, m)
    if used != len(escapes):
        raise TokenFileError(f"the chunk holds {len(escapes)} escaped numbers and uses {used}")
    numbers = past[:n]
    numbers += model.centres.astype(np.int32)
    if max(int(numbers.max()), -int(numbers.min())) > LARGEST:
        raise TokenFileError(f"a number is larger than {LARGEST}")
    return numbers


def _take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise TokenFileError(f"the value section ends early: {at + size} bytes needed, {len(data)} found")
    return data[at : at + size]


def stored_steps(data: bytes, channels: int) -> Tensor:
    """[C] float32: the steps that a value section which is not empty says."""
    halves = np.frombuffer(_take(data, _HEAD.size, 2 * channels), dtype="<u2")
    steps = (halves.astype(np.uint32) << 16).view(np.float32)
    if not bool(((steps >= FINEST_STEP) & (steps <= COARSEST_STEP)).all()):
        raise TokenFileError("a quantiser step is not a positive number from 1e-37 to 1e30")
    return torch.from_numpy(steps.copy())


def _pack_model(model: Model) -> bytes:
    rows = [model.weights[m, :features].astype("i1").tobytes() for m, features in enumerate(MODE_FEATURES)]
    tail = model.base.astype("u1").tobytes() + model.shift.astype("i1").tobytes()
    return model.centres.astype("<i2").tobytes() + b"".join(rows) + tail


def _unpack_model(data: bytes, channels: int, sets: int) -> Model:
    centres = np.frombuffer(data, dtype="<i2", count=channels).astype(np.int64)
    at = 2 * channels
    weights = np.zeros((MODES, FEATURES, sets), dtype=np.int64)
    for m, features in enumerate(MODE_FEATURES):
        row = np.frombuffer(data, dtype="i1", count=features * sets, offset=at)
        weights[m, :features] = row.reshape(features, sets)
        at += features * sets
    base = np.frombuffer(data, dtype="u1", count=MODES * channels, offset=at).astype(np.int64)
    at += MODES * channels
    if int(base.max()) >= TABLES:
        raise TokenFileError(f"there are {TABLES} tables; the chunk asks for number {int(base.max())}")
    shift = np.frombuffer(data, dtype="i1", count=CONTEXTS, offset=at).astype(np.int64)
    return Model(centres=centres, weights=weights, base=base.reshape(MODES, channels), shift=shift)
