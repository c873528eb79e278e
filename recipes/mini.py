# SPDX-License-Identifier: Apache-2.0
"""Make the weights that ship, `mini` and its LITs, from real clips. Runs where there is a GPU and little else.

    python recipes/mini.py clips  VIDEOS CLIPS              AV1 videos to .ivf, once, where PyAV is (no re-encoding)
    python recipes/mini.py backbone --clips CLIPS --run RUN [--photos PHOTOS] [--seconds 840] [--stop-after 560]
    python recipes/mini.py together --clips CLIPS --run RUN --from mini.safetensors --from-lit mini.lit.safetensors
    python recipes/mini.py lit      --clips CLIPS --run RUN --backbone mini.safetensors --kind plus [--seconds 260]
    python recipes/mini.py pack     --run RUN --out weights/mini.safetensors [--stored int8]

A run that stopped after --stop-after goes on when the same command is given again; --from begins a new one from
weights, those of a `mini` with fewer blocks (--blocks) included. `--clips` may be named more than once. The `dav1d`
program decodes; --dav1d names it. Numbers of the shipped weights: src/inlay/weights/MODEL_CARD.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.backbones import Mini, MiniConfig, load_backbone
from inlay.fill import Lit
from inlay.fill import paper as paper_shape
from inlay.fill import plus as plus_shape
from inlay.research.recipe.ivf import PlanarVideo, decode_ivf, remux_to_ivf
from inlay.research.recipe.photos import PhotoClips
from inlay.research.recipe.resident import MixedClips, ResidentClips
from inlay.train import presets
from inlay.train.checkpoint import start_from
from inlay.train.config import TrainConfig
from inlay.train.loop import fit
from inlay.train.sampler import fixed_draws
from inlay.train.tasks import BackboneTask, LitTask, Task
from inlay.train.together import TogetherTask
from inlay.train.validate import ValidationSet
from inlay.weightfile import load_weights, save_weights

TYPICAL_DETAIL = 11.4  # grey levels: the median over the training clips
CHROMA = ("bicubic", "nearest", "bicubic")  # as inlay.video reads, and now and then as most programs do
PRESETS = {
    "backbone": presets.mini_training,
    "together": presets.together_training,
    "plus": presets.plus_training,
    "paper": presets.paper_training,
}
HELD_OUT = 24  # one clip in this many is never trained on; the choice goes by name, so it is the same everywhere


def main() -> None:
    args = parse()
    {"clips": make_clips, "pack": pack}.get(args.stage, train)(args)


def make_clips(args: argparse.Namespace) -> None:
    for video in sorted(args.videos.glob("*.mp4")):
        remux_to_ivf(video, args.out / f"{video.stem}.ivf")


def train(args: argparse.Namespace) -> None:
    config = settings(args)
    clips, held_out = load_clips(args)
    torch.manual_seed(config.seed)
    torch.backends.cudnn.benchmark = True
    task = TASKS[args.stage](args, config, held_out)
    held = held_out.entries
    say(f"{fit(task, clips, config, args.run, resume=True, validate_entries=held, stop_after=args.stop_after)}")
    if args.device == "cuda":
        say(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of GPU memory at most")


def backbone_task(args: argparse.Namespace, config: TrainConfig, held_out: ValidationSet) -> Task:
    module = Mini(shape(args))
    if args.start:
        say(f"begins from {args.start}; new: {', '.join(start_from(module, args.start)) or 'nothing'}")
    return BackboneTask(module.to(args.device), config, validation=held_out)


def together_task(args: argparse.Namespace, config: TrainConfig, held_out: ValidationSet) -> Task:
    meta = load_weights(args.start).meta
    module = Mini(shape(args), latent_mean=meta.get("latent_mean"), latent_std=meta.get("latent_std"))
    say(f"begins from {args.start}; new: {', '.join(start_from(module, args.start)) or 'nothing'}")
    lit = Lit.build(plus_shape())
    if args.start_lit:
        start_from(lit, args.start_lit)
    return TogetherTask(module.to(args.device), lit.to(args.device), config, validation=held_out)


def lit_task(args: argparse.Namespace, config: TrainConfig, held_out: ValidationSet) -> Task:
    backbone = load_backbone("mini", weights=args.backbone, device=args.device)
    lit = Lit.build({"plus": plus_shape, "paper": paper_shape}[args.kind]())
    if args.start:
        start_from(lit, args.start)
    return LitTask(lit.to(args.device), backbone, config, validation=held_out)


TASKS = {"backbone": backbone_task, "together": together_task, "lit": lit_task}


def shape(args: argparse.Namespace) -> MiniConfig:
    """The network: as the package has it, or with other numbers of blocks."""
    if not args.blocks:
        return MiniConfig()
    fine, coarse, after_coarse, after_fine = args.blocks
    return replace(MiniConfig(), encoder_blocks=(fine, coarse), decoder_blocks=(after_coarse, after_fine))


def pack(args: argparse.Namespace) -> None:
    """The run's best weights in the size they ship in."""
    weights = load_weights(args.run / "weights.safetensors")
    save_weights(args.out, weights.tensors, weights.meta, stored=args.stored)
    say(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


def settings(args: argparse.Namespace) -> TrainConfig:
    """The stage's preset, for as long as there is time."""
    kind = getattr(args, "kind", args.stage)
    config = PRESETS[kind]()
    if kind == "paper":  # the paper's recipe, in our time and at our crop
        own = presets.plus_training().clips
        config = replace(config, precision="bf16", clips=replace(config.clips, size=own.size, zoom=own.zoom))
    config = replace(config, steps=10**6, max_seconds=args.seconds)
    config = replace(config, compile=args.device == "cuda", record=args.device == "cuda")
    config = replace(config, validate_every=args.validate_every, checkpoint_every=1000, log_every=50)
    if getattr(args, "tau", None):
        config = replace(config, tau=(args.tau[0], args.tau[-1]))
    config = config.with_options(**dict(args.set))
    if args.tiny:
        return replace(
            config, batch=2, clips=replace(config.clips, frames=9, size=64), compile=False, record=False, log_every=1
        )
    return config


def load_clips(args: argparse.Namespace) -> tuple[MixedClips, ValidationSet]:
    """What is trained on, and what is not: 33 frames at 256x256, interval 1."""
    began = time.monotonic()
    paths = sorted(p for folder in args.clips for p in folder.glob("*.ivf"))[: args.limit]
    kept, held = ([p for p in paths if is_held_out(p) == flag] for flag in (False, True))
    videos = decode_ivf([*kept, *held], program=args.dav1d)
    train = ResidentClips(videos[: len(kept)], names=[p.stem for p in kept], device=args.device, chroma=CHROMA)
    train.weights = tuple(len(v) * detail(v) ** args.detail_power for v in train.videos)
    test = ResidentClips(videos[len(kept) :], names=[p.stem for p in held], device=args.device)
    frames, size = (9, 64) if args.tiny else (33, 256)
    draws = tuple(fixed_draws(test.entries, frames=frames, size=size))
    sources, shares = [train], [1.0]
    if args.photos:
        sources.append(PhotoClips.from_folder(args.photos, device=args.device))
        shares = [1 - args.photo_share, args.photo_share]
    say(f"{len(kept)} clips to train on, {len(draws)} held out, read in {time.monotonic() - began:.1f} s")
    return MixedClips(sources, shares), ValidationSet(source=test, draws=draws, device=args.device)


def detail(video: PlanarVideo) -> float:
    """How much there is to see, 0.4 to 2.5: differences between neighbouring pixels and frames. Flat, still clips are
    many and soon learnt; texture under a moving camera is what the network ends up worst at."""
    y_THW = video.y[::8].float()
    steps = [(y_THW - torch.roll(y_THW, 1, dims=d)).abs().mean().item() for d in (1, 2)]
    moved = (video.y[1::8].float() - y_THW[: len(video.y[1::8])]).abs().mean().item()
    return min(max((sum(steps) + moved) / TYPICAL_DETAIL, 0.4), 2.5)


def is_held_out(path: Path) -> bool:
    return int(hashlib.sha256(path.stem.encode()).hexdigest(), 16) % HELD_OUT == 0


def setting(text: str) -> tuple[str, object]:
    """`lr=1e-3`: a setting of the preset to change."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    clips = stages.add_parser("clips")
    clips.add_argument("videos", type=Path)
    clips.add_argument("out", type=Path)
    for name in ("backbone", "together", "lit"):
        stage = stages.add_parser(name)
        stage.add_argument("--clips", type=Path, action="append", required=True)
        stage.add_argument("--run", type=Path, required=True)
        stage.add_argument("--from", dest="start", type=Path, metavar="WEIGHTS")
        stage.add_argument("--photos", type=Path)
        stage.add_argument("--photo-share", type=float, default=0.1)
        stage.add_argument("--detail-power", type=float, default=1.0, help="above 1: detailed clips more often")
        stage.add_argument("--seconds", type=float, default=840.0)
        stage.add_argument("--stop-after", type=float, default=0.0)
        stage.add_argument("--validate-every", type=int, default=4000)
        stage.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE")
        stage.add_argument("--device", default="cuda")
        stage.add_argument("--dav1d", default="dav1d")
        stage.add_argument("--limit", type=int)
        stage.add_argument("--tiny", action="store_true", help="a rehearsal on a CPU")
        if name != "lit":
            stage.add_argument("--blocks", type=int, nargs=4, help="encoder fine and coarse, decoder coarse and fine")
        if name == "together":
            stage.add_argument("--from-lit", dest="start_lit", type=Path, metavar="WEIGHTS")
    stage.add_argument("--backbone", type=Path, required=True)
    stage.add_argument("--kind", choices=["plus", "paper"], required=True)
    stage.add_argument("--tau", type=float, nargs="+", help="one threshold, or the ends of a range")
    packed = stages.add_parser("pack")
    packed.add_argument("--run", type=Path, required=True)
    packed.add_argument("--out", type=Path, required=True)
    packed.add_argument("--stored", default="int8")
    return parser.parse_args()


if __name__ == "__main__":
    main()
