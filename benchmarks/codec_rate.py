# SPDX-License-Identifier: Apache-2.0
"""How much of the networks' own rate the codec reaches: frames in memory to tokens, tokens to frames.

    python benchmarks/codec_rate.py --out codec_rate.json [--models mini cosmos] [--device cuda --dtype bfloat16]

Each row sets the codec beside the same networks alone in the same run: encode + mask on pixels that lie on the device,
LIT + decode on latents that lie there. `clips`: clips of 33 frames, each on its own; `stream`: one video of 330 frames
with carried state and scene cuts looked for, as `inlay encode` does it. At batch 8 eight of them go in step.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.codec import Decoder, EncodeConfig, Encoder
from inlay.container.tokens import Tokens
from inlay.masking import scan
from inlay.origin import commit
from inlay.research.bench.config import BenchConfig
from inlay.research.bench.run import load
from inlay.research.bench.stages import tau_for
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip

CLIP, STREAM = 33, 330
MODELS = {"mini": "mini-random", "cosmos": "cosmos-360p-random", "tiny": "mini-untrained"}


def main() -> None:
    args = parse()
    began = time.monotonic()
    rows: list[dict[str, object]] = []
    for model in args.models:
        tokenizer = load(BenchConfig(backbone=MODELS[model], device=args.device, dtype=args.dtype))
        video = long_clip(args.side)
        tau = tau_for(tokenizer.encode_pixels(tokenizer.pixels([video[:CLIP]])), args.keep)
        for batch in args.batches:
            for kind in ("clips", "stream"):
                rows += [{"model": model, **row} for row in measure(tokenizer, video, kind, batch, tau, args)]
                sys.stdout.write(f"{time.monotonic() - began:6.1f} s {rows[-2]}\n{rows[-1]}\n")
                sys.stdout.flush()
                args.out.write_text(json.dumps(record(args, rows), indent=1) + "\n")


def measure(
    tokenizer: Tokenizer, video: Video, kind: str, batch: int, tau: float, args: argparse.Namespace
) -> list[dict[str, object]]:
    """Milliseconds a clip of 33 frames, for the networks alone and for the codec, both ways."""
    mode = "clips" if kind == "clips" else "auto"
    config = EncodeConfig(mode=mode, cuts=kind == "stream", key_seconds=0)
    videos = [on(video, args.frames_on, tokenizer.device)] * batch
    encoder = Encoder(tokenizer, config, tau=tau, streams=batch, batch=batch)

    def encode() -> list[list[Tokens]]:
        done: list[list[Tokens]] = [[] for _ in videos]
        for number, chunk in encoder.step(videos, ended=[True] * batch):
            done[number].append(chunk)
        encoder.reset()
        return done

    tokens = encode()
    chunks = list(zip(*tokens, strict=True))
    decoder = Decoder(tokenizer, streams=batch)

    def decode() -> None:
        for _ in decoder.decode_all(chunks):
            pass

    alone = Alone(tokenizer, video, [len(chunk[0].mask) for chunk in chunks], kind, batch, tau)
    clips = batch * len(video) / CLIP
    return [
        row(kind, batch, "encode", spent(alone.encode, args) / clips, spent(encode, args) / clips),
        row(kind, batch, "decode", spent(alone.decode, args) / clips, spent(decode, args) / clips),
    ]


class Alone:
    """The networks without a codec: inputs lie on the device, outputs stay there."""

    def __init__(self, tokenizer: Tokenizer, video: Video, slots: list[int], kind: str, batch: int, tau: float) -> None:
        self.tokenizer, self.tau, self.carries = tokenizer, tau, kind == "stream" and tokenizer.spec.stateful
        self.mask = EncodeConfig().mask(tau)
        at, self.x = 0, []
        for number, count in enumerate(slots):
            frames = tokenizer.spec.frames(count) if number == 0 or not self.carries else 4 * count
            frames = min(frames, len(video) - at)
            part = video[at : at + frames]
            continued = self.carries and number > 0
            self.x.append(tokenizer.pixels([part] * batch, continued=continued))
            at += frames
        self.z: list[tuple[Tensor, Tensor]] = []
        self.encode(keep=True)

    def encode(self, *, keep: bool = False) -> None:
        state, reference = None, None
        for x in self.x:
            if self.carries:
                z, state = self.tokenizer.encode_next(x, state)
            else:
                z, reference = self.tokenizer.encode_pixels(x), None
            mask, reference = scan(z, self.mask, reference)
            if keep:
                self.z.append((z * mask[:, None], mask))

    def decode(self) -> None:
        state = None
        for number, (z, mask) in enumerate(self.z):
            led = self.carries and number > 0
            if led:
                z = torch.cat([z[:, :, :1], z], dim=2)
                mask = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
            z = self.tokenizer.fill_cells(z, mask, self.tau, "lit")[:, :, int(led) :]
            if self.carries:
                _, state = self.tokenizer.decode_next(z, state)
            else:
                self.tokenizer.decode_latents(z)


def spent(call: Callable[[], object], args: argparse.Namespace) -> float:
    """Seconds, the best of a few: after the graphs are captured, with the device's queue empty at both ends."""
    best = float("inf")
    for _ in range(3 + args.repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def row(kind: str, batch: int, way: str, alone: float, codec: float) -> dict[str, object]:
    return {
        "kind": kind,
        "batch": batch,
        "way": way,
        "networks_ms": round(1000 * alone, 4),
        "codec_ms": round(1000 * codec, 4),
        "share_of_rate": round(alone / codec, 4),
    }


def long_clip(side: int) -> Video:
    clip = demo_clip(frames=66, height=side, width=side)
    frames = torch.cat([clip.frames, clip.frames.flip(0)] * 3)[:STREAM]
    return Video(frames=frames, fps=clip.fps)


def on(video: Video, place: str, device: torch.device) -> Video:
    frames = {"pinned": lambda: video.frames.pin_memory(), "device": lambda: video.frames.to(device)}
    return video if place == "host" else Video(frames=frames[place](), fps=video.fps)


def record(args: argparse.Namespace, rows: list[dict[str, object]]) -> dict[str, object]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return {
        "what": "the codec beside its networks alone: milliseconds a clip of 33 frames, best of several",
        "command": f"python benchmarks/codec_rate.py {' '.join(sys.argv[1:])}",
        "commit": commit(),
        "machine": f"{device}, torch {torch.__version__}",
        "side": args.side,
        "dtype": args.dtype,
        "frames_on": args.frames_on,
        "keep": args.keep,
        "rows": rows,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["mini", "cosmos"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--frames-on", choices=["pinned", "device", "host"], default="pinned")
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--keep", type=float, default=0.35)
    parser.add_argument("--repeats", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
