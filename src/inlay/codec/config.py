# SPDX-License-Identifier: Apache-2.0
"""How a long video is cut into chunks and what they pass on to one another: settings in, settings checked, out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import torch
from torch import Tensor

from inlay.backbones import BackboneSpec
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, TokenFileError, pick
from inlay.types import Recipe

MODES = {  # what chunk k + 1 knows of chunk k
    "clips": "nothing: every chunk is a key chunk",
    "dual-cache": "the latents kept last, for masking and for filling; each chunk goes through the network on its own",
    "stateful": "the kept latents and the network's own state: one slot 0 for the whole video",
}
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """How a long video is cut."""

    mode: str = field(default=AUTO, metadata={"help": "what a chunk knows of the one before", "choices": MODES})
    chunk_frames: int = field(default=33, metadata={"help": "frames encoded together: the latency"})
    key_seconds: float = field(default=10.0, metadata={"help": "longest time between key chunks; 0: no limit"})
    cuts: bool = field(default=True, metadata={"help": "a key chunk at every scene cut"})
    noise: bool = field(default=False, metadata={"help": "do not spend tokens on sensor noise"})

    def __post_init__(self) -> None:
        pick("streaming mode", self.mode, {AUTO: "", **MODES})
        if self.chunk_frames < 2:
            raise ConfigError(f"a chunk has at least 2 frames; got {self.chunk_frames}")
        if not 0 <= self.key_seconds < float("inf"):
            raise ConfigError(
                f"the key interval is a time in seconds, 0 for none; got {self.key_seconds:g} (--key-every)"
            )

    def resolve(self, spec: BackboneSpec) -> StreamConfig:
        """With the mode this backbone allows; refuses what it does not."""
        mode = self.mode
        if mode == AUTO:
            mode = "stateful" if spec.stateful else "dual-cache"
        if mode == "stateful" and not spec.stateful:
            raise ConfigError(f"{spec.name} cannot carry state between chunks; stream with dual-cache or clips")
        slots = spec.slots(self.chunk_frames)
        if slots < 2 or spec.frames(slots) != self.chunk_frames:
            near = spec.frames(max(slots, 2))
            raise ConfigError(
                f"{spec.name} takes chunks of {spec.first_slot_frames} + {spec.time_stride}k frames; "
                f"{self.chunk_frames} is none of these, {near} is (--chunk)"
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
        words += ["cuts"] * self.cuts + ["noise floor"] * self.noise
        return f"inlay: {', '.join(words)}"


def paper() -> StreamConfig:
    """Appendix D to the letter: dual cache, chunks of 33, nothing kept whole but the very first slot."""
    return StreamConfig(mode="dual-cache", key_seconds=0, cuts=False)


def mode_of(recipe: Recipe) -> str:
    """How the chunks of these tokens follow one another."""
    if recipe.streaming not in MODES:
        raise TokenFileError(
            f"the tokens are of the streaming mode {recipe.streaming!r}, which this version does not know"
        )
    return recipe.streaming


def continues(tokens: Tokens) -> bool:
    """Does this chunk go on within the network, with no slot 0 of its own?"""
    return not tokens.spans[0].key and mode_of(tokens.recipe) != "dual-cache"


def slot_of_frame(tokens: Tokens) -> Tensor:
    """[T] the slot of each frame of one chunk: slot 0, where a chunk has its own, shows one frame."""
    stride = tokens.recipe.time_stride
    lead = 0 if continues(tokens) else stride - 1
    return ((torch.arange(tokens.info.frames) + lead) // stride).clamp(max=len(tokens.mask) - 1)
