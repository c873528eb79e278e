# SPDX-License-Identifier: Apache-2.0
"""The flags that several commands share, each written once. Choices are named here as text so that `--help` needs no
torch; a guard test holds them against the library's own tables."""

from __future__ import annotations

from typing import Annotated

import typer

CHOICES = {
    "criterion": ("latent-l1", "latent-l2", "latent-cosine", "pixel-l1"),
    "reference": ("last-kept", "previous"),
    "precision": ("q8", "fp16", "bf16", "fp32"),
    "fill": ("hold", "linear", "lit", "lit-paper"),
    "dtype": ("float32", "bfloat16"),
    "mode": ("auto", "stateful", "dual-cache", "clips"),
}


def _one_of(kind: str) -> str:
    return ", ".join(CHOICES[kind])


Tau = Annotated[
    float | None,
    typer.Option("--tau", metavar="X", help="Keep a cell that changed by at least X.  [default: the model's own]"),
]
Criterion = Annotated[str, typer.Option("--criterion", metavar="NAME", help=f"Distance: {_one_of('criterion')}.")]
Reference = Annotated[
    str, typer.Option("--reference", metavar="NAME", help=f"What a cell is compared with: {_one_of('reference')}.")
]
Precision = Annotated[
    str, typer.Option("--precision", metavar="NAME", help=f"How kept cells are stored: {_one_of('precision')}.")
]
Fill = Annotated[
    str | None, typer.Option("--fill", metavar="NAME", help=f"How dropped cells come back: {_one_of('fill')}.")
]
Keep = Annotated[
    float | None, typer.Option("--keep", metavar="R", help="Never keep more than this share of the cells (0 to 1).")
]
TokenCount = Annotated[int | None, typer.Option("--tokens", metavar="N", help="Keep exactly this many tokens.")]
Bits = Annotated[
    float | None, typer.Option("--bits", metavar="B", help="Never take more bits a pixel, container included.")
]
Psnr = Annotated[
    float | None, typer.Option("--psnr", metavar="DB", help="Keep as little as reaches this PSNR; decodes to find out.")
]
Exact = Annotated[bool, typer.Option("--exact", help="With --keep: exactly that share, in whole cells.")]
Bucket = Annotated[
    float | None,
    typer.Option(
        "--bucket", metavar="S", help="Hold --keep or --bits as the video goes by, S seconds off at most.  [pipe: 2]"
    ),
]
Mode = Annotated[str, typer.Option("--mode", metavar="NAME", help=f"What chunks pass on: {_one_of('mode')}.")]
Chunk = Annotated[int, typer.Option("--chunk", metavar="N", help="Frames encoded together: 1 + 4k. Fewer wait less.")]
KeyEvery = Annotated[
    float, typer.Option("--key-every", metavar="S", help="Longest time between key chunks, for seeking; 0: no limit.")
]
Cuts = Annotated[bool, typer.Option("--cuts/--no-cuts", help="Begin a key chunk at every scene cut.")]
Noise = Annotated[bool, typer.Option("--noise", help="Estimate sensor noise and spend no tokens on it.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an encode that was interrupted.")]
Curve = Annotated[
    str | None, typer.Option("--curve", metavar="PNG", help="Also draw the share of kept cells over time.")
]
From = Annotated[float | None, typer.Option("--from", metavar="S", help="Begin at this second; the rest is not read.")]
To = Annotated[float | None, typer.Option("--to", metavar="S", help="End before this second.")]
Size = Annotated[
    str,
    typer.Option("--size", metavar="GEOMETRY", help="keep, N (short side), or WxH (resize, then centre crop)."),
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Use the intact part of a damaged file.")]
Lossless = Annotated[bool, typer.Option("--lossless", help="Store the decoded pixels exactly (larger file).")]
Crf = Annotated[float, typer.Option("--crf", metavar="N", help="H.264 quality, 0 best to 51 smallest.")]
