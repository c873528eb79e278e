# SPDX-License-Identifier: Apache-2.0
"""Time the embedded pipeline on this CPU, its plain form beside its fast one; prints one JSON object.

    python benchmarks/cpu_speed.py --out benchmarks/cpu_speed_cpu.json
    python benchmarks/cpu_speed.py --videos DIR --every 4 --out benchmarks/cpu_rounding_cpu.json

The plain form (INLAY_FAST=0) has torch's own convolutions and attention, as the first version had. Both run in turn in
one process on one clip of 33x256x256 with the shipped weights, in float32; medians of --repeats. `psnr_change_db` is
the PSNR of the fast reconstruction less that of the plain one, both from tokens of their own. `frames_a_second` is of
fill and decode together. Import and first call are timed in processes of their own. `wall` needs an idle machine; `cpu`
is the time of all threads together.

With --videos nothing is timed: the same change of PSNR for the middle 256x256 of each clip, from the same latents, with
all cells kept and with a share of --keep, before pixels are rounded to 8 bits.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from inlay.container.tokens import Tokens
from inlay.kernels.switch import at_level
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip

FORMS = {"plain": "0", "fast": "1"}
FIRST = """
import time; start = time.perf_counter()
import inlay; tokenizer_class = inlay.Tokenizer; opened = time.perf_counter()
tokenizer = tokenizer_class.from_pretrained(device="cpu"); loaded = time.perf_counter()
from inlay.video.synthetic import demo_clip
clip = demo_clip(frames=33, height=256, width=256); ready = time.perf_counter()
tokenizer.decode(tokenizer.encode(clip, tau=1.2)); done = time.perf_counter()
print(opened - start, loaded - opened, done - ready)
"""


def whole_way(tokenizer: Tokenizer, clip: Video, tau: float) -> tuple[Video, Tokens, dict[str, tuple[float, float]]]:
    """The reconstruction, the tokens, and (wall, cpu) seconds of each stage."""
    from inlay.container.reader import open_tokens
    from inlay.container.writer import to_bytes

    marks = [(time.perf_counter(), time.process_time())]

    def mark() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    tokens = tokenizer.encode(clip, tau=tau)
    mark()
    tokens = open_tokens(BytesIO(to_bytes(tokens)))
    mark()
    dense = tokenizer.fill(tokens)
    mark()
    video = tokenizer.decode(dense, fps=tokens.info.fps, size=(tokens.info.height, tokens.info.width))
    mark()
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]
    times = dict(zip(("encode_and_mask", "token_bytes", "lit", "decode"), spans, strict=True))
    return video, tokens, times | {"whole": (marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1])}


def psnr(a: Video, b: Video) -> float:
    return -10 * math.log10(float((a.frames.double() - b.frames.double()).square().mean()) / 255**2)


@torch.inference_mode()
def on_videos(tokenizer: Tokenizer, paths: list[Path], keep: float) -> dict[str, Any]:
    """PSNR of the fast form less that of the plain one, clip by clip."""
    from inlay.masking import MaskConfig, keep_mask
    from inlay.research.bench.stages import tau_for
    from inlay.video import read_video

    rows: dict[str, dict[str, float]] = {}
    for path in paths:
        frames = read_video(path)[:33]
        top, left = (frames.height - 256) // 2, (frames.width - 256) // 2
        x = tokenizer.pixels([frames])[..., max(top, 0) :, max(left, 0) :][..., :256, :256]
        z = tokenizer.encode_pixels(x).float()
        tau = tau_for(z, keep)
        mask = keep_mask(z, MaskConfig(tau=tau))
        found: dict[str, float] = {"tau": tau}
        for form, level in FORMS.items():
            with at_level(level):
                filled = tokenizer.fill_cells(z * mask[:, None], mask, tau, "lit")
                for name, dense in (("full", z), ("kept", filled)):
                    error = (tokenizer.decode_latents(dense).clamp(-1, 1) - x).double().square().mean()
                    found[f"{name}_{form}"] = -10 * math.log10(float(error) / 4)
        changes = {f"{name}_change": found[f"{name}_fast"] - found[f"{name}_plain"] for name in ("full", "kept")}
        rows[path.name] = {key: round(value, 4) for key, value in (found | changes).items()}
    means = {f"{name}_change": sum(r[f"{name}_change"] for r in rows.values()) / len(rows) for name in ("full", "kept")}
    return {"keep": keep, "clips": len(rows), "mean": means, "rows": rows}


def first_call(level: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "INLAY_FAST": level},
    )
    names = ("import_tokenizer_s", "load_s", "first_encode_decode_s")
    return dict(zip(names, map(float, done.stdout.split()), strict=True))


def import_time() -> float:
    code = "import time; s = time.perf_counter(); import inlay; print(time.perf_counter() - s)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(r.stdout) for r in runs)


def video_decoding(clip: Video) -> dict[str, float]:
    from inlay.video import read_video, write_video

    with tempfile.TemporaryDirectory() as folder:
        write_video(clip, Path(folder) / "clip.mp4")
        spans = []
        for _ in range(5):
            start = time.perf_counter()
            read_video(Path(folder) / "clip.mp4")
            spans.append(time.perf_counter() - start)
    return {"frames": len(clip), "read_s": median(spans), "frames_a_second": len(clip) / median(spans)}


def measure(tokenizer: Tokenizer, repeats: int, tau: float) -> dict[str, Any]:
    clip = demo_clip(frames=33, height=256, width=256)
    runs: dict[str, list[dict[str, tuple[float, float]]]] = {form: [] for form in FORMS}
    quality: dict[str, float] = {}
    for turn in range(repeats + 1):
        for form, level in FORMS.items():
            with at_level(level):
                video, tokens, times = whole_way(tokenizer, clip, tau)
            quality[form] = psnr(video, clip)
            quality[f"{form}_tokens"] = len(tokens)
            if turn:  # the first turn warms up
                runs[form].append(times)
    stages = {
        stage: {
            f"{form}_{kind}_s": median(run[stage][i] for run in runs[form])
            for form in FORMS for i, kind in enumerate(("wall", "cpu"))
        }
        for stage in runs["plain"][0]
    }  # fmt: skip
    for row in stages.values():
        row |= {f"ratio_{kind}": row[f"plain_{kind}_s"] / row[f"fast_{kind}_s"] for kind in ("wall", "cpu")}
    rates = {form: len(clip) / sum(stages[s][f"{form}_wall_s"] for s in ("lit", "decode")) for form in FORMS}
    return {
        "stages": stages,
        "frames_a_second": rates,
        "psnr_change_db": quality["fast"] - quality["plain"],
        "psnr": quality,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tau", type=float, default=1.2)
    parser.add_argument("--weights", help="of mini, in place of those that ship")
    parser.add_argument("--videos", type=Path, help="a folder of clips to compare the two forms on")
    parser.add_argument("--every", type=int, default=1, help="take every so manyth of them")
    parser.add_argument("--keep", type=float, default=0.32)
    a = parser.parse_args()
    tokenizer = Tokenizer.from_pretrained(device="cpu", weights=a.weights)
    record: dict[str, Any] = {
        "command": " ".join(["python benchmarks/cpu_speed.py", *(Path(word).name for word in sys.argv[1:])]),
        "clip": "33x256x256, float32",
        "weights": tokenizer.spec.weight_hash, "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(), "torch": torch.__version__, "load_average": os.getloadavg()[0],
    }  # fmt: skip
    if a.videos is not None:
        record |= on_videos(tokenizer, sorted(a.videos.glob("*.mp4"))[:: a.every], a.keep)
    else:
        record |= measure(tokenizer, a.repeats, a.tau)
        record |= {
            "import_s": import_time(), "first": {form: first_call(level) for form, level in FORMS.items()},
            "video": video_decoding(demo_clip(frames=66, height=256, width=256)),
        }  # fmt: skip
    text = json.dumps(record, indent=2)
    if a.out is not None:
        a.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
