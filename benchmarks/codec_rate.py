# SPDX-License-Identifier: Apache-2.0
"""How much of the networks' own rate the codec reaches: frames in memory to tokens, tokens to frames.

    python benchmarks/codec_rate.py --out codec_rate.json [--models mini cosmos] [--device cuda --dtype bfloat16]

Each row sets the codec beside the same networks alone in the same run: encode + mask on pixels that lie on the device,
LIT + decode on latents that lie there. `clips`: clips of 33 frames, each on its own; `stream`: one video of 330 frames
with carried state and scene cuts looked for, as `inlay encode` does it. At batch 8 eight of them go in step.

The share of a row is that of one call: videos in, all tokens out, nothing before or after it. `steady` is the rate of
videos one after the other, as a job has them (`encode_groups`): the first chunks of one are on the device before the
last tokens of the one before it are out. With --profile each row of encode says what the device did meanwhile.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import DeviceType

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.codec import Decoder, EncodeConfig, Encoder, encode_groups
from inlay.container.tokens import Tokens
from inlay.masking import Budget, scan
from inlay.origin import commit
from inlay.research.bench.config import BenchConfig
from inlay.research.bench.run import load
from inlay.research.bench.stages import tau_for
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip

CLIP, STREAM = 33, 330
STEADY = 6  # videos one after the other
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
                for found in measure(tokenizer, video, kind, batch, tau, args):
                    rows[:] = [*(row for row in rows if row is not found), found]
                    found["model"] = model
                    shown = {name: value for name, value in found.items() if name != "device"}
                    print(f"{time.monotonic() - began:6.1f} s {shown}", flush=True)
                    args.out.write_text(json.dumps(record(args, rows), indent=1) + "\n")


def measure(
    tokenizer: Tokenizer, video: Video, kind: str, batch: int, tau: float, args: argparse.Namespace
) -> Iterator[dict[str, object]]:
    """Milliseconds a clip of 33 frames, for the networks alone and for the codec; a row comes again with more in it."""
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
    found = row(kind, batch, "encode", spent(alone.encode, args) / clips, spent(encode, args) / clips)
    yield found

    def encode_many() -> None:
        groups = ([[video] for video in videos] for _ in range(STEADY))
        for _, made in encode_groups(tokenizer, groups, config, budget=Budget(tau=tau), batch=batch):
            if isinstance(made, Exception):
                raise made

    def alone_many() -> None:
        for _ in range(STEADY):
            alone.encode()

    networks, codec = (spent(call, args) / clips / STEADY for call in (alone_many, encode_many))
    found |= {"steady_networks_ms": round(1000 * networks, 4), "steady_codec_ms": round(1000 * codec, 4)}
    found |= {"steady_share": round(networks / codec, 4)}
    yield found
    if args.profile:
        found |= {"device": {"networks": busy(alone_many, clips), "codec": busy(encode_many, clips)}}
        yield found
    if "decode" in args.ways:
        yield row(kind, batch, "decode", spent(alone.decode, args) / clips, spent(decode, args) / clips)


def busy(call: Callable[[], object], clips: float) -> dict[str, object]:
    """What the device did in a call, in milliseconds a clip: all of it, the time that anything ran, and the longest."""
    kind = torch.profiler.ProfilerActivity.CUDA if torch.cuda.is_available() else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as profile:
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        wall = time.perf_counter() - start
    events = [e for e in profile.events() if not torch.cuda.is_available() or e.device_type == DeviceType.CUDA]
    spans = sorted((e.time_range.start, e.time_range.end) for e in events)
    kernels = [e for e in events if not e.name.startswith("Memcpy")]
    names: Counter[str] = Counter()
    for event in events:
        names[event.name[:90]] += event.time_range.elapsed_us()
    scale = 1 / 1000 / clips / STEADY
    return {
        "wall_ms": round(1000 * wall / clips / STEADY, 4),
        "busy_ms": round(covered(spans) * scale, 4),
        "kernels_busy_ms": round(covered(sorted((e.time_range.start, e.time_range.end) for e in kernels)) * scale, 4),
        "longest_ms": [[name, round(us * scale, 5)] for name, us in names.most_common(25)],
    }


def covered(spans: list[tuple[float, float]]) -> float:
    """Microseconds in which at least one of the spans, sorted by their beginnings, goes on."""
    total, until = 0.0, float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


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
    parser.add_argument("--ways", nargs="+", choices=["encode", "decode"], default=["encode", "decode"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--repeats", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
