# SPDX-License-Identifier: Apache-2.0
"""A video in, a token file out, chunk by chunk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen
from inlay.errors import UsageError, require

if TYPE_CHECKING:
    pass


def encode(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="A video, - for standard input, or an address (rtsp://, https://).")
    ],
    out: Annotated[str | None, typer.Argument(metavar="OUT", help="Token file.  [default: IN with .inlay]")] = None,
    tau: options.Tau = None,
    keep: options.Keep = None,
    tokens: options.TokenCount = None,
    bits: options.Bits = None,
    psnr: options.Psnr = None,
    exact: options.Exact = False,
    bucket: options.Bucket = None,
    noise: options.Noise = False,
    criterion: options.Criterion = "latent-l1",
    reference: options.Reference = "last-kept",
    precision: options.Precision = "q8",
    fill: options.Fill = None,
    mode: options.Mode = "auto",
    chunk: options.Chunk = 33,
    key_every: options.KeyEvery = 10.0,
    cuts: options.Cuts = True,
    resume: options.Resume = False,
    curve: options.Curve = None,
    size: options.Size = "keep",
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    trust: options.Trust = False,
    profile: options.Profile = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    keep_going: options.KeepGoing = False,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn a video into a token file.

    Keeps the latent cells that change and drops the rest; prints how many were kept and what they cost in bits. Give
    at most one budget: --tau, --keep, --tokens, --bits or --psnr.
    """
    start = time.perf_counter()
    target = _checked_output(source, out, curve, force=force)

    from inlay.cli.encoding import EncodeJob, budget_record
    from inlay.cli.model import Model
    from inlay.cli.passes import open_clip
    from inlay.cli.record import file_record, file_rows
    from inlay.codec import EncodeConfig, KeepCurve, budget_of_pipe
    from inlay.masking import Budget

    piped = not Path(source).is_file()  # standard input, a named pipe, a camera
    budget = Budget(tau=tau, keep=keep, tokens=tokens, bits=bits, psnr=psnr, exact=exact, bucket_seconds=bucket)
    budget = budget_of_pipe(budget) if piped else budget
    config = EncodeConfig(mode=mode, chunk_frames=chunk, key_seconds=key_every, cuts=cuts, noise=noise,
                          criterion=criterion, reference=reference, precision=precision)  # fmt: skip
    model = Model(backbone=backbone, weights=weights, fill=fill, device=device, dtype=dtype, trust=trust,
                  profile=profile)  # fmt: skip
    screen = Screen(json=json, quiet=quiet)
    trace = KeepCurve()
    with open_clip(source, size=size, keep_going=keep_going) as reader:  # an unreadable video shows before loading
        tokenizer = model.load()
        job = EncodeJob(target=target, tokenizer=tokenizer, screen=screen, config=config, budget=budget,
                        source=None if piped else source, size=size, keep_going=keep_going, piped=piped, force=force,
                        resume=resume)  # fmt: skip
        with tokenizer.watched_by(trace):
            outcome = budget_record(job.run(reader))
        if reader.damage:
            screen.note(reader.damage)
    if curve is not None:
        from inlay.cli.viewing import write_curve

        write_curve(curve, trace, Path(source).name)
    elapsed = time.perf_counter() - start
    record = file_record(target) | {"input": source, "device": str(tokenizer.device), "elapsed_seconds": elapsed}
    rows = [*file_rows(record), *_budget_rows(outcome), ("took", f"{elapsed:.1f} s on {tokenizer.device}")]
    screen.show(record | outcome | ({} if curve is None else {"curve": curve}), rows)


def _checked_output(source: str, out: str | None, curve: str | None, *, force: bool) -> str:
    paths.input_video(source)
    target = out or paths.beside(source, paths.TOKEN_SUFFIX)
    if target == paths.STREAM:
        raise UsageError("a token file is completed at its end and cannot be a stream; give the name of a file")
    if curve is not None:
        if Path(curve).suffix.lower() != ".png":
            raise UsageError(f"{curve}: the curve is a PNG; give a name that ends in .png")
        paths.output(curve, force=force, inputs=(source,))
        require("matplotlib", extra="plot")
    return paths.output(target, force=force, inputs=(source,))


def _budget_rows(outcome: dict[str, Any]) -> list[tuple[str, str]]:
    """What was asked for, what came of it, and what finding it cost."""
    if not outcome:
        return []
    kind, asked, got = outcome["budget"], outcome["asked"], outcome["got"]
    text = f"--{kind} {asked:g}, got {got:,}" if kind == "tokens" else f"--{kind} {asked:g}, got {got:.4f}"
    if "overshoot" in outcome:
        ahead = outcome["peak_overshoot"] / outcome["bucket_size"] * 100
        text += f" ({outcome['overshoot']:+.1%} in the end; at worst {ahead:.0f} % of the bucket ahead)"
    elif kind == "psnr":
        text += f" dB, found with {outcome['decodes']} decodes"
    else:
        text += f", found in {outcome['trials']} trials without a decode"
    return [("budget", text)]
