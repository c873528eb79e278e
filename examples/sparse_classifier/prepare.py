# SPDX-License-Identifier: Apache-2.0
"""Photographs or videos in, a file of latents with labels out: encoded once, so that every model reads the same.

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
    latents, labels, train = [], [], []
    for batch in batches(clips_of(args)):
        z_BCTHW = tokenizer.latents(tokenizer.pixels([c.video for c in batch]))
        latents.append(z_BCTHW.cpu().to(torch.float16))
        labels += [c.label for c in batch]
        train += [c.train for c in batch]
        print(f"\r{len(labels)} clips", end="", flush=True)
    tau = args.tau if args.tau is not None else tokenizer.recipe().tau
    made_by = tokenizer.spec.weight_hash
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        args.out,
        latents=torch.cat(latents).numpy(),
        labels=np.array(labels),
        train=np.array(train),
        classes=np.array(TASKS[args.task]),
        tau=tau,
        about=f"{args.task}: {args.frames} frames of {args.side}x{args.side}, {args.backbone} weights {made_by}",
    )
    print(f"\r{len(labels)} clips, {sum(train)} of them for training, tau {tau:g} -> {args.out}")


def clips_of(args: argparse.Namespace) -> Iterator[Clip]:
    if args.task == "subject":
        if args.videos is None:
            raise SystemExit("the task 'subject' needs --videos: a folder with manifest.csv and train/")
        return subject_clips(args.videos, frames=args.frames, side=args.side)
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
