# SPDX-License-Identifier: Apache-2.0
"""Frames in, as they come, tokens out, chunk by chunk: push, flush, reset; constant memory however long the video."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from inlay.codec.config import StreamConfig, mode_of
from inlay.codec.latents import LatentChunk, LatentStream
from inlay.container.chunk import pack_chunk
from inlay.container.layout import ENTRY_BYTES
from inlay.container.tokens import Tokens
from inlay.container.writer import to_bytes
from inlay.errors import ConfigError
from inlay.masking import Bucket, Budget, MaskConfig, Selector, SelectState
from inlay.tokenizer import Tokenizer
from inlay.types import Recipe
from inlay.video.frames import Video

MOST_REPACKS = 8
_QUIET = 0.9  # quantile of the first changes that a stream without any tau starts from


class StreamEncoder:
    """Keeps what changes, in a video that need never end.

    encoder = StreamEncoder(tokenizer, tau=0.3)
    for frames in camera:
        for tokens in encoder.push(frames): ...
    for tokens in encoder.flush(): ...

    The tokens do not depend on how the frames are cut into pieces. `budget` may name a tau, or with `bucket_seconds` a
    rate that is held from the past alone; budgets of a whole video are solved by `inlay.codec.solve`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: StreamConfig | None = None,
        *,
        budget: Budget | None = None,
        **options: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.config = (config or StreamConfig()).resolve(tokenizer.spec)
        self.budget = budget or Budget()
        if not self.budget.causal:
            raise ConfigError(
                f"--{self.budget.kind} is a budget of a whole video, and a stream has no end that is known; "
                "give --tau, or --keep or --bits with --bucket"
            )
        if self.budget.tau is not None:
            options["tau"] = self.budget.tau
        self._options = options
        self.recipe: Recipe | None = None  # known at once if tau is, else with the first chunk
        if options.get("tau") is not None or self.budget.kind == "tau" or tokenizer.profile is not None:
            self.recipe = self._make_recipe()
        criterion = options.get("criterion", "latent-l1")
        self.latents = LatentStream(tokenizer, self.config, criterion)
        self.reset()

    def reset(self) -> None:
        """Forget everything, caches and frames not yet encoded: another video begins."""
        self.latents.reset()
        self._state = SelectState()
        self._first = True
        self._ended: Bucket | None = None

    @property
    def latency_frames(self) -> int:
        """The most frames that a frame may have to wait for before its tokens come out."""
        return self.config.chunk_frames - 1

    @property
    def bucket(self) -> Bucket | None:
        """Where a causal rate control stands; after `flush`, where it stood at the end."""
        return self._state.bucket or self._ended

    def push(self, video: Video) -> list[Tokens]:
        """The chunks that these frames complete."""
        return [self._tokens(chunk) for chunk in self.latents.push(video)]

    def flush(self) -> list[Tokens]:
        """The rest, at the end of a video; the next frame begins another one."""
        tokens = [self._tokens(chunk) for chunk in self.latents.flush()]
        bucket = self._state.bucket
        self.reset()
        self._ended = bucket
        return tokens

    def encode(self, pieces: Iterable[Video]) -> Iterator[Tokens]:
        """All chunks of one video, as its pieces come in."""
        for piece in pieces:
            yield from self.push(piece)
        yield from self.flush()

    def replay(self, tokens: Tokens) -> None:
        """Charge the bucket for a chunk that an earlier run has written."""
        if self.recipe is None:
            self.recipe = self._make_recipe(tokens.recipe.tau)
        if self.budget.bucket_seconds is not None:
            self._charge(tokens, self._incomes(tokens))
        self._first = False

    def _make_recipe(self, tau: float | None = None) -> Recipe:
        options = self._options if tau is None else {**self._options, "tau": tau}
        return replace(self.tokenizer.recipe(**options), streaming=self.config.mode, created_by=self.config.maker)

    def _tokens(self, chunk: LatentChunk) -> Tokens:
        if self.recipe is None:
            self.recipe = self._make_recipe(usual_change(chunk))
        selector = self._selector(self.recipe)
        if self.budget.bucket_seconds is None:
            chosen = selector.select(chunk.compared_BCTHW, self._state, key=chunk.span.key)
            self._state = chosen.state
            return chunk.tokens(chosen.keep_BTHW, self.recipe)
        return self._within_rate(selector, chunk, self.recipe)

    def _selector(self, recipe: Recipe) -> Selector:
        return Selector(mask_config(recipe), noise=self.config.noise)

    # --- rate control -------------------------------------------------------------------------------------------------

    def _within_rate(self, selector: Selector, chunk: LatentChunk, recipe: Recipe) -> Tokens:
        none = chunk.tokens(torch.zeros_like(chunk.z_BCTHW[:, 0], dtype=torch.bool), recipe)
        incomes = self._incomes(none, chunk.slot_frames(recipe.time_stride))
        bucket = self._state.bucket or self._new_bucket(none)
        if self.budget.bits is None:
            state = replace(self._state, bucket=bucket)
            chosen = selector.select(chunk.compared_BCTHW, state, key=chunk.span.key, incomes=incomes)
            self._state, self._first = chosen.state, False
            return chunk.tokens(chosen.keep_BTHW, recipe)
        return self._within_bits(selector, chunk, recipe, bucket, incomes)

    def _within_bits(
        self, selector: Selector, chunk: LatentChunk, recipe: Recipe, bucket: Bucket, incomes: list[float]
    ) -> Tokens:
        """Bits are known only once they are packed: where they are too many, fewer cells are allowed, once more."""
        room = bucket.level + sum(incomes) + bucket.size
        price = 8 * raw_bytes(recipe, chunk.z_BCTHW.shape[1]) if self._first else self._state.price
        for _ in range(MOST_REPACKS):
            state = replace(self._state, bucket=bucket, price=price)
            chosen = selector.select(chunk.compared_BCTHW, state, key=chunk.span.key, incomes=incomes)
            tokens = chunk.tokens(chosen.keep_BTHW, recipe)
            cost = self._bits(tokens)
            if cost <= room:
                break
            price *= max(1.25, cost / max(room, 1.0))
        self._state = replace(chosen.state, bucket=bucket)
        self._charge(tokens, incomes)
        self._first = False
        return tokens

    def _new_bucket(self, tokens: Tokens) -> Bucket:
        """Large enough for the slot that begins a video, which is kept whole."""
        cells, info = tokens.mask[0].numel(), tokens.info
        seconds = self.budget.bucket_seconds or 0.0
        if self.budget.keep is not None:
            slots = float(info.fps) / tokens.recipe.time_stride
            return Bucket(size=max(seconds * slots * self.budget.keep * cells, cells))
        bits = self.budget.bits or 0.0
        whole = 8 * raw_bytes(tokens.recipe, tokens.channels) * cells
        return Bucket(size=max(seconds * float(info.fps) * bits * info.width * info.height, whole))

    def _incomes(self, tokens: Tokens, frames: list[int] | None = None) -> list[float]:
        """What each slot of a chunk earns."""
        slots, cells = len(tokens.mask), tokens.mask[0].numel()
        if self.budget.keep is not None:
            return [self.budget.keep * cells] * slots
        info = tokens.info
        each: Sequence[float] = frames or [info.frames / slots] * slots
        return [(self.budget.bits or 0.0) * info.width * info.height * n for n in each]

    def _charge(self, tokens: Tokens, incomes: list[float]) -> None:
        """Bring the bucket to where it stands after these tokens."""
        bucket = self._state.bucket or self._new_bucket(tokens)
        price = self._state.price
        if self.budget.bits is None:
            for income, kept in zip(incomes, tokens.mask.flatten(1).sum(1).tolist(), strict=True):
                bucket = bucket.after(income, kept)
        else:
            cost = self._bits(tokens)
            bucket = bucket.after(sum(incomes), cost)
            price = cost / len(tokens) if len(tokens) else price
        self._state = replace(self._state, bucket=bucket, price=price)

    def _bits(self, tokens: Tokens) -> float:
        if self._first:
            return 8.0 * len(to_bytes(tokens))
        return 8.0 * (len(pack_chunk(tokens, 0, precision=tokens.recipe.precision)[1]) + ENTRY_BYTES)


def mask_config(recipe: Recipe, tau: float | None = None) -> MaskConfig:
    """How cells are chosen."""
    mode_of(recipe)
    tau = recipe.tau if tau is None else tau
    return MaskConfig(tau=tau, criterion=recipe.criterion, reference=recipe.reference)


def usual_change(chunk: LatentChunk) -> float:
    """A tau to begin with where none is known: what few of the first cells exceed."""
    z = chunk.compared_BCTHW
    change = (z[:, :, 1:] - z[:, :, :-1]).abs().mean(1) if z.shape[2] > 1 else z.abs().mean(1)
    flat = change.flatten()
    return max(float(flat.sort().values[int(_QUIET * (len(flat) - 1))]), 1e-4)


def raw_bytes(recipe: Recipe, channels: int) -> float:
    """Bytes of a token before any was packed: what its numbers take raw, or 5 bits each where they are coded."""
    each = {"fp32": 32, "fp16": 16, "bf16": 16, "q8": 5}[recipe.precision]
    return channels * each / 8
