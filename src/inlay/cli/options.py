# SPDX-License-Identifier: Apache-2.0
"""The flags that several commands share, each written once, and the groups of them that go together.

A command may take a group, a dataclass with a field for each flag, as one parameter: see `with_flags`. Choices are
named here as text so that `--help` needs no torch; a guard test holds them against the library's own tables.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from inlay.errors import ConfigError, MissingError, pick
from inlay.scale.layout import known

if TYPE_CHECKING:
    from inlay.research.studies.datasets import DataSet
    from inlay.tokenizer import Tokenizer

log = logging.getLogger("inlay.cli")

CHOICES = {
    "criterion": ("latent-l1", "latent-l2", "latent-cosine", "pixel-l1"),
    "reference": ("last-kept", "previous"),
    "precision": ("q8", "q8-quick", "fp16", "bf16", "fp32"),
    "step": ("lossless-ish", "fine", "normal", "coarse", "small", "cache", "deviation"),
    "scale": ("auto", "1", "3/4", "1/2"),
    "key_slots": ("auto", "whole", "thin"),
    "fill": ("hold", "linear", "lit", "lit-paper"),
    "dtype": ("float32", "bfloat16"),
    "mode": ("auto", "stateful", "dual-cache", "clips"),
}


def _one_of(kind: str) -> str:
    return ", ".join(CHOICES[kind])


Tau = Annotated[
    float | None,
    typer.Option("--tau", metavar="TAU", help="Keep a cell that changed by at least TAU.  [default: the model's own]"),
]
Criterion = Annotated[str, typer.Option("--criterion", metavar="NAME", help=f"Distance: {_one_of('criterion')}.")]
Reference = Annotated[
    str, typer.Option("--reference", metavar="NAME", help=f"What a cell is compared with: {_one_of('reference')}.")
]
Precision = Annotated[
    str, typer.Option("--precision", metavar="NAME", help=f"How kept cells are stored: {_one_of('precision')}.")
]
Step = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="X",
        help=f"How coarsely q8 rounds: grey levels, or {_one_of('step')}.  [default: the model's]",
    ),
]
Scale = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="S",
        help=f"Encode a smaller picture, enlarged on the way back: {_one_of('scale')} (--bits and --psnr choose).",
    ),
]
KeySlots = Annotated[
    str,
    typer.Option(
        "--key-slots",
        metavar="NAME",
        help="Slots with nothing before them to compare with: whole keeps every cell, thin leaves out what their "
        "neighbours tell, auto is thin with --keep and --tokens where the model gains by it.",
    ),
]
SecondLook = Annotated[
    bool,
    typer.Option(
        "--second-look",
        help="Fill once while encoding, and keep what the fill gets wrong: mostly better for the same tokens.",
    ),
]
Cache = Annotated[
    bool, typer.Option("--cache", help="For trainers: every cell, --precision q8-quick, --step cache; quick to read.")
]
_FILL = f"How dropped cells come back: {_one_of('fill')}."
Fill = Annotated[str | None, typer.Option("--fill", metavar="NAME", help=f"{_FILL}  [default: the model's own]")]
FilesFill = Annotated[
    str | None, typer.Option("--fill", metavar="NAME", help=f"{_FILL}  [default: the file's, else the model's own]")
]
Keep = Annotated[
    float | None, typer.Option("--keep", metavar="SHARE", help="Never keep more than this share of the cells (0 to 1).")
]
TokenCount = Annotated[int | None, typer.Option("--tokens", metavar="N", help="Keep exactly this many tokens.")]
Bits = Annotated[
    float | None, typer.Option("--bits", metavar="BITS", help="Never take more bits a pixel, container included.")
]
Psnr = Annotated[
    float | None, typer.Option("--psnr", metavar="DB", help="Keep as little as reaches this PSNR; decodes to find out.")
]
Exact = Annotated[bool, typer.Option("--exact", help="With --keep: exactly that share, in whole cells.")]
Bucket = Annotated[
    float | None,
    typer.Option(
        "--bucket",
        metavar="SECONDS",
        help="Hold --keep or --bits while the video is read, and save at most SECONDS of it for later; for streams.  "
        "[default: 2 from a pipe, else the whole video is weighed]",
    ),
]
Mode = Annotated[str, typer.Option("--mode", metavar="NAME", help=f"What chunks pass on: {_one_of('mode')}.")]
Chunk = Annotated[int, typer.Option("--chunk", metavar="N", help="Frames encoded together: 1 + 4k. Fewer wait less.")]
KeyEvery = Annotated[
    float,
    typer.Option("--key-every", metavar="SECONDS", help="Longest time between key chunks, for seeking; 0: no limit."),
]
Cuts = Annotated[bool, typer.Option("--cuts/--no-cuts", help="Begin a key chunk at every scene cut.")]
Noise = Annotated[bool, typer.Option("--noise", help="Estimate sensor noise and spend no tokens on it.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an encode that was interrupted.")]
Curve = Annotated[
    str | None, typer.Option("--curve", metavar="PNG", help="Also draw the share of kept cells over time.")
]
From = Annotated[
    float | None, typer.Option("--from", metavar="SECOND", help="Begin at this second; the rest is not read.")
]
To = Annotated[float | None, typer.Option("--to", metavar="SECOND", help="End before this second.")]
Size = Annotated[
    str,
    typer.Option("--size", metavar="SIZE", help="keep, N (short side), or WxH (resize, then centre crop)."),
]
FilesBackbone = Annotated[
    str | None, typer.Option("--backbone", metavar="NAME", help="In place of the backbone that the file names.")
]
BackboneName = Annotated[
    str,
    typer.Option("--backbone", metavar="NAME", help="A name (see: inlay backbones), a folder, or module:Class."),
]
Weights = Annotated[str | None, typer.Option("--weights", metavar="PATH", help="Weights to use instead of its own.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Load weights that are pickles or TorchScript; such files can run code.")
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="FILE", help="What inlay calibrate found out: its tau is the default one."),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="NAME", help=f"Arithmetic: {_one_of('dtype')}.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite what is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one object, or for several inputs one a line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what is done, and how long it took.")]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="CPU threads of the networks.  [default: all cores]")
]
OutDir = Annotated[
    str | None, typer.Option("--out-dir", metavar="DIR", help="Folder for the results; made if it is not there.")
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Use the intact part of a damaged file.")]
Large = Annotated[
    bool, typer.Option("--large", help="Take a file that asks for far more work than its size justifies.")
]
Lossless = Annotated[bool, typer.Option("--lossless", help="Store the decoded pixels exactly (larger file).")]
Crf = Annotated[float, typer.Option("--crf", metavar="N", help="H.264 quality, 0 best to 51 smallest.")]
Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="A video, a folder of videos or frame folders, or a list of them (a text file)."
    ),
]
Layout = Annotated[
    str,
    typer.Option("--layout", metavar="NAME", help="auto, folder, list, davis, tokenbench, ucf101 or kinetics400."),
]
Split = Annotated[
    str | None, typer.Option("--split", metavar="NAME", help="Part of the data set.  [default: the layout's own]")
]
Metrics = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="NAMES",
        help="auto (paper on a GPU, else quick), quick, paper (with LPIPS, FVD, KVD), or names with commas between.",
    ),
]
Frames = Annotated[int, typer.Option("--frames", metavar="N", min=1, help="Frames of a clip.")]
Side = Annotated[
    int, typer.Option("--side", metavar="N", min=0, help="Side of the square a clip is cut to; 0 keeps its size.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Use the first N videos; 0 means all.")]


def _completing(kind: str) -> Callable[[str], list[str]]:
    """What the shell offers after a flag that has choices."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in CHOICES[kind] if name.startswith(incomplete)]

    return complete


for _kind, _option in {
    "criterion": Criterion, "reference": Reference, "precision": Precision, "dtype": Dtype, "mode": Mode, "step": Step,
    "scale": Scale, "key_slots": KeySlots,
}.items():  # fmt: skip
    get_args(_option)[1].autocompletion = _completing(_kind)
for _option in (Fill, FilesFill):
    get_args(_option)[1].autocompletion = _completing("fill")


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which networks, where, in which arithmetic."""

    backbone: BackboneName = "mini"
    weights: Weights = None
    trust: Trust = False
    device: Device = "auto"
    dtype: Dtype = "float32"
    fill: str | None = None
    profile: str | None = None  # of `inlay calibrate`, in place of the one beside the weights

    def check(self) -> None:
        """Refuse what can be refused before anything is loaded."""
        from inlay.tokenizer import pick_device

        pick("dtype", self.dtype, dict.fromkeys(CHOICES["dtype"]))
        if self.fill is not None:
            pick("fill", self.fill, dict.fromkeys(CHOICES["fill"]))
        if self.weights is not None and not Path(self.weights).exists():
            raise MissingError(f"no weights at {self.weights}; give the path of a file or a folder")
        if self.profile is not None and not Path(self.profile).is_file():
            raise MissingError(f"no profile at {self.profile}; make one: inlay calibrate")
        pick_device(self.device)

    def load(self) -> Tokenizer:
        import torch

        from inlay.tokenizer import Tokenizer

        named, start = known(Model, vars(self)) | {"dtype": getattr(torch, self.dtype)}, time.perf_counter()
        tokenizer = Tokenizer.from_pretrained(named.pop("backbone"), **named)
        spec, place = tokenizer.spec, f"{tokenizer.device}, {self.dtype}, {torch.get_num_threads()} CPU threads"
        log.info("loaded %s %s in %.1f s (%s)", spec.name, spec.weight_hash, time.perf_counter() - start, place)
        return tokenizer


@dataclass(frozen=True, kw_only=True)
class FilledModel(Model):
    """A model, and the fill."""

    fill: Fill = None


@dataclass(frozen=True, kw_only=True)
class FilesModel(Model):
    """A model, and the fill for files that name one."""

    fill: FilesFill = None


@dataclass(frozen=True, kw_only=True)
class ProfiledModel(FilledModel):
    """A model, the fill, and the profile that has its default tau."""

    profile: Profile = None


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How cells are chosen and stored: fields of the library's `Budget` and `EncodeConfig`, by their names there."""

    tau: Tau = None
    keep: Keep = None
    tokens: TokenCount = None
    bits: Bits = None
    exact: Exact = False
    bucket_seconds: Bucket = None
    noise: Noise = False
    criterion: Criterion = "latent-l1"
    reference: Reference = "last-kept"
    precision: Precision = "q8"
    step: Step = None
    scale: Scale = "auto"
    key_slots: KeySlots = "auto"
    second_look: SecondLook = False
    cache: Cache = False
    mode: Mode = "auto"
    chunk_frames: Chunk = 33
    key_seconds: KeyEvery = 10.0
    cuts: Cuts = True

    def settings(self) -> dict[str, Any]:
        """The fields by name; a preset has set its own."""
        given = dict(vars(self))
        if not self.cache:
            return given
        from inlay.codec import training_cache

        preset = training_cache()
        others = [name for name in ("tau", "keep", "tokens", "bits") if given[name]]
        others += ["precision"] * (self.precision not in ("q8", preset.precision))
        if others:
            raise ConfigError(
                f"a cache holds every cell in {preset.precision}; it goes with no {others[0]}", about=("cache", *others)
            )
        return given | {"tau": 0.0, "precision": preset.precision, "step": self.step or preset.step}


@dataclass(frozen=True, kw_only=True)
class Clips:
    """Which part of its videos is measured."""

    frames: Frames = 33
    side: Side = 256
    limit: Limit = 0


@dataclass(frozen=True, kw_only=True)
class DataClips(Clips):
    """Which part of a data set is measured."""

    layout: Layout = "auto"
    split: Split = None

    def open(self, data: str, note: Callable[[str], None], **cut: int) -> DataSet:
        """The clips of a data set; `cut` adds to the shape of a clip."""
        from inlay.research.studies.datasets import ClipSpec, open_data

        spec = ClipSpec(frames=self.frames, size=self.side, **cut)
        return open_data(data, layout=self.layout, split=self.split, spec=spec, limit=self.limit, tell=note)


def with_flags(
    command: Callable[..., None], settings: Mapping[str, inspect.Parameter] | None = None
) -> Callable[..., None]:
    """The command with a flag for each annotated field of the dataclasses among its parameters, and --threads.

    Args:
        settings: further flags, passed to the command as keywords where they are given.
    """
    hints, more = get_type_hints(command, include_extras=True), settings or {}
    own = [p for p in inspect.signature(command).parameters.values() if p.kind != inspect.Parameter.VAR_KEYWORD]
    groups = {p.name: _flags(hints[p.name]) for p in own if is_dataclass(hints[p.name])}
    plain = {p.name: parameter(p.name, hints[p.name], p.default) for p in own if p.name not in groups}
    parameters = [flag for p in own for flag in (groups[p.name].values() if p.name in groups else [plain[p.name]])]
    parameters += more.values()
    if "threads" not in plain:  # which a command may hand on itself
        parameters.append(parameter("threads", Threads, None))

    def run(**values: Any) -> None:
        from inlay.cli.running import running

        made = {name: hints[name](**{flag: values[flag] for flag in flags}) for name, flags in groups.items()}
        given = {name: values[name] for name in more if values[name] is not None}
        speech = {flag: values.get(flag, False) for flag in ("quiet", "verbose")}
        with running(command.__name__, threads=values["threads"], **speech):
            command(**made, **{name: values[name] for name in plain}, **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """A parameter of a command, as typer reads it."""
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=hint)


def _flags(group: Any) -> dict[str, inspect.Parameter]:
    """Of the fields whose types are annotated with a flag, and of those that have a help text."""
    found, hints = {}, get_type_hints(group, include_extras=True)
    for f in fields(group):
        hint = hints[f.name]
        if "help" in f.metadata:
            hint = Annotated[hint, typer.Option(**{"metavar": "X" if hint is float else "N", **f.metadata})]
        if get_origin(hint) is Annotated:
            found[f.name] = parameter(f.name, hint, f.default)
    return found
