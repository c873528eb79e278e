# SPDX-License-Identifier: Apache-2.0
"""`inlay export`: the parts of a model as ONNX or torch.export files, checked against PyTorch."""

from __future__ import annotations

from typing import Annotated

import typer

from inlay.cli import options
from inlay.cli.screen import Screen, size_text
from inlay.files import made_folder


def export(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where the files go; made if it is not there.")],
    *,
    parts: Annotated[
        str, typer.Option("--parts", metavar="NAMES", help="encoder, mask, lit, decoder, with commas between.")
    ] = "encoder,mask,lit,decoder",
    form: Annotated[str, typer.Option("--format", metavar="NAME", help="onnx, or torch (torch.export).")] = "onnx",
    size: Annotated[
        str, typer.Option("--size", metavar="HxW", help="Height and width a graph is made for.")
    ] = "256x256",
    frames: Annotated[int, typer.Option("--frames", metavar="N", help="Frames of a clip.")] = 33,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Clips that go through together.")] = 1,
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    trust: options.Trust = False,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Write the networks as graphs for other runtimes.

    Each file is run once in ONNX Runtime (or read back by torch) and must give PyTorch's answer.
    """
    from inlay.export import ExportConfig
    from inlay.export import export as run
    from inlay.research.bench.config import names, size_of

    height, width = size_of(size)
    config = ExportConfig(parts=names(parts), form=form, height=height, width=width, frames=frames, batch=batch)
    model = options.Model(backbone=backbone, weights=weights, device="cpu", trust=trust)
    model.check()
    with made_folder(folder) as target:
        record = run(model.load(), target, config, force=force)
    rows = []
    for name, row in record["parts"].items():
        first, shape = next(iter(row["inputs"].items()))  # the others follow from it
        agreement = f"{row['relative']:.1e} from PyTorch" if row["relative"] else "equal to PyTorch"
        size_of_file = size_text(row["bytes"])
        rows.append((name, f"{row['file']}, {first} {'x'.join(map(str, shape))}, {size_of_file}, {agreement}"))
    screen.show(record, rows)
