# SPDX-License-Identifier: Apache-2.0
"""`inlay calibrate`: the profile of a backbone: its usual threshold, its statistics, which threshold keeps how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen, clips_text
from inlay.errors import VideoError
from inlay.files import atomic, portable_name


def calibrate(
    data: options.Data,
    *,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="The profile.  [default: BACKBONE.profile.json]")
    ] = None,
    clips: options.DataClips,
    model: options.Model,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Measure a backbone's latents and suggest its threshold.

    One pass of the encoder over the clips. `inlay encode --profile FILE` takes its default tau from it.
    """
    target = out or f"{portable_name(Path(model.backbone).name)}.profile.json"
    paths.output(target, force=force, what="a profile", suffixes=(".json",))

    from inlay.codec import encode_clip
    from inlay.measure import calibrate as calibration

    model.check()
    found = clips.open(data, screen.note)
    tokenizer = model.load()
    state = calibration.start(tokenizer.spec)
    broken: dict[str, str] = {}
    with screen.progress("calibrating", len(found) * clips.frames) as advance:
        for clip in found.clips:
            try:
                state = calibration.update(state, encode_clip(tokenizer, clip.load()).z_BCTHW)
            except VideoError as error:  # its header promised more than it holds
                broken[clip.name] = str(error)
                screen.note(f"left out: {error}")
            advance(clips.frames)
    found = found.without(broken)
    profile = calibration.finish(
        state, data=f"{found.name} ({found.layout}, {found.split}), {len(found)} clips, {found.digest}"
    )
    with atomic(target) as part:
        profile.save(part)
    at_tau = min(zip(profile.taus, profile.keep_rates, strict=True), key=lambda row: abs(row[0] - profile.tau))
    record = {
        "profile": target,
        **{name: getattr(profile, name) for name in ("backbone", "tau", "score_mean", "score_std", "selectivity")},
        "keep_rate": at_tau[1],
        "clips": profile.clips,
        "data": found.record(),
    }
    count = clips_text(len(found))
    rows = [
        ("profile", target),
        ("tau", f"{profile.tau:g}, which keeps about {at_tau[1]:.1%} of the cells of {found.name} ({count})"),
        ("scores", f"mean {profile.score_mean:.4g}, std {profile.score_std:.4g}, CoV {profile.selectivity:.3f}"),
        ("latents", f"std {_mean(profile.latent_std):.4g}, slot 0 {_mean(profile.first_std):.4g}, mean over channels"),
    ]
    screen.show(record, rows)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
