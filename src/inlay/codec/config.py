# SPDX-License-Identifier: Apache-2.0
"""How a video is encoded: the modes, and the settings with their checks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from torch import Tensor

from inlay.backbones import BackboneSpec
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, TokenFileError, check_number, pick
from inlay.masking import CACHE, CRITERIA, LADDER, REFERENCES, Budget, MaskConfig, Profile, step_size
from inlay.types import KEY_SLOTS, PRECISIONS, SCALES, STEPPED, Recipe

MODES = {  # what chunk k + 1 knows of chunk k
    "clips": "nothing: every chunk is a key chunk",
    "dual-cache": "the latents kept last, for masking and for filling; each chunk goes through the network on its own",
    "stateful": "the kept latents and the network's own state: one slot 0 for the whole video",
}
AUTO = "auto"
CLIP_FRAMES = 33  # frames encoded together by default


@dataclass(frozen=True, kw_only=True)
class EncodeConfig:
    """How a video is cut into chunks, how its cells are judged, how the kept ones are stored."""

    mode: str = field(default=AUTO, metadata={"help": "what a chunk knows of the one before", "choices": MODES})
    chunk_frames: int = field(default=CLIP_FRAMES, metadata={"help": "frames encoded together: the latency"})
    key_seconds: float = field(default=10.0, metadata={"help": "longest time between key chunks; 0: no limit"})
    cuts: bool = field(default=True, metadata={"help": "a key chunk at every scene cut"})
    noise: bool = field(default=False, metadata={"help": "do not spend tokens on sensor noise"})
    criterion: str = field(default="latent-l1", metadata={"help": "how change is measured", "choices": CRITERIA})
    reference: str = field(default="last-kept", metadata={"help": "what a cell is compared with"})
    precision: str = field(default="q8", metadata={"help": "how kept cells are stored", "choices": PRECISIONS})
    step: str | float | None = field(default=None, metadata={"help": "how coarsely q8 rounds", "choices": LADDER})
    key_slots: str = field(default=AUTO, metadata={"help": "cells of key slots to keep", "choices": KEY_SLOTS})
    scale: str = field(default=AUTO, metadata={"help": "size that the video is encoded at", "choices": SCALES})
    second_look: bool = field(default=False, metadata={"help": "fill once, and keep what the fill gets wrong"})
    fill: str | None = field(default=None, metadata={"help": "the fill that the token file suggests"})

    def __post_init__(self) -> None:
        pick("mode", self.mode, {AUTO: "", **MODES})
        pick("criterion", self.criterion, CRITERIA)
        pick("reference", self.reference, REFERENCES)
        pick("precision", self.precision, dict.fromkeys(PRECISIONS))
        pick("key slots", self.key_slots, {AUTO: "", **dict.fromkeys(KEY_SLOTS)})
        pick("scale", self.scale, {AUTO: "", **dict.fromkeys(SCALES)})
        given = self.step is not None and (self.step == CACHE or step_size(self.step) is not None)
        if given and self.precision not in STEPPED:
            raise ConfigError(
                f"a step is that of precision q8; {self.precision} has none, so give one of the two",
                about=("step", "precision"),
            )
        check_number("chunk_frames", self.chunk_frames, "a number of frames, at least 2", lambda v: v >= 2, whole=True)
        interval = "a time in seconds between key chunks, 0 for no limit"
        check_number("key_seconds", self.key_seconds, interval, lambda v: 0 <= v < float("inf"))
        for name in ("cuts", "noise", "second_look"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is true or false; got {getattr(self, name)!r}", about=name)
        if self.second_look and (self.criterion == "pixel-l1" or self.reference != "last-kept" or self.noise):
            raise ConfigError(
                "a second look compares latents with their fill, which goes on from what was kept last; it goes with "
                "reference last-kept and a criterion on latents, and without a noise floor",
                about=("second_look", "criterion", "reference", "noise"),
            )

    def settle(self, spec: BackboneSpec, budget: Budget, profile: Profile | None) -> EncodeConfig:
        """With all that was left open: the mode, and whether key slots are thinned out, as they are where tokens are
        counted and calibration found it better."""
        thin = profile is not None and profile.thin and budget.kind in ("keep", "tokens")
        key_slots = ("thin" if thin else "whole") if self.key_slots == AUTO else self.key_slots
        return replace(self.resolve(spec), key_slots=key_slots)

    def resolve(self, spec: BackboneSpec) -> EncodeConfig:
        """With the mode this backbone allows; refuses what it does not."""
        mode = self.mode
        if mode == AUTO:
            mode = "stateful" if spec.stateful else "dual-cache"
        if mode == "stateful" and not spec.stateful:
            raise ConfigError(
                f"{spec.name} cannot carry state between chunks; encode with dual-cache or clips", about="mode"
            )
        slots = spec.slots(self.chunk_frames)
        if slots < 2 or spec.frames(slots) != self.chunk_frames:
            near = spec.frames(max(slots, 2))
            raise ConfigError(
                f"{spec.name} takes chunks of {spec.first_slot_frames} + {spec.time_stride}k frames; "
                f"{self.chunk_frames} is none of these, {near} is",
                about="chunk_frames",
            )
        return replace(self, mode=mode)

    def key_frames(self, spec: BackboneSpec, fps: Fraction) -> int | None:
        """Frames from one key chunk to the next; None for no limit. Known from the start, so that it does not depend on
        how the frames arrive."""
        if self.mode == "clips":
            return self.chunk_frames
        if not self.key_seconds:
            return None
        most = int(self.key_seconds * fps)
        if self.mode == "stateful":
            slots = 1 + (most - spec.first_slot_frames) // spec.time_stride
            return spec.frames(max(slots, 2))
        return max(most // self.chunk_frames, 1) * self.chunk_frames

    @property
    def maker(self) -> str:
        """What a token file says of how it was cut; the same words mean the same chunks."""
        keys = f"key every {self.key_seconds:g} s" if self.key_seconds else "no key interval"
        words = [self.mode, f"chunks of {self.chunk_frames}", keys]
        words += ["cuts"] * self.cuts + ["noise floor"] * self.noise + ["second look"] * self.second_look
        return f"inlay: {', '.join(words)}"

    @property
    def kept_of_keys(self) -> str:
        """What is kept of key slots: all where nobody has chosen."""
        return "whole" if self.key_slots == AUTO else self.key_slots

    @property
    def coded_scale(self) -> str:
        """The scale that a video is encoded at: its own size where nobody has chosen."""
        return "1" if self.scale == AUTO else self.scale

    def mask(self, tau: float) -> MaskConfig:
        """How cells are chosen at this threshold."""
        return MaskConfig(tau=tau, criterion=self.criterion, reference=self.reference, key_slots=self.kept_of_keys)

    def recipe(self, spec: BackboneSpec, *, tau: float, fill: str, profile: Profile | None) -> Recipe:
        """What a token file says of all this.

        Args:
            fill: suggested where the settings name none.
            profile: has the gains that steps are made of, and the step where the settings name none.
        """
        step, steps = self._steps(spec, profile)
        return Recipe(
            step=step,
            steps=steps,
            backbone=spec.name,
            weight_hash=spec.weight_hash,
            tau=tau,
            criterion=self.criterion,
            reference=self.reference,
            precision=self.precision,
            fill=self.fill or fill,
            streaming=self.mode,
            time_stride=spec.time_stride,
            space_stride=spec.space_stride,
            created_by=self.maker,
            key_slots=self.kept_of_keys,
            scale=self.coded_scale,
        )

    def _steps(
        self, spec: BackboneSpec, profile: Profile | None
    ) -> tuple[float, tuple[float, ...]] | tuple[None, None]:
        """The place on the ladder and the step of each channel; None where q8 chooses for each chunk."""
        profile = profile or Profile(backbone=spec.name, weight_hash=spec.weight_hash, tau=0.0)
        if self.step == CACHE and profile.cache_step is None:
            raise ConfigError(
                f"the profile of {spec.name} has no step for caches; calibrate it again, or give a step",
                about=("step", "profile"),
            )
        if self.step is None:
            step = profile.step if self.precision in STEPPED else None
        else:
            step = profile.cache_step if self.step == CACHE else step_size(self.step)
        if step is None:
            return None, None
        steps = profile.steps(step)
        if len(steps) != spec.channels:
            raise ConfigError(
                f"the profile has gains of {len(steps)} channels, {spec.name} has {spec.channels}; calibrate it again",
                about="profile",
            )
        return step, steps


def paper_stream() -> EncodeConfig:
    """Appendix D to the letter: dual cache, chunks of 33, nothing kept whole but the very first slot."""
    return EncodeConfig(mode="dual-cache", key_seconds=0, cuts=False, key_slots="whole")


def paper_clips() -> EncodeConfig:
    """The setting of the paper's tables: clips of 33 frames, each on its own."""
    return EncodeConfig(mode="clips", cuts=False, key_slots="whole")


def training_cache() -> EncodeConfig:
    """All cells for a trainer, with a tau of 0: coarse enough to be small, read at hundreds of megabytes a second."""
    return EncodeConfig(precision="q8-quick", step=CACHE)


def mode_of(recipe: Recipe) -> str:
    """How the chunks of these tokens follow one another."""
    if recipe.streaming not in MODES:
        raise TokenFileError(
            f"the tokens are of the streaming mode {recipe.streaming!r}, which this version does not know"
        )
    return recipe.streaming


def continues(tokens: Tokens) -> bool:
    """Whether this chunk goes on within the network, with no slot 0 of its own."""
    return not tokens.spans[0].key and mode_of(tokens.recipe) != "dual-cache"


def slot_of_frame(tokens: Tokens) -> Tensor:
    """[T] the slot of each frame of one chunk: slot 0, where a chunk has its own, shows one frame."""
    stride = tokens.recipe.time_stride
    lead = 0 if continues(tokens) else stride - 1
    return ((torch.arange(tokens.info.frames) + lead) // stride).clamp(max=len(tokens.mask) - 1)
