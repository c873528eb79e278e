# SPDX-License-Identifier: Apache-2.0
"""Encode a folder of videos once: latents, masks at each keep rate, and the frames that predictions are judged by.

python examples/world_model/prepare.py VIDEOS world.safetensors
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import zlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save
from torch import Tensor

from inlay import Tokenizer, Tokens, Video
from inlay.container import to_bytes
from inlay.errors import InlayError
from inlay.files import check_output, write_atomic
from inlay.masking import MaskConfig, keep_mask, keep_rate_of, nearest_tau
from inlay.types import Recipe, VideoInfo
from inlay.video import open_video
from inlay.video.listing import TRAINING, find_videos

T = TypeVar("T")
TESTED = 6  # one source of so many is kept out of training


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    check_output(args.out, what="the latents", suffixes=(".safetensors",), force=True)
    tokenizer = Tokenizer.from_pretrained(args.backbone, device=args.device, weights=args.weights)
    future = args.future * tokenizer.spec.time_stride
    videos = some(find_videos(args.videos, purpose=TRAINING).videos, args.clips)
    judged = some([name for name, _ in videos if is_test(name)], args.judged)
    latents, names, frames = [], [], {}
    for name, video in clips_of(videos, args):
        z_BCTHW = tokenizer.encode_pixels(tokenizer.pixels([video])).cpu().half()
        if name in judged:
            frames[len(names)] = video.frames[-future:]
        latents.append(z_BCTHW)
        names.append(name)
        print(f"\r{len(names)} clips", end="", flush=True)
    print()
    test_B = torch.tensor([is_test(name) for name in names])
    if not frames or bool(test_B.all()):
        raise SystemExit(f"prepare: {len(names)} clips, {int(test_B.sum())} of them held out; give more videos")
    if len({z.shape for z in latents}) > 1:
        raise SystemExit("prepare: clips of several shapes; give one --size for all, WxH")
    z_BCTHW = torch.cat(latents)
    if not 1 <= args.future <= z_BCTHW.shape[2] - 2:
        raise SystemExit(f"prepare: {z_BCTHW.shape[2]} slots leave no past of two before --future {args.future}")
    tensors = {"latents": z_BCTHW, "test": test_B}
    tensors |= {"frames": torch.stack(list(frames.values())), "judged": torch.tensor(list(frames))}
    train = z_BCTHW[~test_B]
    sizes = {"float16": train.numel() * 2, "q8, all cells": token_bytes(tokenizer, train, 0.0, args)}
    taus = {}
    for share in args.keep:
        taus[share] = nearest_tau(lambda tau: keep_rate_of(masked(train, tau)), share, tolerance=1e-4).tau
        tensors[f"keep {share:g}"] = masked(z_BCTHW, taus[share])
        sizes[f"q8, {share:g} kept"] = token_bytes(tokenizer, train, taus[share], args)
    given = {str(args.videos): "VIDEOS", str(args.out): args.out.name, str(args.weights): "WEIGHTS"}
    about = {
        "command": shlex.join(["python", "examples/world_model/prepare.py", *(given.get(w, w) for w in sys.argv[1:])]),
        "backbone": tokenizer.spec.name,
        "weight_hash": tokenizer.spec.weight_hash,
        "frames": args.frames,
        "size": args.size,
        "future": args.future,
        "taus": {f"{share:g}": tau for share, tau in taus.items()},
        "training_set_bytes": sizes,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(args.out, save(tensors, {"about": json.dumps(about)}))
    print(f"{len(train)} clips to learn from, {len(z_BCTHW) - len(train)} to test, {len(frames)} of them with frames; "
          f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")  # fmt: skip


def some(items: Sequence[T], most: int | None) -> Sequence[T]:
    """At most so many, from all over the list."""
    return [items[i * len(items) // most] for i in range(most)] if most and most < len(items) else items


def clips_of(videos: Sequence[tuple[str, Path]], args: argparse.Namespace) -> Iterator[tuple[str, Video]]:
    """The first frames of each video; those that are too short or damaged are named and left out."""
    for name, path in videos:
        try:
            with open_video(path, size=args.size, frames=args.frames) as reader:
                video = next(reader.chunks(args.frames))
        except InlayError as error:
            print(f"\rleft out: {error}", file=sys.stderr)
            continue
        if len(video) == args.frames:
            yield name, video
        else:
            print(f"\rleft out: {name} has {len(video)} frames", file=sys.stderr)


def is_test(name: str) -> bool:
    """By the first word of the name, so that clips of one source (`farm_1`, `farm_2`) are on the same side."""
    return zlib.crc32(Path(name).stem.partition("_")[0].encode()) % TESTED == 0


def masked(z_BCTHW: Tensor, tau: float) -> Tensor:
    return keep_mask(z_BCTHW.float(), MaskConfig(tau=tau))


def token_bytes(tokenizer: Tokenizer, z_BCTHW: Tensor, tau: float, args: argparse.Namespace) -> int:
    """What the clips take as token files, header and mask included."""
    recipe = Recipe(backbone=tokenizer.spec.name, weight_hash=tokenizer.spec.weight_hash, tau=tau)
    rows, columns = (side * tokenizer.spec.space_stride for side in z_BCTHW.shape[3:])
    info = VideoInfo(width=columns, height=rows, fps=Fraction(24), frames=args.frames)
    total = 0
    for z_CTHW, keep_THW in zip(z_BCTHW.float(), masked(z_BCTHW, tau), strict=True):
        values = z_CTHW.movedim(0, -1)[keep_THW]
        total += len(to_bytes(Tokens(values=values, mask=keep_THW, info=info, recipe=recipe)))
    return total


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, help="a folder of videos, or a text file that names some")
    parser.add_argument("out", type=Path, help="a .safetensors file")
    parser.add_argument("--keep", type=float, nargs="+", default=[0.35, 0.2], help="keep rates, over all clips")
    parser.add_argument("--frames", type=int, default=33, help="of each clip")
    parser.add_argument("--size", default="96x96", help="as inlay encode takes it, one for all clips: WxH")
    parser.add_argument("--future", type=int, default=2, help="slots to predict")
    parser.add_argument("--clips", type=int, help="videos to use at most")
    parser.add_argument("--judged", type=int, default=40, help="test clips to decode, whose frames are stored")
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--weights", help="in place of the published ones")
    parser.add_argument("--device", default="auto")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        main()
    except InlayError as error:
        raise SystemExit(f"prepare: {error}") from error
