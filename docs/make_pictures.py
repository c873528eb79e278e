# SPDX-License-Identifier: Apache-2.0
"""Make the pictures of the docs: real runs, clips made by code. (docs/make_samples.py makes those of real clips.)

python docs/make_pictures.py        # or: make pictures; writes docs/pictures/ and benchmarks/demo_cpu.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image

from inlay.cli.main import main
from inlay.codec import CLIP_FRAMES, EncodeConfig, Encoder, keep_curve
from inlay.draw.film import side_by_side
from inlay.draw.lighting import heat, light
from inlay.draw.plots import keep_curves
from inlay.masking import MaskConfig, scored_scan
from inlay.measure import compare
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PICTURES, RECORD = DOCS / "pictures", ROOT / "benchmarks" / "demo_cpu.json"
STILL = 30  # a frame of the clip: the camera does not move
FACTOR = 2  # of the model's own tau, where the difference between fills can be seen


def make() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = demo(folder)
        run("view", str(folder / "clip.mp4"), str(folder / "sheet.png"), "--quiet")
        Image.open(folder / "sheet.png").save(PICTURES / "sheet.webp", quality=85)
        shutil.copy(folder / "curve.png", PICTURES / "curve.png")
    tokenizer, clip = Tokenizer.from_pretrained("mini", device="cpu"), demo_clip()
    steps(tokenizer, clip[:CLIP_FRAMES])
    streams(tokenizer, clip)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    made = "sheet.webp, curve.png, steps.webp, fills.webp and streams.png"
    sys.stderr.write(
        f"wrote {made} in {PICTURES.relative_to(ROOT)}/, and {RECORD.relative_to(ROOT)}; now: make numbers\n"
    )


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


def steps(tokenizer: Tokenizer, clip: Video) -> None:
    """One frame on its way: input, how much each cell changed, what is kept, what two fills make of it."""
    tau = FACTOR * tokenizer.default_tau("latent-l1")
    tokens = tokenizer.encode(clip, tau=tau)
    results = {fill: tokenizer.decode(tokens, fill=fill) for fill in ("hold", "lit")}
    slot, stride = -(-STILL // tokenizer.spec.time_stride), tokenizer.spec.space_stride
    z_BCTHW = tokenizer.encode_pixels(tokenizer.pixels([clip]))
    chosen = scored_scan(z_BCTHW, MaskConfig(tau=tau))
    change = chosen.score_BTHW[0, slot].float() / (2 * tau)
    kept = tokens.mask[slot].float().mean().item()
    frame = clip.frames[STILL]
    panels = [
        ("1  input", frame),
        ("2  change of each cell", heat(change.repeat_interleave(stride, 0).repeat_interleave(stride, 1))),
        (f"3  kept: {kept:.0%}", light(frame[None], tokens.mask[slot][None], stride)[0]),
    ]
    save_row(panels, "steps.webp")
    fills = [("input", frame)]
    for number, (fill, video) in enumerate(results.items(), 4):
        quality = compare(clip, video, ("psnr",))["psnr"]
        fills.append((f"{number}  {fill}: {quality:.1f} dB", video.frames[STILL]))
    save_row(fills, "fills.webp")


def save_row(panels: list[tuple[str, torch.Tensor]], name: str) -> None:
    """Labelled pictures side by side."""
    row = side_by_side([([label], picture[None]) for label, picture in panels])[0]
    Image.fromarray(row.numpy()).save(PICTURES / name, quality=88)


def streams(tokenizer: Tokenizer, clip: Video) -> None:
    """Kept cells over time: every clip on its own, and as one stream."""
    modes = {"clips on their own": "clips", "one stream": "stateful"}
    curves = {
        name: keep_curve(Encoder(tokenizer, EncodeConfig(mode=mode, key_seconds=0)).encode([clip]))
        for name, mode in modes.items()
    }
    (PICTURES / "streams.png").write_bytes(keep_curves(curves, title="The built-in clip, 66 frames"))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    make()
