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
Size = Annotated[
    str,
    typer.Option("--size", metavar="GEOMETRY", help="keep, N (short side), or WxH (resize, then centre crop)."),
]
BackboneName = Annotated[str, typer.Option("--backbone", metavar="NAME", help="The autoencoder: a name or a path.")]
Weights = Annotated[str | None, typer.Option("--weights", metavar="PATH", help="Weights to use instead of its own.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="NAME", help=f"Arithmetic: {_one_of('dtype')}.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite what is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Use the intact part of a damaged file.")]
Lossless = Annotated[bool, typer.Option("--lossless", help="Store the decoded pixels exactly (larger file).")]
Crf = Annotated[float, typer.Option("--crf", metavar="N", help="H.264 quality, 0 best to 51 smallest.")]
