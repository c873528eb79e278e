# SPDX-License-Identifier: Apache-2.0
"""`inlay view`: a film that shows which cells are kept; a curve, or a sheet of masks, if wanted."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen
from inlay.errors import UsageError

if TYPE_CHECKING:
    from inlay.codec import EncodeConfig
    from inlay.container.tokens import Tokens
    from inlay.types import VideoInfo
    from inlay.video import VideoReader
    from inlay.video.frames import Video

PICTURE, ANIMATED = ".png", (".avif", ".webp")  # suffixes of a contact sheet, and of films that are no video files


def view(
    source: Annotated[str, typer.Argument(metavar="VIDEO|TOKENS", help="A video, or a token file (*.inlay).")],
    out: Annotated[
        str | None,
        typer.Argument(
            metavar="OUT",
            help="A film (.mp4, .mov, .mkv, or .avif, .webp for web pages) or a sheet of masks (.png).  "
            "[default: VIDEO with .view.mp4]",
        ),
    ] = None,
    *,
    curve: options.Curve = None,
    sheet: Annotated[
        str | None, typer.Option("--sheet", metavar="PNG", help="Also draw the masks of several tau, first 33 frames.")
    ] = None,
    original: Annotated[
        str | None, typer.Option("--original", metavar="VIDEO", help="The video a token file was made from.")
    ] = None,
    tau: Annotated[
        list[float] | None,
        typer.Option(
            "--tau", metavar="TAU", help="As for encode; may be repeated for a sheet.  [default: the model's own]"
        ),
    ] = None,
    criterion: options.Criterion = "latent-l1",
    reference: options.Reference = "last-kept",
    mode: options.Mode = "auto",
    size: options.Size = "keep",
    model: options.FilesModel,
    large: options.Large = False,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Film which cells of a clip are kept.

    Side by side: input, kept cells lit, reconstruction; above, file, tau, keep rate, bits and PSNR up to the chunk that
    is shown; beneath, the share of kept cells. From a token file without --original: the last two panels, no PSNR. To
    film another budget than --tau, encode with it and give the token file. With OUT.png: a contact sheet of masks for
    several tau.
    """
    taus = list(tau or ())
    is_tokens = Path(source).suffix == paths.TOKEN_SUFFIX
    film: str | None = paths.beside(source, ".view.mp4") if out is None else out
    if Path(film or "").suffix.lower() == PICTURE:
        if sheet is not None or curve is not None:
            raise UsageError(f"{out}: is a sheet of masks, without a film; --sheet and --curve go beside a film")
        film, sheet = None, out
    if is_tokens:
        _check_settings(tau=taus, criterion=criterion, reference=reference, mode=mode, size=size, original=original)
    _check(source, film, curve, sheet, original, taus, is_tokens=is_tokens, force=force)

    from inlay.codec import EncodeConfig
    from inlay.masking import Budget

    config = EncodeConfig(mode=mode, criterion=criterion, reference=reference)
    for value in taus:
        Budget(tau=value)  # refused here if it cannot be
    model.check()
    record: dict[str, Any] = {"input": source}
    rows: list[tuple[str, str]] = []
    if film is not None:
        record |= _film(
            source, film, curve, original, model, config, taus, size, screen, is_tokens=is_tokens, large=large,
            force=force,
        )  # fmt: skip
        kept = f"{record['keep_rate']:.1%} of {record['cells']:,} cells, mode {record['mode']}"
        rows += [("film", film), ("kept", kept)]
        rows += [] if curve is None else [("curve", curve)]
    if sheet is not None:
        record |= _sheet(source, sheet, model, config, taus, size)
        rates = [f"tau {name} keeps {rate:.1%}" for name, rate in record["sheet_keep_rates"].items()]
        rows += [("sheet", sheet), ("masks", f"{', '.join(rates)} (mode clips)")]
    screen.show(record, rows)


def _film(
    source: str, film: str, curve: str | None, original: str | None, model: options.Model, config: EncodeConfig,
    taus: list[float], size: str, screen: Screen, *, is_tokens: bool, large: bool, force: bool,
) -> dict[str, Any]:  # fmt: skip
    """Decode, and of a video encode, as the film goes on; what is read is read once, and one chunk waits at a time."""
    from inlay.cli.passes import backbone_of, fill_of
    from inlay.cli.viewing import write_film
    from inlay.codec import Encoder, check_file
    from inlay.container import TokenReader, as_stored
    from inlay.draw.caption import Caption
    from inlay.draw.film import shots
    from inlay.video import open_video

    chunks: Iterable[Tokens]
    originals: Iterable[Video] | None
    frames: int | None
    fill: str | None
    caption = Caption(title=Path(original or source).name)
    with ExitStack() as stack:
        if is_tokens:
            reader = stack.enter_context(TokenReader(source, large=large))
            check_file(reader)
            originals = stack.enter_context(_original(original, size, reader.info)) if original else None
            recipe, frames, chunks = reader.recipe, reader.info.frames, reader
            named = None if model.backbone == options.Model.backbone else model.backbone
            tokenizer = replace(model, backbone=backbone_of(recipe, named)).load()
            fill = fill_of(recipe, tokenizer, model.fill, screen)
            mode = recipe.streaming
        else:
            video = stack.enter_context(open_video(source, size=size))
            tokenizer, frames, fill = model.load(), video.frames, model.fill
            config = config.resolve(tokenizer.spec)
            originals, encoded = tee(video.chunks(config.chunk_frames))
            encoder = Encoder(tokenizer, config, tau=taus[0] if taus else None)
            chunks, mode = map(as_stored, encoder.encode(encoded)), config.mode
        shown, decoded = tee(chunks)
        scenes = shots(shown, tokenizer.decode_chunks(decoded, fill=fill), originals)
        record = write_film(
            scenes, film, curve, fill=fill or tokenizer.filler.default, caption=caption, frames=frames, force=force,
            screen=screen,
        )  # fmt: skip
        return record | {"mode": mode}


def _original(path: str, size: str, made_from: VideoInfo) -> VideoReader:
    """The video a token file was made from, at the size it had then."""
    from inlay.video import open_video

    video = open_video(path, size=size)
    if (video.width, video.height) == (made_from.width, made_from.height):
        return video
    video.close()
    wanted = f"{made_from.width}x{made_from.height}"
    raise UsageError(
        f"{path}: is {video.width}x{video.height}, and the tokens are of a video of {wanted}; give the video they were "
        "made from, or the size",
        about="size",
    )


def _sheet(
    source: str, sheet: str, model: options.Model, config: EncodeConfig, taus: list[float], size: str
) -> dict[str, Any]:
    from inlay.cli.viewing import write_sheet
    from inlay.codec import CLIP_FRAMES
    from inlay.video import open_video
    from inlay.video.frames import join_videos

    with open_video(source, size=size, frames=CLIP_FRAMES) as reader:
        clip = join_videos(list(reader.chunks(CLIP_FRAMES)))
    return write_sheet(clip, sheet, model.load(), config, taus, title=Path(source).name)


def _check_settings(*, size: str, original: str | None, **chosen: object) -> None:
    """A token file was made with settings of its own, and is of one size."""
    usual = {"tau": [], "criterion": "latent-l1", "reference": "last-kept", "mode": "auto"}
    given = [name for name, value in chosen.items() if value != usual[name]]
    if given:
        raise UsageError("a token file is shown as it was made; leave this out, or give the video", about=tuple(given))
    if size != "keep" and original is None:
        raise UsageError(
            "a token file has its own size; leave this out, or give the original too", about=("size", "original")
        )


def _check(
    source: str, film: str | None, curve: str | None, sheet: str | None, original: str | None, taus: list[float],
    *, is_tokens: bool, force: bool,
) -> None:  # fmt: skip
    """Every path is checked before anything is loaded."""
    from inlay.video.target import CONTAINERS

    if is_tokens:
        paths.input_tokens(source)
    else:
        paths.input_video(source)
    if original is not None and not is_tokens:
        raise UsageError("--original belongs to a token file; a video is its own original")
    if is_tokens and sheet is not None:
        raise UsageError("a token file has one mask; a sheet of several is drawn from the video itself")
    if len(taus) > 1 and sheet is None:
        raise UsageError(f"a film has one tau, got {len(taus)}; for a sheet of masks give --sheet or a name in .png")
    if film is not None and sheet is not None and source == paths.STREAM:
        raise UsageError("standard input can be read once; draw the film or the sheet, or give a file")
    paths.check_distinct(film, curve, sheet)
    inputs = (source,) if original is None else (source, paths.input_video(original))
    for name, path in (("curve", curve), ("sheet", sheet)):
        if path is not None:
            paths.output_png(name, path, force=force, inputs=inputs)
    if film is not None and (film == paths.STREAM or Path(film).suffix.lower() in CONTAINERS):
        paths.output_video(film, force=force, inputs=inputs)
    elif film is not None:
        suffixes = (*CONTAINERS, *ANIMATED, PICTURE)
        paths.output(film, force=force, inputs=inputs, what="a film or a sheet", suffixes=suffixes)
