# SPDX-License-Identifier: Apache-2.0
"""What a visitor sees of a session: data for the viewer, table, snippets and latents as HTML, and the film as a file.

Legend: S slots, C channels, h w cells.
"""

from __future__ import annotations

import base64
import json
import time
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inlay.draw.caption import Caption
from inlay.draw.film import film, shots
from inlay.draw.images import data_uri, image_bytes
from inlay.draw.lighting import DIM, EDGE, GAIN, RAMP, heat
from inlay.errors import number_of
from inlay.masking.steps import OWN
from inlay.types import STEPPED, Recipe
from inlay.video import write_video
from inlay.video.frames import Video
from inlay.web.session import Result, Session, Setting
from inlay.web.sheets import Sheets
from inlay.web.snippets import snippets

FILL_NAMES = {"lit": "LIT", "lit-paper": "LIT of the paper", "hold": "hold", "linear": "linear"}
NOT_YET = "not yet"  # reconstructed
STAGES = ("read", "encode", "pack", "decode", "measure", "film")
SCORE_STEPS, UNSCORED = 24.0, 255  # codes to a doubling of the score; kept with nothing to compare with
LATENT_GAP = 1  # cells between the channels of a picture


# --- the viewer -------------------------------------------------------------------------------------------------------


def viewer(session: Session, active: str, folder: Path) -> str:
    """All that the viewer draws, as one attribute. Base64: nothing in a visitor's file name can become markup.

    The folder that pictures lie in stands apart, as it is, for the request filter to give it another name.
    """
    data = json.dumps(viewer_data(session, active, folder)).encode()
    base = escape(f"gradio_api/file={folder}/")
    return f'<div hidden data-view="{base64.b64encode(data).decode()}" data-base="{base}"></div>'


def viewer_data(session: Session, active: str, folder: Path) -> dict[str, Any]:
    with session.lock:
        if not session.settings:
            return {}
        choice = session.settings["A"].choice
        info = choice.chunks[0].info
        return {
            "clip": session.name,
            "version": session.version,
            "active": active,
            "width": info.width,
            "height": info.height,
            "fps": float(info.fps),
            "frames": choice.frames,
            "slots": choice.slot_T.tolist(),
            "grid": list(choice.keep_Shw.shape[1:]),
            "stride": choice.chunks[0].recipe.cell_side,
            "input": _addresses(session.sheets, folder),
            "settings": {name: _setting(setting, folder) for name, setting in session.settings.items()},
            "look": {"dim": DIM, "edge": EDGE.tolist(), "gain": GAIN, "ramp": RAMP.tolist()},
        }


def _addresses(sheets: Sheets | None, folder: Path) -> dict[str, Any] | None:
    if sheets is None:
        return None
    urls = [path.relative_to(folder).as_posix() for path in sheets.paths]
    return {"urls": urls, "columns": sheets.columns, "each": sheets.each}


def _setting(setting: Setting, folder: Path) -> dict[str, Any]:
    choice, result = setting.choice, setting.result
    code, top = score_codes(choice.score_Shw)
    return {
        "tau": choice.tau,
        "keep": choice.keep,
        "fill": setting.fill,
        "fill_name": FILL_NAMES.get(setting.fill, setting.fill),
        "step": setting.step,
        "rate": choice.curve.keep_rate,
        "rates": choice.curve.keep_rates,
        "seconds": choice.curve.seconds,
        "mask": _text(np.packbits(choice.keep_Shw.cpu().numpy())),
        "scores": None if code is None else {"codes": _text(code), "top": top, "steps": SCORE_STEPS},
        "psnr": None if result is None else result.psnr,
        "result": None if result is None else _addresses(result.sheets, folder),
    }


def score_codes(score_Shw: Tensor | None) -> tuple[np.ndarray | None, float]:
    """A byte for each score, within 3 %: code c stands for top * (2^(c / steps) - 1) / (2^(254 / steps) - 1)."""
    if score_Shw is None:
        return None, 0.0
    score = score_Shw.cpu().numpy().astype(np.float64)
    finite = np.isfinite(score)
    top = float(score[finite].max(initial=0.0))
    share = np.where(finite, score, 0.0) / (top or 1.0)
    code = np.round(SCORE_STEPS * np.log2(1 + share * (2 ** (254 / SCORE_STEPS) - 1)))
    return np.where(finite, code, UNSCORED).astype(np.uint8), top


def _text(data: np.ndarray) -> str:
    return base64.b64encode(data.tobytes()).decode()


# --- numbers ----------------------------------------------------------------------------------------------------------


def table(session: Session) -> str:
    """A column for each setting, and one for each of its fills that was reconstructed."""
    with session.lock:
        settings = dict(session.settings)
        seconds = dict(session.seconds)
    if not settings:
        return ""
    columns: list[tuple[str, Setting, Result | None]] = [
        (name, setting, result) for name, setting in settings.items() for result in setting.results.values() or [None]
    ]
    head = "".join(f"<th>{label}</th>" for label in ("setting", *_cells(*columns[0][1:])))
    body = "".join(_row(*column) for column in columns)
    choice = columns[0][1].choice
    info, frames = choice.chunks[0].info, number_of(choice.frames, "frame")
    clip = f"{frames} {info.width}x{info.height} at {float(info.fps):g} fps, mode {choice.mode}"
    times = [(f" of {name} with {FILL_NAMES[r.fill]}", r.seconds) for name, _, r in columns if r is not None]
    spent = [
        f"seconds{whose}: " + ", ".join(f"{stage} {known[stage]:.2f}" for stage in STAGES if stage in known)
        for whose, known in times or [("", seconds)]
    ]
    note = f'<p class="inlay-hint">{escape("; ".join([clip, *spent]))}</p>'
    return f'<div class="inlay-table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}</div>'


def _row(name: str, setting: Setting, result: Result | None) -> str:
    cells = "".join(
        f'<td data-label="{label}"{" class=absent" if value == NOT_YET else ""}>{escape(value)}</td>'
        for label, value in _cells(setting, result).items()
    )
    return f'<tr class="{name.lower()}"><th>{name}</th>{cells}</tr>'


def _cells(setting: Setting, result: Result | None) -> dict[str, str]:
    """What is said of a setting, by column; quality and size once there are such."""
    choice, info = setting.choice, setting.choice.chunks[0].info
    size = setting.token_file.stat().st_size if setting.token_file is not None else None
    pixels = choice.frames * info.width * info.height
    return {
        "fill": NOT_YET if result is None else FILL_NAMES[result.fill],
        "tau": f"{choice.tau:.4g}",
        "keep rate": f"{choice.curve.keep_rate:.1%}",
        "tokens": f"{choice.curve.tokens:,} of {choice.curve.cells:,}",
        "step": _step(choice.chunks[0].recipe),
        "PSNR (dB)": NOT_YET if result is None else _number(result.psnr, 2),
        "SSIM": NOT_YET if result is None else _number(result.ssim, 4),
        "bytes": NOT_YET if size is None else f"{size:,}",
        "bits per pixel": NOT_YET if size is None else f"{8 * size / pixels:.4f}",
    }


def _step(recipe: Recipe) -> str:
    if recipe.step is None:
        return f"{OWN}, chunk by chunk" if recipe.precision in STEPPED else "none"
    return f"{recipe.step:.3g} grey level{'' if recipe.step == 1 else 's'}"


def _number(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def code(session: Session, which: str) -> str:
    """What to type for the same tokens, to be copied."""
    with session.lock:
        setting = session.settings.get(which)
        if setting is None:
            return ""
        made = snippets(session, setting)
    blocks = (("Command line", made.command), ("Python", made.python))
    return "".join(
        f'<figure class="inlay-code"><figcaption>{title} <button type="button" data-copy>Copy</button></figcaption>'
        f"<pre>{escape(text)}</pre></figure>"
        for title, text in blocks
    )


# --- latents ----------------------------------------------------------------------------------------------------------


def latents(session: Session, slot: int) -> str:
    """One slot: its three strongest directions as colours, and every channel on its own."""
    z_Chw = session.slot_latents(slot).float().cpu()
    wide = z_Chw.abs().amax().clamp(min=1e-9)
    channels = [heat((z_hw / wide + 1) / 2) for z_hw in z_Chw]
    alt = f"latents of slot {slot}: {len(z_Chw)} channels of {z_Chw.shape[1]}x{z_Chw.shape[2]} cells"
    pictures = (
        (directions(z_Chw), "three strongest directions as red, green, blue"),
        (_tiles(channels), "all channels"),
    )
    shown = "".join(
        f'<figure><img alt="{alt}, {what}" src="{data_uri(image_bytes(picture), "png")}"><figcaption>{what}'
        "</figcaption></figure>"
        for picture, what in pictures
    )
    hint = f'<p class="inlay-hint">{alt}; dark is {-wide:.2f}, bright is {wide:.2f}.</p>'
    return f'{hint}<div class="inlay-latents">{shown}</div>'


def directions(z_Chw: Tensor) -> Tensor:
    """[h, w, 3] uint8: where each cell lies along the three directions in which the cells differ most."""
    x_NC = z_Chw.flatten(1).T
    centred = x_NC - x_NC.mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:3] * axes[:3].sum(1, keepdim=True).sign()  # a direction and its opposite are one
    along = torch.zeros(len(x_NC), 3)
    along[:, : len(axes)] = centred @ axes.T
    low, high = along.quantile(0.02, dim=0), along.quantile(0.98, dim=0)
    share = ((along - low) / (high - low).clamp(min=1e-9)).clamp(0, 1)
    return (255 * share).round().to(torch.uint8).view(*z_Chw.shape[1:], 3)


def _tiles(pictures: list[Tensor]) -> Tensor:
    """Pictures of one size in a square of rows, with middle grey between."""
    columns = int(np.ceil(np.sqrt(len(pictures))))
    height, width, _ = pictures[0].shape
    rows = -(-len(pictures) // columns)
    step_y, step_x = height + LATENT_GAP, width + LATENT_GAP
    sheet = torch.full((rows * step_y - LATENT_GAP, columns * step_x - LATENT_GAP, 3), 128, dtype=torch.uint8)
    for number, picture in enumerate(pictures):
        y, x = number // columns * step_y, number % columns * step_x
        sheet[y : y + height, x : x + width] = picture
    return sheet


# --- the film ---------------------------------------------------------------------------------------------------------


def write_film(result: Result, video: Video, original: Video | None, path: Path, *, title: str) -> Path:
    """Input, kept cells and reconstruction side by side, as an mp4 that browsers play."""
    start = time.perf_counter()
    scenes = shots(result.choice.chunks, [video], None if original is None else [original])
    made = f"reconstruction ({FILL_NAMES[result.fill]})"
    write_video(film(scenes, frames=result.choice.frames, made=made, caption=Caption(title=title)), path, force=True)
    result.seconds["film"] = time.perf_counter() - start
    return path
