# SPDX-License-Identifier: Apache-2.0
"""`inlay encode`: videos to token files, chunk by chunk."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import many, options, paths
from inlay.cli.screen import Screen
from inlay.errors import UsageError
from inlay.files import check_length, made_folder
from inlay.scale.layout import known

if TYPE_CHECKING:
    from inlay.codec import BudgetReport, EncodeConfig, VideoEncoder
    from inlay.masking import Budget
    from inlay.tokenizer import Tokenizer
    from inlay.video import VideoReader
    from inlay.video.frames import Video


def encode(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="VIDEO... [OUT.inlay]",
            help="A video, - for standard input, or an address (rtsp://, https://), and the name of its token file  "
            "[default: VIDEO with .inlay]. With --out-dir: videos, folders of them, patterns.",
        ),
    ],
    *,
    out_dir: options.OutDir = None,
    psnr: options.Psnr = None,
    encoding: options.Encoding,
    resume: options.Resume = False,
    curve: options.Curve = None,
    size: options.Size = "keep",
    model: options.ProfiledModel,
    keep_going: options.KeepGoing = False,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Turn videos into token files.

    Keeps the latent cells that change and drops the rest; prints how many were kept and what they cost in bits. Give
    at most one budget: --tau, --keep, --tokens, --bits or --psnr. The last two choose tau, step and scale together, and
    --tau, --step or --scale beside them fixes that one.
    """
    inputs, target_of = _places(sources, out_dir, curve, force=force)

    from inlay.codec import EncodeConfig
    from inlay.masking import Budget

    settings = encoding.settings()
    budget = Budget(psnr=psnr, **known(Budget, settings))
    config = EncodeConfig(**known(EncodeConfig, settings))
    model.check()
    load = cache(model.load)  # once, when the first video that can be read is open

    def work(item: many.Input, screen: Screen) -> many.Result:
        target = target_of[item]
        check_length(target)
        with nullcontext() if out_dir is None else made_folder(Path(target).parent):
            if resume and inputs.many and Path(target).is_file():
                return _result(target, {"input": item.source, "skipped": True}, ("skipped", "was there already"))
            _check(item.source, target, curve, force=force)
            return _encode_one(
                item.source, target, curve, budget, config, load, screen,
                size=size, keep_going=keep_going, resume=resume, force=force,
            )  # fmt: skip

    many.for_each(inputs, work, context=context, screen=screen)


def _places(
    sources: list[str], out_dir: str | None, curve: str | None, *, force: bool
) -> tuple[many.Inputs, dict[many.Input, str]]:
    """What is encoded, and where to; a single one is checked at once."""
    if out_dir is not None:
        inputs = many.videos(sources)
        if inputs.many and curve is not None:
            raise UsageError("a curve is drawn of one video; encode it by itself", about="curve")
        return inputs, many.targets(inputs, out_dir, paths.TOKEN_SUFFIX)
    instead = f", or make a data set of it: inlay tokenize {shlex.quote(sources[0])} OUT"
    (source,), out = many.one_output(sources, (paths.TOKEN_SUFFIX,), instead=instead)
    paths.input_video(source)
    target = paths.beside(source, paths.TOKEN_SUFFIX) if out is None else out
    if target == paths.STREAM:
        raise UsageError("a token file is completed at its end and cannot be a stream; give the name of a file")
    _check(source, target, curve, force=force)
    inputs = many.videos([source])
    return inputs, {inputs.items[0]: target}


def _check(source: str, target: str, curve: str | None, *, force: bool) -> None:
    paths.input_video(source)
    if curve is not None:
        paths.output_png("curve", curve, force=force, inputs=(source,))
    paths.output_tokens(target, force=force, inputs=(source,))


def _encode_one(
    source: str, target: str, curve: str | None, budget: Budget, config: EncodeConfig, load: Callable[[], Tokenizer],
    screen: Screen, *, size: str, keep_going: bool, resume: bool, force: bool,
) -> many.Result:  # fmt: skip
    from inlay.codec import KeepCurve, VideoEncoder, budget_of_pipe
    from inlay.video import open_video

    start, trace = time.perf_counter(), KeepCurve()
    piped = not Path(source).is_file()  # standard input, a camera
    budget = budget_of_pipe(budget) if piped else budget

    def again() -> Iterable[Video]:
        with open_video(source, size=size, keep_going=keep_going) as reader:
            yield from reader.chunks()

    with open_video(source, size=size, keep_going=keep_going) as reader:  # an unreadable video shows before loading
        tokenizer = load()
        encoder = VideoEncoder(tokenizer, config, budget=budget, original=None if piped else again)
        with tokenizer.watched_by(trace):
            encode_video(encoder, reader, target, screen, piped=piped, force=force, resume=resume)
        outcome = _budget_record(encoder.report) | ({"damage": reader.damage} if reader.damage else {})
    if curve is not None:
        from inlay.cli.viewing import write_curve

        write_curve(curve, trace, Path(source).name)
    elapsed = time.perf_counter() - start
    more = {"input": source, "device": str(tokenizer.device), "elapsed_seconds": elapsed}
    more |= outcome | ({} if curve is None else {"curve": curve})
    return _result(target, more, *_budget_rows(outcome), ("took", f"{elapsed:.1f} s on {tokenizer.device}"))


def _result(target: str, more: dict[str, Any], *rows: tuple[str, str]) -> many.Result:
    """What the token file holds, and what became of the request."""
    from inlay.cli.commands.info import file_line, file_record, file_rows

    record = file_record(target) | more
    line = f"{target}: {file_line(record)}, {rows[-1][1]}"
    return many.Result(record=record, rows=[*file_rows(record), *rows], line=line)


def encode_video(
    encoder: VideoEncoder,
    reader: VideoReader,
    target: str,
    screen: Screen,
    *,
    piped: bool = False,
    force: bool = False,
    resume: bool = False,
) -> None:
    """Write the token file of an open video, with progress shown."""
    from inlay.cli.passes import counted
    from inlay.codec import encode_file, with_times

    with screen.progress("encoding", reader.frames) as advance, _part_noted(target, screen, piped=piped):
        pieces: Iterable[Video] = reader.chunks(encoder.config.chunk_frames)
        pieces = counted(with_times(pieces) if piped else pieces, advance)
        encode_file(encoder, pieces, target, force=force, resume=resume, live=piped)


@contextmanager
def _part_noted(target: str, screen: Screen, *, piped: bool) -> Iterator[None]:
    """An interruption is how a live stream ends; of anything else, say where the part is."""
    from inlay.codec import keep_part
    from inlay.container import part_of

    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and piped and keep_part(target):
            screen.note(f"what came before the interruption is in {target}")
        elif part_of(target).exists() and not isinstance(error, UsageError):
            screen.note(f"what was done is in {part_of(target)}; give --resume to go on")
        raise


def _budget_record(report: BudgetReport | None) -> dict[str, Any]:
    """What `encode --json` says of the budget."""
    if report is None:
        return {}
    got = int(report.got) if report.budget == "tokens" else report.got
    record: dict[str, Any] = {"budget": report.budget, "asked": report.asked, "got": got}
    record |= {"tau": report.tau, "step": report.step, "scale": report.scale}
    bucket = report.bucket
    if bucket is None:
        return record | {"trials": report.trials, "decodes": report.decodes}
    return record | {
        "bucket_seconds": report.bucket_seconds,
        "overshoot": bucket.overshoot,
        "peak_overshoot": bucket.peak,
        "ahead_until_seconds": bucket.ahead_until,
        "bucket_size": bucket.size,
    }


def _budget_rows(outcome: dict[str, Any]) -> list[tuple[str, str]]:
    """What was asked for, what came of it, and what finding it cost."""
    if "budget" not in outcome:
        return []
    kind, asked, got = outcome["budget"], outcome["asked"], outcome["got"]
    text = f"--{kind} {asked:g}, got {got:,}" if kind == "tokens" else f"--{kind} {asked:g}, got {got:.4f}"
    if "overshoot" in outcome:
        unit = "tokens" if kind == "keep" else "bits"
        above, until = outcome["peak_overshoot"], outcome["ahead_until_seconds"]
        text += f" ({outcome['overshoot']:+.1%} in the end; up to {above:,.0f} {unit} above until second {until:.1f})"
    elif kind == "psnr":
        text += f" dB, found with {outcome['decodes']} decodes"
    else:
        looked = outcome["decodes"]
        text += f", found in {outcome['trials']} trials "
        text += f"and {looked} decodes of one chunk" if looked else "without a decode"
    at = [f"tau {outcome['tau']:.3g}"]
    at += [] if outcome["step"] is None else [f"step {outcome['step']:.3g}"]
    at += [] if outcome["scale"] == "1" else [f"{outcome['scale']} of the size"]
    return [("budget", f"{text}, at {', '.join(at)}")]
