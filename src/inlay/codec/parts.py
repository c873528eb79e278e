# SPDX-License-Identifier: Apache-2.0
"""`Parts`: a frozen backbone on its device, its profile and its fills: what an encoder and a decoder are joined from.

Legend: B batch, C channels, T frames or slots, H W height and width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.backbones import Backbone, BackboneSpec, State, StatefulBackbone
from inlay.codec.config import EncodeConfig
from inlay.codec.cuts import Seen, look_at_frames, look_at_slots
from inlay.codec.packing import Packed, keep_cells
from inlay.codec.transfer import upload
from inlay.codec.watch import Watch
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, MissingError, ShapeError, UsageError, check_kind
from inlay.fill import Filler, Lit
from inlay.kernels import Branch, Replay, compile_halves
from inlay.masking import Budget, Dial, MaskConfig, Profile
from inlay.types import STEPPED, Recipe
from inlay.video.frames import Video, to_frames, to_pixels

if TYPE_CHECKING:
    from inlay.codec.latents import LatentChunk

Carry = tuple[State, Seen | None]  # what a chunk leaves to the next: the network's state, and what was seen last
SLOTS_AT_ONCE = 32  # of a chunk that are decoded together
CPU_BATCH, GPU_BATCH = 1, 8  # streams that go through the network together


class Parts:
    """The networks, run on the fast path of their device, with everyone told who looks on."""

    def __init__(
        self,
        backbone: Backbone,
        *,
        profile: Profile | None = None,
        filler: Filler | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if isinstance(backbone, str | PathLike):
            raise UsageError(
                f"this takes a backbone that is loaded; Tokenizer.from_pretrained({str(backbone)!r}) loads one"
            )
        self.backbone = backbone
        self.spec: BackboneSpec = backbone.spec
        self.profile = profile
        self.device, self.dtype = torch.device(device), dtype
        self.filler = filler or Filler(device=device, dtype=dtype)
        self.watches: tuple[Watch, ...] = ()
        compile_halves(backbone, self.device)
        self._encode, self._decode = Replay(backbone.encode), Replay(backbone.decode)
        self._encode_frames, self._keep_cells = Replay(self._frames_to_latents), Replay(keep_cells)
        self._decode_frames = Replay(self._latents_to_frames)
        self._stateful = backbone if isinstance(backbone, StatefulBackbone) else None
        if self._stateful is not None:
            self._encode_next, self._decode_next = (
                Replay(self._stateful.encode_next),
                Replay(self._stateful.decode_next),
            )

    @property
    def batch(self) -> int:
        """How many streams go through the network together where nobody says otherwise."""
        return GPU_BATCH if self.device.type == "cuda" else CPU_BATCH

    @property
    def ahead(self) -> int:
        """How many chunks may be launched before the one before them is done: a GPU works while Python prepares."""
        return 2 if self.device.type == "cuda" else 0

    @contextmanager
    def watched_by(self, watch: Watch) -> Iterator[None]:
        """Let `watch` look on inside the block."""
        before, self.watches = self.watches, (*self.watches, watch)
        try:
            yield
        finally:
            self.watches = before

    def default_tau(self, criterion: str) -> float:
        """The calibrated threshold of this backbone."""
        if self.profile is None or criterion != "latent-l1":
            what = "`inlay calibrate` finds one, or give it" if criterion == "latent-l1" else "give one"
            raise ConfigError(f"there is no default tau for {self.spec.name} with {criterion}; {what}", about="tau")
        return self.profile.tau

    def dial(self, config: EncodeConfig) -> Dial | None:
        """Tau and step as one setting, where the profile has it and these settings leave both open."""
        own = config.step is None and config.precision in STEPPED and config.criterion == "latent-l1"
        return self.profile.dial if own and self.profile is not None else None

    def settle(self, config: EncodeConfig | None, budget: Budget) -> EncodeConfig:
        """Settings with all that they leave open chosen for this backbone and this budget."""
        config = config or EncodeConfig()
        check_kind(config, EncodeConfig, "settings are an EncodeConfig")
        if config.fill is not None:
            self.filler.check_name(config.fill)
        return config.settle(self.spec, budget, self.profile)

    def recipe(self, config: EncodeConfig, tau: float) -> Recipe:
        """What token files say of how they were made."""
        return config.recipe(self.spec, tau=tau, fill=self.filler.default, profile=self.profile)

    def pixels(self, clips: Sequence[Video], *, continued: bool = False) -> Tensor:
        """[B, 3, T, H, W], padded by repetition to what the backbone takes; `continued`: with no first slot."""
        shapes = {tuple(clip.frames.shape) for clip in clips}
        if len(shapes) != 1:
            raise ShapeError(f"clips of one batch must have one shape; got {sorted(shapes)}")
        return self.padded(torch.stack([self.upload(clip) for clip in clips]), continued=continued)

    def upload(self, video: Video) -> Tensor:
        """[T, H, W, 3] uint8 on the device; from pinned memory while the device is at work."""
        return upload(video.frames, self.device)

    def padded(self, frames_BTHWC: Tensor, *, continued: bool = False) -> Tensor:
        """Frames on the device to pixels [B, 3, T, H, W], as `pixels` gives them."""
        _, frames, height, width, _ = frames_BTHWC.shape
        rows, columns = self.spec.grid(height, width)
        stride = self.spec.time_stride
        pad_t = -frames % stride if continued else self.spec.frames(self.spec.slots(frames)) - frames
        pad_h, pad_w = rows * self.spec.space_stride - height, columns * self.spec.space_stride - width
        x_BCTHW = to_pixels(frames_BTHWC, self.dtype)
        if not (pad_t or pad_h or pad_w):
            return x_BCTHW
        return F.pad(x_BCTHW, (0, pad_w, 0, pad_h, 0, pad_t), mode="replicate")

    @torch.inference_mode()
    def encode_pixels(self, x_BCTHW: Tensor) -> Tensor:
        """Latents of clips on their own, as the network gives them."""
        self._tell("encode", len(x_BCTHW))
        return self._encode(x_BCTHW)

    @torch.inference_mode()
    def encode_frames(
        self, frames_BTHWC: Tensor, continued: bool, carries: bool, looks: bool, before: Carry | None
    ) -> tuple[Tensor, Carry, Tensor | None]:
        """Float32 latents of the next chunk of each stream, what to carry on, and the numbers that tell of cuts.

        Args:
            continued: the frames follow others, and there is no first slot.
            carries: the network's own state goes from chunk to chunk.
            looks: measure what tells of cuts.
            before: what the chunk before left to carry on.
        """
        self._tell("encode", len(frames_BTHWC))
        return self._encode_frames(frames_BTHWC, continued, carries, looks, before)

    def _frames_to_latents(
        self, frames_BTHWC: Tensor, continued: bool, carries: bool, looks: bool, before: Carry | None
    ) -> tuple[Tensor, Carry, Tensor | None]:
        state, seen = before or (None, None)
        beside = Branch(frames_BTHWC)  # frames are looked at while the network runs
        with beside:
            jumps = look_at_frames(frames_BTHWC, seen) if looks else None
        x_BCTHW = self.padded(frames_BTHWC, continued=continued)
        if carries:
            assert self._stateful is not None, "only such a network has a state to carry"
            z_BCTHW, state = self._stateful.encode_next(x_BCTHW, state)
        else:
            z_BCTHW, state = self.backbone.encode(x_BCTHW), None
        z_BCTHW = z_BCTHW.float()
        beside.join()
        if jumps is None:
            return z_BCTHW, (state, None), None
        changes, last_slot = look_at_slots(z_BCTHW, seen)
        return z_BCTHW, (state, [last_slot, jumps[1]]), torch.cat([changes, jumps[0]], dim=1)

    @torch.inference_mode()
    def keep_cells(
        self, z_BCTHW: Tensor, compared_BCTHW: Tensor | None, before_BCHW: Tensor | None, mask: MaskConfig
    ) -> tuple[Tensor, Tensor, Packed]:
        """The mask of chunks at one tau, the reference after it, and their kept cells."""
        how = mask.criterion, mask.reference, mask.key_slots, float(mask.tau)
        return self._keep_cells(z_BCTHW, compared_BCTHW, before_BCHW, *how)

    @torch.inference_mode()
    def encode_next(self, x_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
        """Latents of the next chunk of each stream, and the state after it."""
        self._tell("encode", len(x_BCTHW))
        return self._encode_next(x_BCTHW, state)

    @torch.inference_mode()
    def decode_latents(self, z_BCTHW: Tensor) -> Tensor:
        """Pixels of clips on their own, not yet clamped."""
        self._tell("decode", len(z_BCTHW))
        return self._decode(z_BCTHW)

    @torch.inference_mode()
    def decode_next(self, z_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
        """Pixels of the next chunk of each stream, and the state after it."""
        self._tell("decode", len(z_BCTHW))
        return self._decode_next(z_BCTHW, state)

    @torch.inference_mode()
    def decode_frames(
        self, z_BCTHW: Tensor, carries: bool, height: int, width: int, state: State
    ) -> tuple[Tensor, State]:
        """[B, T, H, W, 3] uint8 of the next chunk of each stream, and the state after it.

        Args:
            carries: the network's own state goes from chunk to chunk.
            height: of the true picture; what it was padded by is cut off. So is `width`.
        """
        self._tell("decode", len(z_BCTHW))
        if not carries or z_BCTHW.shape[2] <= SLOTS_AT_ONCE:
            return self._decode_frames(z_BCTHW, carries, height, width, state)
        made = []
        for piece in z_BCTHW.split(SLOTS_AT_ONCE, dim=2):  # a long chunk takes no more memory than its frames
            frames, state = self._decode_frames(piece, carries, height, width, state)
            made.append(frames)
        return torch.cat(made, dim=1), state

    def _latents_to_frames(
        self, z_BCTHW: Tensor, carries: bool, height: int, width: int, state: State
    ) -> tuple[Tensor, State]:
        if carries:
            assert self._stateful is not None, "only such a network has a state to carry"
            x_BCTHW, state = self._stateful.decode_next(z_BCTHW, state)
        else:
            x_BCTHW, state = self.backbone.decode(z_BCTHW), None
        return to_frames(x_BCTHW[..., :height, :width]), state

    @torch.inference_mode()
    def fill_cells(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau: float | Tensor, fill: str | None = None) -> Tensor:
        """Dense latents from those of the kept cells."""
        if isinstance(self.filler.find(fill or self.filler.default), Lit):
            self._tell("fill", len(z_BCTHW))
        return self.filler.fill(z_BCTHW, keep_BTHW, tau, fill)

    def check(self, recipe: Recipe, channels: int) -> None:
        """Refuse tokens of another backbone: they would decode to noise."""
        here = self.spec
        if (recipe.backbone, recipe.weight_hash) != (here.name, here.weight_hash):
            raise MissingError(
                f"these tokens were made with {recipe.backbone} (weights {recipe.weight_hash}), "
                f"and this is {here.name} (weights {here.weight_hash}); load the weights they were made with",
                about="weights",
            )
        if channels != here.channels:
            raise ShapeError(f"{here.name} has {here.channels} channels, the tokens have {channels}")

    def saw_latents(self, chunk: LatentChunk) -> None:
        for watch in self.watches:
            watch.on_latents(chunk)

    def saw_tokens(self, tokens: Tokens) -> None:
        for watch in self.watches:
            watch.on_tokens(tokens)

    def _tell(self, network: str, clips: int) -> None:
        for watch in self.watches:
            watch.on_network(network, clips)
