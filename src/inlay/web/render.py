# SPDX-License-Identifier: Apache-2.0
"""What a visitor sees of a session: panels, strip, curve and table as HTML, and the film as a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from inlay.draw.film import film, shots
from inlay.draw.images import data_uri, image_bytes, strip
from inlay.draw.lighting import GAIN, difference, light
from inlay.video import write_video
from inlay.video.frames import Video
from inlay.web.session import Choice, Result, Session

STRIP, SHORT_SIDE = 9, 96  # pictures: the slots of a clip of 33 frames; pixels of each
FILL_NAMES = {"lit": "LIT", "lit-paper": "LIT of the paper", "hold": "hold", "linear": "linear"}
STAGES = ("read", "encode", "pack", "decode", "measure", "film")
EMPTY = '<p class="inlay-hint">Drop in a video, or pick a built-in clip, and its kept cells appear here.</p>'


def panels(session: Session, frame: int, fill: str) -> str:
    """One frame, side by side: what there is of input, kept cells, reconstruction and difference."""
    with session.lock:
        choice, original, result = session.choice, session.original, session.results.get(fill)
    if choice is None:
        return EMPTY
    shown = [_figure(label, picture) for label, picture in _pictures(choice, original, result, _clamped(frame, choice))]
    return f'<div class="inlay-panels">{"".join(shown)}</div>'


def _pictures(
    choice: Choice, original: Video | None, result: Result | None, frame: int
) -> Iterator[tuple[str, Tensor]]:
    if original is not None:
        yield "input", original.frames[frame]
    backdrop = original if original is not None or result is None else result.video
    yield f"kept cells {choice.keep_Thw[frame].float().mean().item():.0%}", _lit(backdrop, choice, [frame])[0]
    if result is not None:
        yield f"reconstruction ({FILL_NAMES[result.fill]})", result.video.frames[frame]
    if result is not None and original is not None:
        yield f"difference x{GAIN}", difference(original.frames[frame], result.video.frames[frame])


def _lit(backdrop: Video | None, choice: Choice, places: list[int]) -> Tensor:
    """Frames under their masks; of tokens that have not been decoded yet, the masks themselves."""
    info, stride = choice.chunks[0].info, choice.chunks[0].recipe.space_stride
    grey = torch.full((len(places), info.height, info.width, 3), 200, dtype=torch.uint8)
    return light(grey if backdrop is None else backdrop.frames[places], choice.keep_Thw[places], stride)


def _figure(label: str, picture: Tensor) -> str:
    text = escape(label)
    source = data_uri(image_bytes(picture, "webp"), "webp")
    return f'<figure><img alt="{text}" src="{source}"><figcaption>{text}</figcaption></figure>'


def mask_strip(session: Session) -> str:
    """The whole clip at a glance: frames at even distances, under their masks."""
    with session.lock:
        choice, original = session.choice, session.original
        decoded = next((result.video for result in session.results.values()), None)
    if choice is None:
        return ""
    backdrop = original if original is not None else decoded
    count = min(STRIP, choice.frames)
    places = [round(i * (choice.frames - 1) / max(count - 1, 1)) for i in range(count)]
    row = strip(_lit(backdrop, choice, places), short=SHORT_SIDE)
    alt = f"kept cells of {count} frames over the clip"
    return f'<img class="inlay-strip" alt="{alt}" src="{data_uri(image_bytes(row, "webp"), "webp")}">'


def curve(session: Session, frame: int) -> str:
    """The share of kept cells over time as steps, the whole clip's as a dashed line, the present frame as a mark.

    SVG of its own: it is drawn anew while a slider moves, and stretches with the page while its text does not.
    """
    with session.lock:
        choice = session.choice
    if choice is None:
        return ""
    fps = float(choice.chunks[0].info.fps)
    trace, end = choice.curve, max(choice.frames / fps, choice.curve.seconds[-1] + 1e-3)

    def x(second: float) -> float:
        return 1000 * min(second / end, 1.0)

    steps = "".join(
        f"L{x(a):.1f} {100 - 100 * rate:.1f}L{x(b):.1f} {100 - 100 * rate:.1f}"
        for a, b, rate in zip(trace.seconds, [*trace.seconds[1:], end], trace.keep_rates, strict=True)
    )
    now, mean = x(_clamped(frame, choice) / fps), 100 - 100 * trace.keep_rate
    grid = "".join(f'<line x1="0" x2="1000" y1="{y}" y2="{y}" class="grid"/>' for y in (0, 50, 100))
    label = f"kept cells over time, {trace.keep_rate:.1%} of all"
    return (
        f'<div class="inlay-curve"><div class="rates"><span>100%</span><span>50%</span><span>0%</span></div>'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="{label}"><title>{label}</title>'
        f'{grid}<path d="M0 100{steps}L1000 100Z" class="area"/><path d="M{steps[1:]}" class="line"/>'
        f'<line x1="0" x2="1000" y1="{mean:.1f}" y2="{mean:.1f}" class="mean"/>'
        f'<line x1="{now:.1f}" x2="{now:.1f}" y1="0" y2="100" class="now"/></svg>'
        f'<div class="times"><span>0 s</span><span>{label}</span><span>{end:.2f} s</span></div></div>'
    )


def table(session: Session) -> str:
    """One column for the mask, one for each fill that was reconstructed."""
    with session.lock:
        choice, file, results = session.choice, session.token_file, list(session.results.values())
        seconds, frames = dict(session.seconds), session.choice.frames if session.choice else 0
    if choice is None:
        return ""
    size = file.stat().st_size if file is not None and file.is_file() else None
    info = choice.chunks[0].info
    pixels = frames * info.width * info.height
    rows = [
        ("clip", f"{frames} frames {info.width}x{info.height} at {float(info.fps):g} fps"),
        ("tau", f"{choice.tau:.4g}"),
        ("keep rate", f"{choice.curve.keep_rate:.1%}, mode {choice.mode}"),
        ("tokens", f"{choice.curve.tokens:,} of {choice.curve.cells:,}"),
        ("bytes", "after Reconstruct" if size is None else f"{size:,}"),
        ("bits per pixel", "after Reconstruct" if size is None else f"{8 * size / pixels:.4f}"),
    ]
    facts = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    page = f'<div class="inlay-tables"><table><caption>Tokens</caption>{facts}</table>'
    if not results:
        spent = ", ".join(f"{stage} {seconds[stage]:.2f}" for stage in STAGES if stage in seconds)
        return f'{page}<p class="inlay-hint">Seconds so far: {spent}</p></div>'
    return f"{page}{_quality(results)}</div>"


def _quality(results: list[Result]) -> str:
    head = "".join(f"<th>{escape(FILL_NAMES[r.fill])}</th>" for r in results)
    lines = [
        ("PSNR (dB)", [_number(r.psnr, 2) for r in results]),
        ("SSIM", [_number(r.ssim, 4) for r in results]),
    ]
    stages = [stage for stage in STAGES if any(stage in r.seconds for r in results)]
    lines += [(f"{stage} (s)", [_number(r.seconds.get(stage), 2) for r in results]) for stage in stages]
    body = "".join(f"<tr><th>{name}</th>{''.join(f'<td>{v}</td>' for v in values)}</tr>" for name, values in lines)
    return f"<table><caption>Reconstruction, by fill</caption><tr><th>fill</th>{head}</tr>{body}</table>"


def _number(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def write_film(result: Result, path: Path) -> Path:
    """Input, kept cells and reconstruction side by side, as an mp4 that browsers play."""
    start = time.perf_counter()
    scenes = shots(result.choice.chunks, [result.video], None if result.original is None else [result.original])
    made = f"reconstruction ({FILL_NAMES[result.fill]})"
    write_video(film(scenes, frames=result.choice.frames, made=made), path, force=True)
    result.seconds["film"] = time.perf_counter() - start
    return path


def _clamped(frame: int, choice: Choice) -> int:
    return min(max(int(frame), 0), choice.frames - 1)
