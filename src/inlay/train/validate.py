# SPDX-License-Identifier: Apache-2.0
"""Validation: PSNR of reconstructed clips, and a picture of some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inlay.codec.quality import frame_errors, frame_psnr
from inlay.draw.lighting import light
from inlay.errors import VideoError
from inlay.train.config import TrainConfig
from inlay.train.data import ClipSource
from inlay.train.sampler import ClipEntry, Draw, fixed_draws


@dataclass(frozen=True, kw_only=True)
class ValidationSet:
    """The clips validation looks at: always the same ones, cut the same way."""

    source: ClipSource
    draws: tuple[Draw, ...]
    device: torch.device | str = "cpu"

    @staticmethod
    def of(source: ClipSource, config: TrainConfig, device: torch.device | str = "cpu") -> ValidationSet:
        c = config.clips
        interval, limit = config.validate_interval, config.validate_clips
        draws = fixed_draws(source.entries, frames=c.frames, size=c.size, interval=interval, limit=limit)
        if config.validate_clips and not draws:
            raise VideoError(
                f"every video to validate on is too short: clips of {c.frames} frames at interval "
                f"{config.validate_interval} need {config.shortest_validated} frames; give longer ones to validate, "
                "or switch it off: validate_clips=0"
            )
        return ValidationSet(source=source, draws=tuple(draws), device=device)

    def __bool__(self) -> bool:
        return bool(self.draws)

    @property
    def entries(self) -> tuple[ClipEntry, ...]:
        return tuple(self.source.entries[d.clip] for d in self.draws)

    def clips(self) -> Iterator[Tensor]:
        """[1, 3, T, H, W] in [-1, 1], one by one."""
        for draw in self.draws:
            yield self.source.cut(draw)[None].to(self.device)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What one validation found; `psnr` decides which weights are best."""

    psnr: float
    numbers: dict[str, float] = field(default_factory=dict)
    picture: Tensor | None = None  # [H, W, 3] uint8: a row a clip


def psnr(x_BCTHW: Tensor, y_BCTHW: Tensor) -> float:
    """Mean of per-frame PSNR in dB, on pixels rounded to 8 bits, as `measure` has it."""
    errors = [frame_errors(to_uint8(x), to_uint8(y))[0] for x, y in zip(x_BCTHW, y_BCTHW, strict=True)]
    return frame_psnr(torch.cat(errors)).mean().item()


def to_uint8(x_CTHW: Tensor) -> Tensor:
    """[T, H, W, 3] uint8 of pixels in [-1, 1]."""
    levels = (x_CTHW.float().clamp(-1, 1) + 1) * 127.5
    return levels.round().to(torch.uint8).permute(1, 2, 3, 0)


def shown(x_BCTHW: Tensor, keep_BTHW: Tensor | None = None) -> Tensor:
    """[H, W, 3] uint8: one frame of a clip, with its dropped cells dark where a mask is given."""
    T, H = x_BCTHW.shape[2:4]
    t = T * 2 // 3
    frame = to_uint8(x_BCTHW[0, :, t : t + 1]).cpu()
    if keep_BTHW is None:
        return frame[0]
    slots, rows = keep_BTHW.shape[1:3]
    slot = 0 if t == 0 else 1 + (t - 1) * (slots - 1) // (T - 1)  # slot 0 covers one frame, later slots equal shares
    return light(frame, keep_BTHW[:1, slot].cpu(), H // rows)[0]


def in_rows(rows: list[list[Tensor]]) -> Tensor | None:
    """Pictures of one size as one; None where there are none."""
    return torch.cat([torch.cat(row, 1) for row in rows]) if rows else None
