# SPDX-License-Identifier: Apache-2.0
"""`inlay calibrate`: the profile of a backbone: its usual threshold, its statistics, which threshold keeps how much."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen
from inlay.errors import VideoError, number_of
from inlay.files import atomic, portable_name

if TYPE_CHECKING:
    from inlay.masking import Profile
    from inlay.tokenizer import Tokenizer
    from inlay.video.frames import Video


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
        typer.Option("--step", metavar="X", help="The default step of the profile.  [default: by measurement]"),
    ] = None,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Measure a backbone's latents and suggest its threshold.

    One pass of the encoder over the clips; small windows of a few are decoded to learn how far each channel's error
    reaches the picture, which steps go with which thresholds, and whether key slots are better thinned out. `inlay
    encode --profile FILE` takes its defaults from it, and `--bits` and `--psnr` their pairs of tau and step.
    """
    target = out or f"{portable_name(Path(model.backbone).name)}.profile.json"
    paths.output(target, force=force, what="a profile", suffixes=(".json",))

    from inlay.codec import encode_clip
    from inlay.masking import step_size
    from inlay.measure import calibrate as calibration
    from inlay.measure import curve
    from inlay.measure.gains import CLIPS, Gains

    _ = None if step is None else step_size(step)  # a wrong one shows before anything is measured
    model.check()
    found = clips.open(data, screen.note)
    tokenizer = model.load()
    state, gains = calibration.start(tokenizer.spec), Gains()
    apart, sample = max(1, len(found) // CLIPS), []  # what is decoded are clips from all over the data
    broken: dict[str, str] = {}
    with screen.progress("calibrating", len(found) * clips.frames) as advance:
        for number, clip in enumerate(found.clips):
            try:
                video = clip.load()
                z_BCTHW = encode_clip(tokenizer, video).z_BCTHW
                state = calibration.update(state, z_BCTHW)
                if number % apart == 0 and gains.clips < CLIPS:
                    gains = gains.update(tokenizer, z_BCTHW)
                    sample.append(curve.middle(video))
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
    )
    profile = _with_dial(tokenizer, profile, sample[: curve.CLIPS], step, screen)
    with atomic(target) as part:
        profile.save(part)
    at_tau = min(zip(profile.taus, profile.keep_rates, strict=True), key=lambda row: abs(row[0] - profile.tau))
    record = {
        "profile": target,
        **{name: getattr(profile, name) for name in ("backbone", "tau", "score_mean", "score_std", "selectivity")},
        "keep_rate": at_tau[1],
        "step": profile.step,
        "cache_step": profile.cache_step,
        "thin": profile.thin,
        "gains": profile.gains,
        "dial": None if profile.dial is None else asdict(profile.dial),
        "clips": profile.clips,
        "data": found.record(),
    }
    count = number_of(len(found), "clip")
    rows = [
        ("profile", target),
        ("tau", f"{profile.tau:g}, which keeps about {at_tau[1]:.1%} of the cells of {found.name} ({count})"),
        ("scores", f"mean {profile.score_mean:.4g}, std {profile.score_std:.4g}, CoV {profile.selectivity:.3f}"),
        ("latents", f"std {_mean(profile.latent_std):.4g}, slot 0 {_mean(profile.first_std):.4g}, mean over channels"),
        ("gains", f"{min(profile.gains):.3g} to {max(profile.gains):.3g} grey levels a unit of latent"),
        ("step", "from the deviations" if profile.step is None else f"{profile.step:g}"),
        ("key slots", "thinned out where tokens are counted" if profile.thin else "kept whole"),
        ("dial", dial_text(profile)),
    ]
    screen.show(record, rows)


def _with_dial(tokenizer: Tokenizer, profile: Profile, clips: list[Video], step: str | None, screen: Screen) -> Profile:
    """With the pairs of tau and step that spend bits best, whether key slots are better thinned out, and the default
    step: the one given, or by measurement."""
    from inlay.masking import best_pairs, step_size
    from inlay.measure import curve

    found, gains = [], []
    with screen.bar("decoding (clips)", total=len(clips)) as update:
        for clip in clips:
            found.append(curve.measure_clip(tokenizer, profile, clip))
            gains.append(curve.gain_of_thin(tokenizer, clip))
            update(advance=1)
    means = curve.mean_pairs(found)
    dial = best_pairs([(pair.tau, pair.step, pair.bits, pair.psnr) for pair in means if pair.step is not None])
    default = curve.default_step(profile.tau, means) if step is None else step_size(step)
    thin = len(gains) > 0 and _mean(tuple(gains)) > 0
    cache_step = curve.default_step(0.0, means, curve.CACHE_LOSS_DB)
    profile = replace(profile, step=default, cache_step=cache_step, thin=thin)
    if dial is None:
        return profile
    return replace(profile, dial_taus=dial.taus, dial_steps=dial.steps, dial_bits=dial.bits, dial_psnr=dial.psnr)


def dial_text(profile: Profile) -> str:
    """From the finest pair to the coarsest."""
    if profile.dial is None:
        return "none: no pair of tau and step drops a cell for the better"
    pairs = zip(profile.dial_taus, profile.dial_steps, profile.dial_bits, strict=True)
    ends = [f"tau {tau:.3g} with step {step:g} ({bits:.3f} bits a pixel)" for tau, step, bits in pairs]
    return f"{len(ends)} pairs, {ends[0]} to {ends[-1]}"


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
