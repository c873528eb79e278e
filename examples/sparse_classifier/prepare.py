# SPDX-License-Identifier: Apache-2.0
"""Encode photographs or videos into a file of latents with labels, once, so that every model reads the same.

python examples/sparse_classifier/prepare.py motion latents/motion.npz --photos PHOTOS
python examples/sparse_classifier/prepare.py subject latents/subject.npz --videos DATA
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from clips import MOTIONS, SUBJECTS, Clip, invented_photos, motion_clips, read_photos, subject_clips

from inlay import Tokenizer
from inlay.errors import InlayError

BATCH = 16
TASKS = {"motion": tuple(MOTIONS), "subject": SUBJECTS}


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    tokenizer = Tokenizer.from_pretrained(args.backbone, device=args.device)
    latents, labels, sources, folds = [], [], [], []
    for batch in batches(clips_of(args)):
        z_BCTHW = tokenizer.encode_pixels(tokenizer.pixels([c.video for c in batch]))
        latents.append(z_BCTHW.cpu().to(torch.float16))
        labels += [c.label for c in batch]
        sources += [c.source for c in batch]
        folds += [c.fold for c in batch]
        print(f"\r{len(labels)} clips", end="", flush=True)
    if not labels:
        raise SystemExit("prepare: no clips were found")
    tau = args.tau if args.tau is not None else tokenizer.default_tau("latent-l1")
    made_by = tokenizer.spec.weight_hash
    step_C, z8_BCTHW = quantised(torch.cat(latents).float())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        args.out,
        latents=z8_BCTHW.numpy(),
        step=step_C.numpy(),
        labels=np.array(labels),
        sources=np.array(sources),
        folds=np.array(folds),
        classes=np.array(TASKS[args.task]),
        tau=tau,
        about=f"{args.task}: {args.frames} frames of {args.side}x{args.side}, {args.backbone} weights {made_by}",
    )
    size = args.out.stat().st_size / 1e6
    print(f"\r{len(labels)} clips of {len(set(sources))} sources, tau {tau:g}, {size:.1f} MB -> {args.out}")


def quantised(z_BCTHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A step for each channel and 8-bit multiples of it: the file must travel, and every reading gets the same."""
    step_C = z_BCTHW.abs().amax((0, 2, 3, 4)).clamp(min=1e-6) / 127
    return step_C, (z_BCTHW / step_C.view(-1, 1, 1, 1)).round().to(torch.int8)


def clips_of(args: argparse.Namespace) -> Iterator[Clip]:
    if args.task == "subject":
        if args.videos is None:
            raise SystemExit("the task 'subject' needs --videos: a folder with manifest.csv and train/")
        return subject_clips(args.videos, frames=args.frames, side=args.side, windows=args.windows)
    photos = read_photos(args.photos) if args.photos else invented_photos()
    return motion_clips(photos, count=args.count, frames=args.frames, side=args.side, seed=args.seed)


def batches(clips: Iterator[Clip]) -> Iterator[list[Clip]]:
    held: list[Clip] = []
    for clip in clips:
        held.append(clip)
        if len(held) == BATCH:
            yield held
            held = []
    if held:
        yield held


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--photos", type=Path, help="a folder of photographs; without it textures are invented")
    parser.add_argument("--videos", type=Path, help="a folder with manifest.csv and train/")
    parser.add_argument("--count", type=int, default=1560, help="clips of the task 'motion'")
    parser.add_argument("--windows", type=int, default=3, help="clips of each video of the task 'subject'")
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--tau", type=float, help="the threshold of the mask; default: the backbone's own")
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        main()
    except InlayError as error:
        raise SystemExit(f"prepare: {error}") from error
