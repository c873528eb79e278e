# SPDX-License-Identifier: Apache-2.0
"""Fit the model that codes the whole numbers of a chunk in few bits. Encoder only: a file never needs it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from inlay.container.coder import TABLES, TOTAL, frequencies, reach
from inlay.container.predict import (
    CONTEXTS,
    FEATURES,
    MODE_FEATURES,
    MODES,
    SMALL,
    WEIGHT_ONE,
    Ints,
    Model,
    Neighbours,
    Places,
    contexts,
    energy_sources,
)

Floats = NDArray[np.float64]

BLOCK = 8192  # tokens at a time: bounded memory for any frame size
_WIDEST = reach(TABLES - 1) + 1
_SHIFTS = range(-20, 21)
SAMPLE = 1 << 14  # tokens that the model is fitted to; of a larger chunk every second, third ... is looked at


def fit(numbers: Ints, near: Neighbours) -> tuple[Model, Ints, Ints]:
    """(model, residuals [N, C], tables [N, C])."""
    n, channels = numbers.shape
    some = slice(None, None, max(1, n // SAMPLE))
    centres = np.clip(np.rint(np.median(numbers[some], axis=0)), -(1 << 15), (1 << 15) - 1).astype(np.int64)
    past = np.concatenate([numbers - centres, np.zeros((1, channels), dtype=np.int64)])
    narrow = bool(np.abs(past).max() < SMALL)
    past = past.astype(np.int32) if narrow else past
    mode = near.seen.astype(np.int64)
    draft = Model(
        centres=centres,
        weights=_weights(past, near, mode, some.step),
        base=np.zeros((MODES, channels), dtype=np.int64),
        shift=np.zeros(CONTEXTS, dtype=np.int64),
    )
    residual = np.concatenate([past[b] - draft.guess(past, near.last[b], mode[b], narrow=narrow) for b in _blocks(n)])
    base = _base(residual[some], mode[some])
    model = Model(centres=centres, weights=draft.weights, base=base, shift=draft.shift)
    energies = np.concatenate([model.energy(residual, mode), np.zeros((1, channels), dtype=np.int64)]).astype(np.int32)
    sources = energy_sources(near)
    context = np.concatenate([contexts(energies, sources[b]) for b in _blocks(n)])
    shift = _shift(residual[some], base[mode[some]], context[some])
    model = Model(centres=centres, weights=draft.weights, base=base, shift=shift)
    return model, residual, model.tables(context, mode)


def _blocks(n: int) -> list[slice]:
    return [slice(at, min(at + BLOCK, n)) for at in range(0, n, BLOCK)]


def _weights(past: Ints, near: Neighbours, mode: Ints, step: int) -> Ints:
    """[M, F, C] or, where channels hardly differ, [M, F, 1]: least squares over every `step`-th token, in 64ths."""
    channels = past.shape[1]
    usual = 16 * np.median(np.abs(past[::step]), axis=0).astype(np.int64) + 16
    past = np.clip(past, -usual, usual)  # a few wild cells must not spoil the guess for all
    single = np.zeros((MODES, FEATURES, channels), dtype=np.int64)
    shared = np.zeros((MODES, FEATURES, 1), dtype=np.int64)
    saved_bits = 0.0
    for m, features in enumerate(MODE_FEATURES):
        tokens = np.flatnonzero(mode == m)[::step]
        if len(tokens) == 0:
            continue
        gram, cross, power = _moments(past, near.last, tokens, features)
        scale = power + len(tokens) / 12
        one = _solve((gram / scale[:, None, None]).sum(0)[None], (cross / scale[:, None]).sum(0)[None])
        each = _solve(gram, cross)
        shared[m, :features, 0], single[m, :features] = one[0], each.T
        errors = [_error(w / WEIGHT_ONE, gram, cross, scale) for w in (np.broadcast_to(one, each.shape), each)]
        saved_bits += float(0.5 * step * len(tokens) * np.log2(errors[0] / errors[1]).sum())
    cost_bits = 8 * sum(MODE_FEATURES) * (channels - 1)
    return single if saved_bits > cost_bits else shared


def _moments(past: Ints, last: Places, tokens: Ints, features: int) -> tuple[Floats, Floats, Floats]:
    """Sums over tokens, for each channel: features times features, features times number, number squared."""
    channels = past.shape[1]
    gram, cross = np.zeros((channels, features, features)), np.zeros((channels, features))
    power = np.zeros(channels)
    past_CN = np.ascontiguousarray(past.T, dtype=np.float64)
    for block in _blocks(len(tokens)):
        chosen = tokens[block]
        x_CFN = past_CN.take(last[chosen, :features].T, axis=1)
        y_CN = past_CN.take(chosen, axis=1)
        gram += x_CFN @ x_CFN.transpose(0, 2, 1)
        cross += (x_CFN @ y_CN[:, :, None])[:, :, 0]
        power += np.square(y_CN).sum(axis=1)
    return gram, cross, power


def _solve(gram: Floats, cross: Floats) -> Ints:
    """[C, F] in 64ths; a little ridge keeps flat channels and few tokens sane."""
    features = gram.shape[-1]
    ridge = 1e-4 * np.trace(gram, axis1=1, axis2=2)[:, None, None] / features + 1e-6
    weights = np.linalg.solve(gram + ridge * np.eye(features), cross[:, :, None])[:, :, 0]
    return np.clip(np.rint(weights * WEIGHT_ONE), -128, 127).astype(np.int64)


def _error(weights: Floats, gram: Floats, cross: Floats, scale: Floats) -> Floats:
    """[C] squared residuals, rounding included; `scale` is the numbers' own power with rounding."""
    explained = 2 * (weights * cross).sum(axis=1) - np.einsum("cf,cfg,cg->c", weights, gram, weights)
    return np.maximum(scale - explained, 1e-9)


@lru_cache(maxsize=1)
def _bits() -> Floats:
    """[tables, sizes]: what a residual of each size costs; the last size stands for all that are larger."""
    cost = np.empty((TABLES, _WIDEST + 1))
    for table in range(TABLES):
        r, bits = reach(table), -np.log2(frequencies(table) / TOTAL)
        cost[table, : r + 1] = bits[r : 2 * r + 1]
        cost[table, r + 1 :] = bits[-1] + 32
    return cost


def _cost(residual: Ints, group: Ints, groups: int) -> Floats:
    """[groups, tables]: the bits of each group's residuals with each table."""
    sizes = np.minimum(np.abs(residual), _WIDEST)
    widest = int(sizes.max()) + 1  # few chunks have any of the largest sizes, and most groups are empty
    counts = np.bincount((group * widest + sizes).ravel(), minlength=groups * widest).reshape(groups, widest)
    used = np.flatnonzero(counts.any(axis=1))
    cost = np.zeros((groups, TABLES))
    cost[used] = counts[used].astype(np.float64) @ _bits()[:, :widest].T
    return cost


def _base(residual: Ints, mode: Ints) -> Ints:
    """[M, C]: the best single table of each channel."""
    channels = residual.shape[1]
    group = mode[:, None] * channels + np.arange(channels)
    return _cost(residual, group, MODES * channels).argmin(axis=1).reshape(MODES, channels)


def _shift(residual: Ints, base: Ints, context: Ints) -> Ints:
    """[CONTEXTS]: by how many tables each context moves away from the base."""
    cost = _cost(residual, context * TABLES + base, CONTEXTS * TABLES).reshape(CONTEXTS, TABLES, TABLES)
    start, by = np.arange(TABLES), np.array(_SHIFTS)[:, None]
    totals = cost[:, start, np.clip(start + by, 0, TABLES - 1)].sum(axis=2)
    return np.argmin(totals, axis=1) + _SHIFTS[0]
