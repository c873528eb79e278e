# SPDX-License-Identifier: Apache-2.0
"""`inlay calibrate`: the profile of a backbone: its usual threshold, its statistics, which threshold keeps how much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen, clips_text
from inlay.errors import VideoError
from inlay.files import atomic


def calibrate(
    data: options.Data,
    *,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="The profile.  [default: BACKBONE.profile.json]")
    ] = None,
    clips: options.DataClips,
    model: options.Model,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="X", help="The default step of the profile.  [default: deviation]"),
    ] = None,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Measure a backbone's latents and suggest its threshold.

    One pass of the encoder over the clips, and decodes of small windows that tell how far each channel's error reaches
    the picture. `inlay encode --profile FILE` takes its default tau and step from it.
    """
    target = out or f"{Path(model.backbone).name}.profile.json"
    paths.output(target, force=force, what="a profile", suffixes=(".json",))

    from inlay.codec import encode_clip
    from inlay.masking import step_size
    from inlay.measure import calibrate as calibration
    from inlay.measure.gains import CLIPS, Gains

    default_step = None if step is None else step_size(step)
    model.check()
    found = clips.open(data, screen.note)
    tokenizer = model.load()
    state, gains = calibration.start(tokenizer.spec), Gains()
    apart = max(1, len(found) // CLIPS)  # gains are those of clips from all over the data
    broken: dict[str, str] = {}
    with screen.progress("calibrating", len(found) * clips.frames) as advance:
        for number, clip in enumerate(found.clips):
            try:
                z_BCTHW = encode_clip(tokenizer, clip.load()).z_BCTHW
                state = calibration.update(state, z_BCTHW)
                if number % apart == 0 and gains.clips < CLIPS:
                    gains = gains.update(tokenizer, z_BCTHW)
            except VideoError as error:  # its header promised more than it holds
                broken[clip.name] = str(error)
                screen.note(f"left out: {error}")
            advance(clips.frames)
    found = found.without(broken)
    profile = replace(
        calibration.finish(
            state, data=f"{found.name} ({found.layout}, {found.split}), {len(found)} clips, {found.digest}"
        ),
        gains=gains.finish(),
        step=default_step,
    )
    with atomic(target) as part:
        profile.save(part)
    at_tau = min(zip(profile.taus, profile.keep_rates, strict=True), key=lambda row: abs(row[0] - profile.tau))
    record = {
        "profile": target,
        **{name: getattr(profile, name) for name in ("backbone", "tau", "score_mean", "score_std", "selectivity")},
        "keep_rate": at_tau[1],
        "step": profile.step,
        "gains": profile.gains,
        "clips": profile.clips,
        "data": found.record(),
    }
    count = clips_text(len(found))
    rows = [
        ("profile", target),
        ("tau", f"{profile.tau:g}, which keeps about {at_tau[1]:.1%} of the cells of {found.name} ({count})"),
        ("scores", f"mean {profile.score_mean:.4g}, std {profile.score_std:.4g}, CoV {profile.selectivity:.3f}"),
        ("latents", f"std {_mean(profile.latent_std):.4g}, slot 0 {_mean(profile.first_std):.4g}, mean over channels"),
        ("gains", f"{min(profile.gains):.3g} to {max(profile.gains):.3g} grey levels a unit of latent"),
        ("step", "from the deviations, as none was given" if profile.step is None else f"{profile.step:g}"),
    ]
    screen.show(record, rows)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
