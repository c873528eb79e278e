# SPDX-License-Identifier: Apache-2.0
"""The built-in clip in, the pictures of README and docs out: real runs, clips made by code.

python docs/make_pictures.py        # needs the extra plot; writes docs/pictures/ and benchmarks/demo_cpu.json
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from inlay.cli.chart import INK, PAPER
from inlay.cli.curve import draw_curves
from inlay.cli.letters import write
from inlay.cli.main import main
from inlay.codec import StreamConfig, StreamEncoder, keep_curve
from inlay.masking import MaskConfig, Selector, SelectState
from inlay.measure import compare
from inlay.tokenizer import CLIP_FRAMES, Tokenizer
from inlay.video import read_video
from inlay.video.frames import Video
from inlay.video.lighting import light
from inlay.video.synthetic import demo_clip

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
STILL, MOVING = 30, 60  # frames of the clip: a still camera, then a moving one
FACTOR = 2  # of the model's own tau, where the difference between fills can be seen
DARK, LIGHT = torch.tensor([0.0, 34, 78]), torch.tensor([254.0, 232, 56])  # ends of a scale readable without colour


def make() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = demo(folder)
        films(folder)
        run("view", str(folder / "clip.mp4"), str(folder / "sheet.png"), "--quiet")
        Image.open(folder / "sheet.png").save(PICTURES / "sheet.webp", quality=85)
        shutil.copy(folder / "curve.png", PICTURES / "curve.png")
    tokenizer, clip = Tokenizer.from_pretrained("mini", device="cpu"), demo_clip()
    steps(tokenizer, clip[:CLIP_FRAMES])
    streams(tokenizer, clip)
    (DOCS.parent / "benchmarks" / "demo_cpu.json").write_text(json.dumps(record, indent=1) + "\n")


def run(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(list(words))
    if code:
        raise SystemExit(code)
    return printed.getvalue()


def demo(folder: Path) -> dict:
    """`inlay demo`, whose record stands behind the README's numbers."""
    record = json.loads(run("demo", "--out", str(folder), "--json", "--quiet"))
    for key in ("file", "film", "curve", "clip", "token_file", "decoded"):
        record[key] = Path(record[key]).name  # the folder was a temporary one
    return {"command": "python docs/make_pictures.py (inlay demo --json)", **record}


def films(folder: Path) -> None:
    """The film that moves, small enough for a README, and two of its frames as one still picture."""
    from inlay.video.webp import write_webp

    film = read_video(folder / "side-by-side.mp4")
    write_webp(film, PICTURES / "film.webp", quality=60)
    strip = torch.cat([film.frames[t] for t in (STILL, MOVING)], dim=0)
    Image.fromarray(strip.numpy()).save(PICTURES / "strip.webp", quality=88)


def steps(tokenizer: Tokenizer, clip: Video) -> None:
    """One frame on its way: input, how much each cell changed, what is kept, what two fills make of it."""
    tau = FACTOR * tokenizer.recipe().tau
    tokens = tokenizer.encode(clip, tau=tau)
    results = {fill: tokenizer.decode(tokens, fill=fill) for fill in ("hold", "lit")}
    slot, stride = -(-STILL // tokenizer.spec.time_stride), tokenizer.spec.space_stride
    z_BCTHW = tokenizer.latents(tokenizer.pixels([clip]))
    chosen = Selector(MaskConfig(tau=tau)).select(z_BCTHW, SelectState(), key=True)
    heat = (chosen.score_BTHW[0, slot].float() / (2 * tau)).clamp(0, 1)
    heat = heat.repeat_interleave(stride, 0).repeat_interleave(stride, 1)[..., None]
    kept = tokens.mask[slot].float().mean().item()
    frame = clip.frames[STILL]
    panels = [
        ("1  input", frame),
        ("2  change of each cell", ((1 - heat) * DARK + heat * LIGHT).to(torch.uint8)),
        (f"3  kept: {kept:.0%}", light(frame[None], tokens.mask[slot][None], stride)[0]),
    ]
    Image.fromarray(row(panels).numpy()).save(PICTURES / "steps.webp", quality=88)
    fills = [("input", frame)]
    for number, (fill, video) in enumerate(results.items(), 4):
        quality = compare(clip, video, ("psnr",))["psnr"]
        fills.append((f"{number}  {fill}: {quality:.1f} dB", video.frames[STILL]))
    Image.fromarray(row(fills).numpy()).save(PICTURES / "fills.webp", quality=88)


def row(panels: list[tuple[str, Tensor]]) -> Tensor:
    """Labelled pictures of one height side by side, [H, W, 3]."""
    drawn = []
    for label, picture in panels:
        head = torch.full((30, picture.shape[1] + 8, 3), PAPER, dtype=torch.uint8)
        write(head, label, x=2, middle=15, size=17, colour=INK)
        side = torch.full((len(picture), 8, 3), PAPER, dtype=torch.uint8)
        drawn.append(torch.cat([head, torch.cat([picture, side], 1)], 0))
    return torch.cat(drawn, 1)


def streams(tokenizer: Tokenizer, clip: Video) -> None:
    """Kept cells over time: every clip on its own, and as one stream."""
    modes = {"clips on their own": "clips", "one stream": "stateful"}
    curves = {
        name: keep_curve(StreamEncoder(tokenizer, StreamConfig(mode=mode, key_seconds=0)).encode([clip]))
        for name, mode in modes.items()
    }
    draw_curves(str(PICTURES / "streams.png"), curves, title="The built-in clip, 66 frames")


if __name__ == "__main__":
    make()
