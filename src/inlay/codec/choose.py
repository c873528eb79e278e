# SPDX-License-Identifier: Apache-2.0
"""Choose the cells of a stream as it goes by: at one tau, or at a rate that a leaky bucket holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from inlay.backbones import BackboneSpec
from inlay.codec.config import EncodeConfig
from inlay.codec.gather import Gathering, gather
from inlay.codec.latents import LatentChunk
from inlay.codec.look import Looker
from inlay.codec.parts import Parts
from inlay.container.q8 import STEPS_PER_DEVIATION
from inlay.container.tokens import Tokens
from inlay.container.writer import added_bytes
from inlay.errors import ConfigError
from inlay.masking import Bucket, Budget, Income, Selector, SelectState
from inlay.types import Recipe

MOST_REPACKS = 8
_QUIET = 0.9  # quantile of the first changes that a stream without any tau starts from


def choose_together(choosers: Sequence[Chooser], chunks: Sequence[LatentChunk]) -> Gathering:
    """The next chunk of several streams whose choice is plain and whose chunks are of one kind: one scan for all."""
    first = choosers[0]
    assert first.plain and first.recipe is not None, "a plain choice has its tau from the start"
    references = [chooser.state.reference_BCHW for chooser in choosers]
    before = None if chunks[0].span.key else together([ref for ref in references if ref is not None])
    z_BCTHW = together([chunk.z_BCTHW for chunk in chunks])
    by_latents = chunks[0].compared_BCTHW is chunks[0].z_BCTHW
    compared = None if by_latents else together([chunk.compared_BCTHW for chunk in chunks])
    mask = first.config.mask(first.recipe.tau)
    keep_BTHW, after_BCHW, packed = first.parts.keep_cells(z_BCTHW, compared, before, mask)
    for chooser, reference_BCHW in zip(choosers, after_BCHW.chunk(len(choosers)), strict=True):
        chooser.state = replace(chooser.state, reference_BCHW=reference_BCHW)
    return Gathering(chunks, keep_BTHW, packed, first.recipe)


def together(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))


class Chooser:
    """One stream's choice: its recipe, and what must be remembered from chunk to chunk."""

    def __init__(self, parts: Parts, config: EncodeConfig, budget: Budget) -> None:
        if not budget.causal:
            raise ConfigError(
                f"{budget.kind} is a budget of a whole video, and a stream has no end that is known; "
                "give a tau, or a keep rate or bits with a bucket",
                about=(budget.kind, "bucket_seconds"),
            )
        if config.second_look and budget.bucket_seconds is not None:
            raise ConfigError(
                "a bucket steers slot by slot, and a second look needs whole chunks; give one of the two",
                about=("second_look", "bucket_seconds"),
            )
        self.parts, self.config, self.budget = parts, config, budget
        self.recipe: Recipe | None = None  # known at once if tau is, else with the first chunk
        dial = parts.dial(config)
        if budget.tau is not None:
            self.recipe = self._recipe(budget.tau)
        elif budget.bits is not None and dial is not None:  # the pair that gave about these bits where it was measured
            tau, step = dial.at(dial.place_of(budget))
            self.recipe = parts.recipe(replace(config, step=step), tau)
        elif budget.kind == "tau" or (parts.profile is not None and config.criterion == "latent-l1"):
            self.recipe = self._recipe(parts.default_tau(config.criterion))
        self.reset()

    def reset(self) -> None:
        self.state = SelectState()
        self._first = True

    @property
    def plain(self) -> bool:
        """Whether the mask is the scan at one tau, so that streams can be scanned together."""
        return self.budget.bucket_seconds is None and not (self.config.noise or self.config.second_look)

    def choose(self, chunk: LatentChunk) -> Tokens:
        """The tokens of the next chunk."""
        if self.recipe is None:
            self.recipe = self._recipe(usual_change(chunk))
        looker = Looker(self.parts, self.config, self.recipe.tau)
        if self.budget.bucket_seconds is None:
            chosen = looker.select(chunk, self.state)
            self.state = chosen.state
            return gather(chunk, chosen.keep_BTHW, self.recipe)
        return self._within_rate(looker.selector, chunk, self.recipe)

    def replay(self, tokens: Tokens) -> None:
        """Charge the bucket for a chunk that an earlier run has written."""
        if self.recipe is None:
            self.recipe = self._recipe(tokens.recipe.tau)
        if self.budget.bucket_seconds is not None:
            self._charge(tokens, self._incomes(tokens))
        self._first = False

    def _recipe(self, tau: float) -> Recipe:
        return self.parts.recipe(self.config, tau)

    # --- rate control -------------------------------------------------------------------------------------------------

    def _within_rate(self, selector: Selector, chunk: LatentChunk, recipe: Recipe) -> Tokens:
        nothing = torch.zeros_like(chunk.z_BCTHW[:, 0], dtype=torch.bool)
        none = gather(chunk, nothing, recipe)
        incomes = self._incomes(none, chunk.slot_frames(recipe.time_stride))
        bucket = self.state.bucket or self._new_bucket(none)
        if self.budget.bits is None:
            state = replace(self.state, bucket=bucket)
            chosen = selector.select(chunk.compared_BCTHW, state, key=chunk.span.key, incomes=incomes)
            self.state, self._first = chosen.state, False
            return gather(chunk, chosen.keep_BTHW, recipe)
        return self._within_bits(selector, chunk, recipe, bucket, incomes, none.mask[0].numel())

    def _within_bits(
        self, selector: Selector, chunk: LatentChunk, recipe: Recipe, bucket: Bucket, incomes: list[Income], cells: int
    ) -> Tokens:
        """Bits are known only once they are packed: where they are too many, fewer cells are allowed, once more."""
        usual = usual_bits(recipe, self.parts.spec)
        whole = usual * cells if chunk.span.key else 0.0
        room = bucket.allowed(summed(incomes).credit, max(whole - incomes[0].credit, 0.0))
        price = usual if self._first else self.state.price
        for _ in range(MOST_REPACKS):
            state = replace(self.state, bucket=bucket, price=price)
            chosen = selector.select(chunk.compared_BCTHW, state, key=chunk.span.key, incomes=incomes)
            tokens = gather(chunk, chosen.keep_BTHW, recipe)
            cost = self._bits(tokens)
            if cost <= room:
                break
            price *= max(1.25, cost / max(room, 1.0))
        self.state = replace(chosen.state, bucket=bucket)
        self._charge(tokens, incomes)
        self._first = False
        return tokens

    def _new_bucket(self, tokens: Tokens) -> Bucket:
        """Large enough for the slot that begins a video, which is kept whole and paid back within the bucket's time."""
        cells, info, spec = tokens.mask[0].numel(), tokens.info, self.parts.spec
        seconds = self.budget.bucket_seconds or 0.0
        slots_a_second = float(info.fps) / spec.time_stride
        if self.budget.keep is not None:
            whole, income = float(cells), self.budget.keep * cells
        else:
            whole = usual_bits(tokens.recipe, spec) * cells
            income = (self.budget.bits or 0.0) * info.width * info.height * spec.time_stride
        size, debt = max(seconds * slots_a_second * income, whole), max(whole - income, 0.0)
        saving = debt / max(size - income, debt) if debt else 0.0
        key_frames = self.config.key_frames(spec, info.fps)
        if key_frames is not None:  # debt and reserve within one key interval, where that is shorter
            saving = max(saving, min(2 * debt / (spec.slots(key_frames) * income), 1.0))
        more_keys = self.config.cuts or key_frames is not None
        return Bucket(size=size, reserve=debt if more_keys else 0.0, saving=saving)

    def _incomes(self, tokens: Tokens, frames: list[int] | None = None) -> list[Income]:
        """Of each slot of a chunk."""
        slots, cells, info = len(tokens.mask), tokens.mask[0].numel(), tokens.info
        each: Sequence[float] = frames or [info.frames / slots] * slots
        if self.budget.keep is not None:
            credits = [self.budget.keep * cells] * slots
        else:
            credits = [(self.budget.bits or 0.0) * info.width * info.height * n for n in each]
        return [Income(credit, n / float(info.fps)) for credit, n in zip(credits, each, strict=True)]

    def _charge(self, tokens: Tokens, incomes: list[Income]) -> None:
        """Bring the bucket to where it stands after these tokens."""
        bucket = self.state.bucket or self._new_bucket(tokens)
        price = self.state.price
        if self.budget.bits is None:
            for income, kept in zip(incomes, tokens.mask.flatten(1).sum(1).tolist(), strict=True):
                bucket = bucket.after(income, kept)
        else:
            cost, before = self._bits(tokens), bucket
            income = summed(incomes)
            bucket = bucket.after(income, cost)
            if tokens.spans[0].key:  # what its bits really came to is known now
                bucket = bucket.learnt(before.level - bucket.level, income.credit)
            price = cost / len(tokens) if len(tokens) else price
        self.state = replace(self.state, bucket=bucket, price=price)

    def _bits(self, tokens: Tokens) -> float:
        return 8.0 * added_bytes(tokens, first=self._first)


def summed(incomes: Sequence[Income]) -> Income:
    return Income(sum(income.credit for income in incomes), sum(income.seconds for income in incomes))


def usual_change(chunk: LatentChunk) -> float:
    """A tau to begin with where none is known: what few of the first cells exceed."""
    z = chunk.compared_BCTHW
    change = (z[:, :, 1:] - z[:, :, :-1]).abs().mean(1) if z.shape[2] > 1 else z.abs().mean(1)
    flat = change.flatten()
    return max(float(flat.sort().values[int(_QUIET * (len(flat) - 1))]), 1e-4)


def usual_bits(recipe: Recipe, spec: BackboneSpec) -> float:
    """Bits of a token before any was packed: what its numbers take raw, or 5 each where they are coded; a bit less with
    each doubling of their step."""
    if recipe.steps is None:
        return float(spec.channels * {"fp32": 32, "fp16": 16, "bf16": 16, "q8": 5, "q8-quick": 6}[recipe.precision])
    sizes = zip(spec.latent_std, recipe.steps, strict=True)
    return sum(max(5 + math.log2(std / (STEPS_PER_DEVIATION * step)), 1.0) for std, step in sizes)
