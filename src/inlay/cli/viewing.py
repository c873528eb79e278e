# SPDX-License-Identifier: Apache-2.0
"""What `inlay view` writes: the film, the curve of kept cells and the contact sheet of masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from inlay.cli.passes import counted
from inlay.cli.screen import Screen
from inlay.codec import EncodeConfig, KeepCurve
from inlay.draw.animated import ANIMATED
from inlay.draw.caption import Caption
from inlay.draw.film import Shot, film
from inlay.draw.images import image_bytes
from inlay.draw.plots import keep_curves
from inlay.draw.sheet import mask_rows, mask_sheet
from inlay.errors import ConfigError
from inlay.files import write_atomic
from inlay.tokenizer import Tokenizer
from inlay.video import write_video
from inlay.video.frames import Video

FACTORS = (1 / 3, 2 / 3, 1.0, 4 / 3, 2.0, 3.0)  # a sheet's thresholds where none are named, times the model's own


def write_film(
    scenes: Iterable[Shot], out: str, curve: str | None, *, fill: str, caption: Caption, frames: int | None,
    force: bool, screen: Screen,
) -> dict[str, Any]:  # fmt: skip
    """Write the film (the suffix says as what), then the curve; returns what `inlay view --json` prints."""
    with screen.progress("filming", frames) as advance:
        pictures = counted(film(scenes, frames=frames, made=f"reconstruction ({fill})", caption=caption), advance)
        if animated := ANIMATED.get(Path(out).suffix.lower()):
            write_atomic(out, animated(pictures))
        else:
            write_video(pictures, out, force=force)
    if curve is not None:
        write_curve(curve, caption.kept, caption.title)
    kept = caption.kept
    counts = {"frames": kept.frames, "cells": kept.cells, "tokens": kept.tokens, "keep_rate": kept.keep_rate}
    return {"film": out, "curve": curve, **counts}


def write_curve(path: str, trace: KeepCurve, title: str) -> None:
    write_atomic(path, keep_curves({title: trace}))


def write_sheet(
    clip: Video, path: str, tokenizer: Tokenizer, config: EncodeConfig, taus: Sequence[float], *, title: str
) -> dict[str, Any]:
    """Draw the masks of one clip; returns what `inlay view --json` says of them."""
    rows = mask_rows(clip, tokenizer, [config.mask(tau) for tau in choose_taus(taus, tokenizer)])
    write_atomic(path, image_bytes(mask_sheet(clip, rows, tokenizer.spec, title=title)))
    return {"sheet": path, "sheet_keep_rates": {f"{row.tau:g}": row.keep_rate for row in rows}}


def choose_taus(taus: Sequence[float], tokenizer: Tokenizer) -> list[float]:
    """Those named, in order; of a single one, or of the model's own, a range about it."""
    if len(taus) > 1:
        return sorted(set(taus))
    if not taus and tokenizer.profile is None:
        raise ConfigError(f"there is no default tau for {tokenizer.spec.name}; name one or several", about="tau")
    middle = taus[0] if taus else tokenizer.profile.tau  # type: ignore[union-attr]
    return [round(middle * factor, 4) for factor in FACTORS]
