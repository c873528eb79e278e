# SPDX-License-Identifier: Apache-2.0
"""The contact sheet of masks: a row of slots for each threshold (the paper's Appendix A).

Legend: T slots, h w cells, H W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw
from torch import Tensor

from inlay.backbones.base import BackboneSpec
from inlay.draw.images import INK, blank, fitted, font, pixels
from inlay.draw.lighting import light
from inlay.draw.running import NOW
from inlay.masking import MaskConfig, keep_mask
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video

Strip = tuple[tuple[str, str], list[str], Tensor]  # what the row is and a fact about it, captions, pictures
TILE, GAP, TYPE = 128, 6, 16  # pixels: short side of a picture, space between two, height of letters


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskRow:
    """Which cells one threshold keeps."""

    tau: float
    keep_Thw: Tensor

    @property
    def keep_rate(self) -> float:
        return self.keep_Thw.float().mean().item()


def mask_rows(clip: Video, tokenizer: Tokenizer, configs: Sequence[MaskConfig]) -> list[MaskRow]:
    """One encoder pass for all thresholds."""
    x_BCTHW = tokenizer.pixels([clip])
    z_BCTHW = tokenizer.encode_pixels(x_BCTHW)
    return [MaskRow(tau=c.tau, keep_Thw=keep_mask(z_BCTHW, c, x_BCTHW)[0].cpu()) for c in configs]


def mask_sheet(clip: Video, rows: Sequence[MaskRow], spec: BackboneSpec, *, title: str) -> Tensor:
    """[H, W, 3] uint8: the last frame of each slot, and below it what each threshold keeps of it."""
    last = [min(t * spec.time_stride, len(clip) - 1) for t in range(len(rows[0].keep_Thw))]
    frames = clip.frames[last]
    strips: list[Strip] = [(("input", f"{len(clip)} frames"), [f"frame {i}" for i in last], fitted(frames, TILE, TILE))]
    for row in rows:
        shares = [f"{100 * share:.0f} %" for share in row.keep_Thw.flatten(1).float().mean(1).tolist()]
        drawn = fitted(light(frames, row.keep_Thw, spec.space_stride), TILE, TILE)
        strips.append(((f"tau {row.tau:.3g}", f"{100 * row.keep_rate:.1f} % kept"), shares, drawn))
    return _drawn(strips, title)


def _drawn(strips: Sequence[Strip], title: str) -> Tensor:
    text = font(TYPE)
    left = round(max(text.getlength(name) for names, _, _ in strips for name in names)) + 3 * GAP
    slots, height, width, _ = strips[0][2].shape
    line, head = round(1.5 * TYPE), 2 * TYPE
    paper = blank(head + len(strips) * (line + height + GAP), left + slots * (width + GAP))
    pen = ImageDraw.Draw(paper)
    pen.text((2 * GAP, head // 2), title, fill=INK, font=font(TYPE, title), anchor="lm")
    for r, (names, captions, frames_THWC) in enumerate(strips):
        top = head + r * (line + height + GAP) + line
        middle = top + height // 2
        for name, colour, shift in zip(names, (NOW, INK), (-1, 1), strict=True):
            pen.text((2 * GAP, middle + shift * TYPE * 2 // 3), name, fill=colour, font=text, anchor="lm")
        for t, (caption, picture_HWC) in enumerate(zip(captions, frames_THWC, strict=True)):
            x = left + t * (width + GAP)
            pen.text((x, top - line // 2), caption, fill=INK, font=font(TYPE - 2), anchor="lm")
            paper.paste(Image.fromarray(picture_HWC.contiguous().numpy()), (x, top))
    return pixels(paper)
