# SPDX-License-Identifier: Apache-2.0
"""The first clip of a video and several thresholds in, a contact sheet out: a row of masks for each (Appendix A).

Legend: T slots, h w cells, H W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from inlay.cli.chart import INK, NOW, PAPER
from inlay.cli.letters import ink, write
from inlay.cli.model import Settings
from inlay.cli.paths import atomic
from inlay.errors import ConfigError
from inlay.masking import MaskConfig, keep_mask
from inlay.tokenizer import CLIP_FRAMES, Tokenizer
from inlay.video.frames import Video
from inlay.video.lighting import light

FACTORS = (1 / 3, 2 / 3, 1.0, 4 / 3, 2.0, 3.0)  # thresholds where none are named, in multiples of the model's own
TILE, GAP, TYPE = 128, 6, 16  # pixels: short side of a picture, space between two, height of letters


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One threshold: which cells it keeps."""

    tau: float
    keep_Thw: Tensor

    @property
    def keep_rate(self) -> float:
        return self.keep_Thw.float().mean().item()


def choose_taus(taus: Sequence[float], tokenizer: Tokenizer) -> list[float]:
    """Those named, in order; of a single one, or of the model's own, a range about it."""
    if len(taus) > 1:
        return sorted(set(taus))
    if not taus and tokenizer.profile is None:
        raise ConfigError(f"there is no default tau for {tokenizer.spec.name}; name one or several (--tau)")
    middle = taus[0] if taus else tokenizer.profile.tau  # type: ignore[union-attr]
    return [round(middle * factor, 4) for factor in FACTORS]


def mask_rows(clip: Video, tokenizer: Tokenizer, settings: Settings, taus: Sequence[float]) -> list[Row]:
    """One encoder pass for all thresholds."""
    x_BCTHW = tokenizer.pixels([clip])
    z_BCTHW = tokenizer.latents(x_BCTHW)
    rows = []
    for tau in taus:
        config = MaskConfig(tau=tau, criterion=settings.criterion, reference=settings.reference)
        rows.append(Row(tau=tau, keep_Thw=keep_mask(z_BCTHW, config, x_BCTHW)[0].cpu()))
    return rows


def draw_sheet(clip: Video, rows: Sequence[Row], *, time_stride: int, space_stride: int, title: str) -> Tensor:
    """[H, W, 3] uint8: the last frame of each slot, and below it what each threshold keeps of it."""
    slots = len(rows[0].keep_Thw)
    last = [min(t * time_stride, len(clip) - 1) for t in range(slots)]
    frames = clip.frames[last]
    pictures = [_small(frames)]
    pictures += [_small(light(frames, row.keep_Thw, space_stride)) for row in rows]
    names = [("input", f"{len(clip)} frames")]
    names += [(f"tau {row.tau:.3g}", f"{row.keep_rate:.1%} kept") for row in rows]
    shares = [[f"frame {i}" for i in last]]
    shares += [[f"{share:.0%}" for share in row.keep_Thw.flatten(1).float().mean(1).tolist()] for row in rows]
    left = max(ink(text, TYPE).shape[1] for pair in names for text in pair) + 3 * GAP
    height, width = pictures[0].shape[1:3]
    line, head = round(1.5 * TYPE), 2 * TYPE
    sheet = torch.full(
        (head + len(pictures) * (line + height + GAP), left + slots * (width + GAP), 3), PAPER, dtype=torch.uint8
    )
    write(sheet, title, x=2 * GAP, middle=head // 2, size=TYPE, colour=INK)
    for r, row_THWC in enumerate(pictures):
        top = head + r * (line + height + GAP) + line
        for i, (text, colour) in enumerate(zip(names[r], (NOW, INK), strict=True)):
            write(
                sheet, text, x=2 * GAP, middle=top + height // 2 + (2 * i - 1) * TYPE * 2 // 3, size=TYPE, colour=colour
            )
        for t, picture_HWC in enumerate(row_THWC):
            x = left + t * (width + GAP)
            write(sheet, shares[r][t], x=x, middle=top - line // 2, size=TYPE - 2, colour=INK)
            sheet[top : top + height, x : x + width] = picture_HWC
    return sheet


def _small(frames_THWC: Tensor) -> Tensor:
    """By area, so that a line one pixel wide still leaves a trace; small frames are enlarged as they are."""
    height, width = frames_THWC.shape[1:3]
    scale = TILE / min(height, width)
    size = [max(1, round(height * scale)), max(1, round(width * scale))]
    mode = "area" if scale < 1 else "nearest"
    small = interpolate(frames_THWC.permute(0, 3, 1, 2).float(), size=size, mode=mode)
    return small.round().to(torch.uint8).permute(0, 2, 3, 1)


def write_sheet(
    clip: Video, path: str, tokenizer: Tokenizer, settings: Settings, taus: Sequence[float], *, title: str
) -> dict[str, Any]:
    """Draw the first clip's sheet; returns what `inlay view --json` says of it."""
    from inlay.train.png import png_bytes

    chosen = choose_taus(taus, tokenizer)
    rows = mask_rows(clip[:CLIP_FRAMES], tokenizer, settings, chosen)
    spec = tokenizer.spec
    drawn = draw_sheet(
        clip[:CLIP_FRAMES], rows, time_stride=spec.time_stride, space_stride=spec.space_stride, title=title
    )
    with atomic(path) as part:
        Path(part).write_bytes(png_bytes(drawn))
    return {"sheet": path, "sheet_keep_rates": {f"{row.tau:g}": row.keep_rate for row in rows}}
