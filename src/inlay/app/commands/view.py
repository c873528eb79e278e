# SPDX-License-Identifier: Apache-2.0
"""A video or a token file in, a film that shows which cells are kept out, and a curve of them over time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inlay.app import options, paths
from inlay.app.screen import Screen
from inlay.errors import UsageError, require

if TYPE_CHECKING:
    from inlay.app.film import Shot


def view(
    source: Annotated[str, typer.Argument(metavar="IN", help="A video, or a token file (*.inlay).")],
    out: Annotated[str | None, typer.Argument(metavar="OUT", help="Film.  [default: <stem>.view.mp4]")] = None,
    curve: Annotated[
        str | None, typer.Option("--curve", metavar="PNG", help="Also draw the share of kept cells over time.")
    ] = None,
    original: Annotated[
        str | None, typer.Option("--original", metavar="VIDEO", help="The video a token file was made from.")
    ] = None,
    tau: options.Tau = None,
    criterion: options.Criterion = "latent-l1",
    reference: options.Reference = "last-kept",
    fill: options.Fill = None,
    size: options.Size = "keep",
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    trust: options.Trust = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Film which cells of a clip are kept.

    Side by side: input, kept cells lit, reconstruction. From a token file without --original: the last two.
    """
    is_tokens = Path(source).suffix == paths.TOKEN_SUFFIX
    film = _checked_output(source, out, curve, original, is_tokens=is_tokens, force=force)

    from inlay.app.model import Model, Settings
    from inlay.app.passes import open_clip, tokenizer_of
    from inlay.app.viewing import film_tokens, film_video, write_film
    from inlay.container import TokenReader

    screen = Screen(json=json, quiet=quiet)
    settings = Settings(tau=tau, criterion=criterion, reference=reference)
    with ExitStack() as stack:
        scenes: Iterator[Shot]
        frames: int | None
        if is_tokens:
            tokens = stack.enter_context(TokenReader(source))
            clip = stack.enter_context(open_clip(original, size=size)) if original else None
            name = tokens.recipe.backbone
            model = Model(backbone=name, weights=weights, fill=fill, device=device, dtype=dtype, trust=trust)
            tokenizer, chosen = tokenizer_of(tokens.recipe, model, screen)
            scenes = film_tokens(tokens, clip, tokenizer, chosen)
            frames = tokens.info.frames
        else:
            video = stack.enter_context(open_clip(source, size=size))
            model = Model(backbone=backbone, weights=weights, fill=fill, device=device, dtype=dtype, trust=trust)
            scenes = film_video(video, model.load(), settings, fill)
            frames = video.frames
        record = write_film(scenes, film, curve, title=Path(source).name, frames=frames, force=force, screen=screen)
    rows = [("film", film), ("kept", f"{record['keep_rate']:.1%} of {record['cells']:,} cells")]
    screen.show({"input": source} | record, rows if curve is None else [*rows, ("curve", curve)])


def _checked_output(
    source: str, out: str | None, curve: str | None, original: str | None, *, is_tokens: bool, force: bool
) -> str:
    """Every path is checked, and the extra that draws curves is there, before anything is loaded."""
    if is_tokens:
        paths.input_tokens(source)
    else:
        paths.input_video(source)
    if original is not None and not is_tokens:
        raise UsageError("--original belongs to a token file; a video is its own original")
    inputs = (source,) if original is None else (source, paths.input_video(original))
    if curve is not None:
        if Path(curve).suffix.lower() != ".png":
            raise UsageError(f"{curve}: the curve is a PNG; give a name that ends in .png")
        paths.output(curve, force=force, inputs=inputs)
        require("matplotlib", extra="plot")
    return paths.output_video(out or paths.beside(source, ".view.mp4"), force=force, inputs=inputs)
