# SPDX-License-Identifier: Apache-2.0
"""Make the weights that ship, `mini` and its LITs, from a folder of videos. Runs where there is a GPU and little else.

    python recipes/mini.py all   VIDEOS OUT [--photos PHOTOS]      training and packing: everything, with one command
    python recipes/mini.py clips VIDEOS CLIPS                      AV1 videos to .ivf, once, where PyAV is
    python recipes/mini.py train CLIPS RUN [--photos PHOTOS] [--test TEST] [--lpips FILE] [--taef2 FOLDER]
    python recipes/mini.py pack  RUN WEIGHTS                       the trained networks in the size they ship in

CLIPS is a folder of .ivf files, which the `dav1d` program decodes (--dav1d names it), or of videos, which PyAV does.
One clip in 24, by name, is never trained on and is measured as the set `held`; TEST holds a folder of clips for each
further set. PHOTOS are photographs that move over one another and over clips (compose.py).

recipes/mini.json is the plan: a list of stages, each with what it changes of `DEFAULTS` in stages.py. A stage begins
from the networks the one before left, the first from nothing or from the weights in --weights, whose networks may have
fewer channels and fewer blocks: what is new begins as if it were not there. Without --lpips the perceptual term is left
out, without --taef2 its stage is.

RUN must not hold networks yet. RUN/results.json holds, after every stage, its settings, its log and what its networks
are worth (results.py); RUN/NAME.safetensors are averaged weights. A rehearsal on a CPU, four steps a stage: --tiny.
Then calibrate:

    inlay calibrate VIDEOS --weights WEIGHTS/mini.safetensors --out WEIGHTS/mini.profile.json
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from clips import Clips, TestSet, find_clips, is_held_out, test_set
from results import look, measure, statistics
from stages import DEFAULTS, LEARN, TINY, WARM, Nets, say, train

from inlay.backbones import Mini, MiniConfig
from inlay.backbones.mini import tiny
from inlay.backbones.taef2 import load_taef2
from inlay.errors import ConfigError, InlayError, MissingError, UsageError
from inlay.fill import Lit, LitConfig, paper, plus
from inlay.measure.lpips import load_lpips
from inlay.research.recipe.ivf import remux_to_ivf
from inlay.video.listing import VIDEO_SUFFIXES
from inlay.weightfile import load_weights, save_weights

FILES = {"backbone": "mini", "lit": "mini.lit", "paper": "mini.lit-paper"}  # network -> its file, as it ships
STORED = {"backbone": "int10", "lit": "int8", "paper": "int8"}
PLAN = Path(__file__).with_name("mini.json")


def main() -> int:
    args = parse()
    # recorded steps need a stream of their own, and autograd that all is done on one
    stream = torch.cuda.Stream() if torch.cuda.is_available() else None
    try:
        with torch.cuda.stream(stream):
            {"all": make_all, "clips": make_clips, "train": make_networks, "pack": pack}[args.command](args)
    except InlayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def make_all(args: argparse.Namespace) -> None:
    args.run, args.clips, args.weights_out = args.out / "run", args.videos, args.out / "weights"
    make_networks(args)
    pack(args)


def make_clips(args: argparse.Namespace) -> None:
    for video in sorted(p for p in args.videos.iterdir() if p.suffix.lower() in VIDEO_SUFFIXES):
        remux_to_ivf(video, args.clips / f"{video.stem}.ivf", frames=args.frames)


# --- training ---------------------------------------------------------------------------------------------------------


def make_networks(args: argparse.Namespace) -> None:
    """Every stage of the plan."""
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    plan = json.loads(args.plan.read_text(encoding="utf-8"))
    small = TINY | ({"steps": 2 * WARM} if device == "cuda" else {}) if args.tiny else {}  # a recording is played too
    stages = [DEFAULTS | stage | small for stage in plan["stages"]]
    if args.taef2 is None:
        stages = [stage for stage in stages if stage["kind"] != "taef2"]
    if before := sorted(args.run.glob("*.safetensors")):
        raise UsageError(f"{args.run} holds networks of an earlier run ({before[0].name}); give a folder of its own")
    args.run.mkdir(parents=True, exist_ok=True)
    clips, tests = load(args, device)
    lpips = load_lpips(args.lpips, device) if args.lpips else None
    nets = begin(plan, args.weights, tests, device, small=args.tiny, unit=args.unit)
    rows: list[dict[str, Any]] = []
    for stage in stages:
        if stage["kind"] == "taef2":
            nets = begin_taef2(plan, args.taef2, tests, device)
        if stage["kind"] == "paper":
            nets["paper"].trained_on(stage["size"] // 8)
        learnt = train(stage, nets, clips, lpips, device, lambda now: look(now, tests))
        nets = nets | learnt.nets
        nets["backbone"].latent_mean, nets["backbone"].latent_std = statistics(nets["backbone"], tests)
        save(nets, stage, args.run)  # before all else
        found = measure(nets, stage["kind"], tests, lpips)
        rows.append({"stage": stage, **learnt.row, **found})
        (args.run / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        say(json.dumps({k: v for k, v in rows[-1].items() if k not in ("log", "stage", "clips")}))


def load(args: argparse.Namespace, device: str) -> tuple[Clips, dict[str, TestSet]]:
    """What is trained on, and what is measured on: 33 frames at 256x256, every frame."""
    frames, size = (9, 64) if args.tiny else (33, 256)
    paths = find_clips(args.clips)[: args.limit]
    kept, held = ([p for p in paths if is_held_out(p) == flag] for flag in (False, True))
    if not kept:
        raise MissingError(f"no clip to train on in {args.clips}; found {len(paths)} files")
    folders = sorted(f for f in args.test.iterdir() if f.is_dir()) if args.test else []
    sets = {f.name: find_clips(f)[: args.limit] for f in folders} | {"held": held or kept[:1]}
    tests = {n: test_set(p, device=device, dav1d=args.dav1d, frames=frames, size=size) for n, p in sets.items()}
    clips = Clips(kept, [args.photos] if args.photos else [], device=device, dav1d=args.dav1d, limit=args.limit)
    say(clips.said)
    say("measured on " + ", ".join(f"{n} ({len(t[0])})" for n, t in tests.items()))
    return clips, tests


def begin(
    plan: dict[str, Any], folder: Path | None, tests: dict[str, TestSet], device: str, *, small: bool, unit: float
) -> Nets:
    """New networks, with what the weights in `folder` have of them."""
    channels = plan["channels"]
    shape = replace(tiny() if small else MiniConfig(), channels=channels)
    lits = {"lit": replace(plus(), **plan["lit"]), "paper": paper()}
    backbone = Mini(shape)
    take(backbone, folder, "backbone", widen_backbone, unit)
    backbone.weight_hash = "in training"
    nets: Nets = {"backbone": backbone.to(device).to(memory_format=torch.channels_last)}
    known = statistics(nets["backbone"], tests)
    for name, config in lits.items():
        lit = Lit.build(replace(config, channels=channels, blocks=2 if small else config.blocks))
        lit.set_statistics(*known)
        take(lit, folder, name, widen_lit, unit)
        nets[name] = lit.to(device)
    return nets


def begin_taef2(plan: dict[str, Any], folder: Path, tests: dict[str, TestSet], device: str) -> Nets:
    """TAEF2 as its maker ships it, and a new LIT."""
    backbone = load_taef2(folder, name="taef2", trust=True).to(device)
    lit = Lit.build(replace(plus(), channels=backbone.spec.channels, **plan["taef2"]))
    lit.set_statistics(*statistics(backbone, tests))
    return {"backbone": backbone, "lit": lit.to(device)}


def take(net: nn.Module, folder: Path | None, name: str, widen: Any, unit: float) -> None:
    """Fill a network from a file of weights, as shipped or as a run has left them.

    Args:
        unit: what the latents of shipped weights were divided by, where their file does not say it. They are multiplied
            by it again: the steps and weights of a plan are meant for latents as training leaves them.
    """
    files = [] if folder is None else [folder / f"{FILES[name]}.safetensors", folder / f"{name}.safetensors"]
    paths = [path for path in files if path.is_file()]
    if not paths:
        return
    file, want = load_weights(paths[0]), net.state_dict()
    kind = "backbone" if name == "backbone" else net.config.kind
    old = in_units(file.tensors, kind, 1 / float(file.meta.get("unit", unit)))
    for key in set(want) - set(old):  # a block more: it passes on what it is given
        if key.endswith(("proj.weight", "proj.bias", "down.weight", "down.bias", "near.weight", "near.bias")):
            want[key].zero_()
    for key, value in old.items():
        if key in want and want[key].shape == value.shape:
            want[key].copy_(value)
        elif key in want:
            try:
                widen(net, key, want[key], value)
            except RuntimeError as error:
                sizes = f"{list(value.shape)} there, {list(want[key].shape)} in the plan"
                raise ConfigError(
                    f"{paths[0]} is of another shape than the plan asks for ({key}: {sizes}); a network may begin with "
                    "fewer channels and blocks, and only so"
                ) from error
    net.load_state_dict(want)
    say(f"{name} begins from {paths[0]}")


def widen_backbone(net: Mini, key: str, new: Tensor, old: Tensor) -> None:
    if key == "decoder.conv_in.weight":  # channels that nobody reads yet
        new.zero_()
        new[:, : old.shape[1]] = old
    else:  # the encoder's last convolution: more outputs, a quarter as loud as those it had
        new *= old.std() / new.std() / 4
        new[: len(old)] = old


def widen_lit(net: Lit, key: str, new: Tensor, old: Tensor) -> None:
    now = net.config.channels
    if key == "in_proj.weight":  # plus: hold, linear, four more; paper: latents
        was = (old.shape[1] - 4) // 2 if net.config.kind == "plus" else old.shape[1]
        new.zero_()
        new[:, :was] = old[:, :was]
        if net.config.kind == "plus":
            new[:, now : now + was] = old[:, was : 2 * was]
            new[:, 2 * now :] = old[:, 2 * was :]
    elif key.startswith("out_proj"):
        new.zero_()
        new[: len(old)] = old
    else:  # statistics: new channels are not yet what they will be, and a LIT divides by their deviation
        new.fill_(old.mean() if key == "latent_std" else 0.0)
        new[: len(old)] = old


def save(nets: Nets, stage: dict[str, Any], run: Path) -> None:
    for name in LEARN[stage["kind"]]:
        net = nets[name]
        facts: dict[str, Any] = {"config": asdict(net.config), "stage": stage["name"], "unit": 1.0}
        if name == "backbone":
            facts |= {"latent_mean": list(net.latent_mean), "latent_std": list(net.latent_std)}
        file = "taef2.lit" if stage["kind"] == "taef2" else name
        if stage["kind"] == "taef2":
            facts |= {"backbone": "taef2", "backbone_hash": nets["backbone"].spec.weight_hash}
        save_weights(run / f"{file}.safetensors", net.state_dict(), facts, stored="fp16")


# --- packing ----------------------------------------------------------------------------------------------------------


def pack(args: argparse.Namespace) -> None:
    """The networks as they ship: few bits a weight, latents of about unit deviation."""
    out = args.weights_out
    out.mkdir(parents=True, exist_ok=True)
    file = load_weights(args.run / "backbone.safetensors")
    deviation = sum(file.meta["latent_std"]) / len(file.meta["latent_std"])
    unit = 2.0 ** round(torch.tensor(deviation).log2().item())  # exact in every precision
    config = {"config": file.meta["config"]}
    stats = {name: [v / unit for v in file.meta[name]] for name in ("latent_mean", "latent_std")}
    backbone = out / f"{FILES['backbone']}.safetensors"
    known = {"unit": unit}
    save_weights(backbone, in_units(file.tensors, "backbone", unit), config | stats | known, stored=STORED["backbone"])
    facts = {"backbone": "mini", "backbone_hash": load_weights(backbone).hash} | known
    for name in ("lit", "paper"):
        path = args.run / f"{name}.safetensors"
        if path.is_file():
            lit = load_weights(path)
            kind = LitConfig(**lit.meta["config"]).kind
            tensors = in_units(lit.tensors, kind, unit)
            save_weights(
                out / f"{FILES[name]}.safetensors", tensors, facts | {"config": lit.meta["config"]}, stored=STORED[name]
            )
    other = args.run / "taef2.lit.safetensors"
    if other.is_file():
        lit = load_weights(other)
        save_weights(out / other.name, lit.tensors, lit.meta, stored="int8")
    for path in sorted(out.glob("*.safetensors")):
        say(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def in_units(tensors: dict[str, Tensor], kind: str, unit: float) -> dict[str, Tensor]:
    """The same network on latents divided by `unit`."""
    down = 1 / unit
    by = {
        "backbone": {"encoder.conv_out.weight": down, "encoder.conv_out.bias": down, "decoder.conv_in.weight": unit},
        "plus": {},
        "paper": {"in_proj.weight": unit, "out_proj.weight": down, "out_proj.bias": down},
    }[kind] | {"latent_mean": down, "latent_std": down}
    return {name: tensor * by.get(name, 1.0) for name, tensor in tensors.items()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    clips = commands.add_parser("clips", help="AV1 videos to .ivf, without encoding them again")
    clips.add_argument("videos", type=Path)
    clips.add_argument("clips", type=Path)
    clips.add_argument("--frames", type=int, default=65, help="of each video, at most")
    for name in ("all", "train"):
        command = commands.add_parser(name, help="everything" if name == "all" else "every stage of the plan")
        if name == "all":
            command.add_argument("videos", type=Path)
            command.add_argument("out", type=Path)
        else:
            command.add_argument("clips", type=Path)
            command.add_argument("run", type=Path)
        command.add_argument("--plan", type=Path, default=PLAN)
        command.add_argument("--photos", type=Path)
        command.add_argument("--test", type=Path)
        command.add_argument("--lpips", type=Path)
        command.add_argument("--taef2", type=Path, metavar="FOLDER")
        command.add_argument("--weights", type=Path, metavar="FOLDER", help="begin from these")
        command.add_argument("--unit", type=float, default=1.0, help="what their latents were divided by")
        command.add_argument("--dav1d", default="dav1d")
        command.add_argument("--device")
        command.add_argument("--limit", type=int, help="of clips and photographs")
        command.add_argument("--tiny", action="store_true", help="a rehearsal on a CPU")
    packed = commands.add_parser("pack", help="the trained networks in the size they ship in")
    packed.add_argument("run", type=Path)
    packed.add_argument("weights_out", type=Path, metavar="weights")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
