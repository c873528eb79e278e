# SPDX-License-Identifier: Apache-2.0
"""Videos in, the profile of a backbone out: its usual threshold, its statistics, which threshold keeps how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inlay.cli import dataoptions, options, paths
from inlay.cli.screen import Screen, clips_text
from inlay.errors import VideoError
from inlay.files import atomic


def calibrate(
    data: dataoptions.Data,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="The profile.  [default: BACKBONE.profile.json]")
    ] = None,
    layout: dataoptions.Layout = "auto",
    split: dataoptions.Split = None,
    frames: dataoptions.Frames = 33,
    side: dataoptions.Side = 256,
    limit: dataoptions.Limit = 0,
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    trust: options.Trust = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a backbone's latents and suggest its threshold.

    One pass of the encoder over the clips. `inlay encode --profile FILE` takes its default tau from it.
    """
    target = paths.output(out or f"{Path(backbone).name}.profile.json", force=force)

    from inlay.cli.model import Model
    from inlay.codec import encode_clip
    from inlay.measure import calibrate as room
    from inlay.research.studies.datasets import ClipSpec, open_data

    model = Model(backbone=backbone, weights=weights, device=device, dtype=dtype, trust=trust)
    screen = Screen(json=json, quiet=quiet)
    spec = ClipSpec(frames=frames, size=side)
    found = open_data(data, layout=layout, split=split, spec=spec, limit=limit, tell=screen.note)
    tokenizer = model.load()
    state = room.start(tokenizer.spec)
    broken: dict[str, str] = {}
    with screen.progress("calibrating", len(found) * frames) as advance:
        for clip in found.clips:
            try:
                state = room.update(state, encode_clip(tokenizer, clip.load()).z_BCTHW)
            except VideoError as error:  # its header promised more than it holds
                broken[clip.name] = str(error)
                screen.note(f"left out: {error}")
            advance(frames)
    found = found.without(broken)
    profile = room.finish(
        state, data=f"{found.name} ({found.layout}, {found.split}), {len(found)} clips, {found.digest}"
    )
    with atomic(target) as part:
        profile.save(part)
    at_tau = min(zip(profile.taus, profile.keep_rates, strict=True), key=lambda row: abs(row[0] - profile.tau))
    record = {
        "profile": target,
        "backbone": profile.backbone,
        "tau": profile.tau,
        "score_mean": profile.score_mean,
        "score_std": profile.score_std,
        "selectivity": profile.selectivity,
        "keep_rate": at_tau[1],
        "clips": profile.clips,
        "data": found.record(),
    }
    clips = clips_text(len(found))
    rows = [
        ("profile", target),
        ("tau", f"{profile.tau:g}, which keeps about {at_tau[1]:.1%} of the cells of {found.name} ({clips})"),
        ("scores", f"mean {profile.score_mean:.4g}, std {profile.score_std:.4g}, CoV {profile.selectivity:.3f}"),
        ("latents", f"std {_mean(profile.latent_std):.4g}, slot 0 {_mean(profile.first_std):.4g}, mean over channels"),
    ]
    screen.show(record, rows)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
