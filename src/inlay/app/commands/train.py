# SPDX-License-Identifier: Apache-2.0
"""Videos in, a run folder with trained weights out. Every setting of `TrainConfig` is a flag, made from its field."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from inlay.app import options
from inlay.app.screen import Screen
from inlay.errors import UsageError, pick
from inlay.train.config import ClipConfig, LossConfig, OptimConfig, TrainConfig, option_fields

if TYPE_CHECKING:
    from inlay.train.loop import Outcome

app = typer.Typer(help="Train a LIT, the embedded backbone, or both at once.", no_args_is_help=True)

Data = Annotated[str, typer.Argument(metavar="DATA", help="A folder of videos, or a text file that lists some.")]
Run = Annotated[str, typer.Option("--run", metavar="DIR", help="The run's folder: log, checkpoints, weights.")]
Preset = Annotated[str, typer.Option("--preset", metavar="NAME", help="Where settings not given here come from.")]
Held = Annotated[
    str | None,
    typer.Option("--validate", metavar="DATA", help="Videos to validate on; without it some of DATA are held out."),
]
Layout = Annotated[str, typer.Option("--layout", metavar="NAME", help="auto, folder, list, ucf101 or kinetics400.")]
Workers = Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Threads that read videos.")]
Init = Annotated[
    str | None,
    typer.Option("--from", metavar="FILE", help="Begin from these weights; a network with fewer blocks may grow."),
]
InitLit = Annotated[
    str | None, typer.Option("--from-lit", metavar="FILE", help="Begin the LIT from these weights (shape: plus).")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")]
StopAfter = Annotated[
    float, typer.Option("--stop-after", metavar="SECONDS", min=0, help="Save and stop then; 0: never.")
]
Shape = Annotated[
    str | None,
    typer.Option("--shape", metavar="NAME", help="The network: paper, paper-small or plus; without it the preset's."),
]


def with_config_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each training setting in place of its `**settings`; unset ones are left out."""
    owners = {"": TrainConfig, "clips": ClipConfig, "loss": LossConfig, "optim": OptimConfig}
    hints: dict[str, dict[str, Any]] = {group: get_type_hints(owner) for group, owner in owners.items()}
    fixed = [p for p in inspect.signature(command).parameters.values() if p.kind != p.VAR_KEYWORD]
    annotations = {
        name: hint for name, hint in get_type_hints(command, include_extras=True).items() if name != "settings"
    }
    parameters = [p.replace(annotation=annotations[p.name]) for p in fixed]
    for group, field in option_fields():
        text = field.metadata["help"]
        text = text[:1].upper() + text[1:] + "."
        kind: Any = hints[group][field.name] | None
        hint = Annotated[kind, typer.Option(help=text, rich_help_panel="Settings, instead of the preset's")]
        annotations[field.name] = hint
        place = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(field.name, place, default=None, annotation=hint))
    own = {p.name for p in fixed}

    def run(**values: Any) -> None:
        settings = {k: v for k, v in values.items() if k not in own and v is not None}
        command(**{k: v for k, v in values.items() if k in own}, **settings)

    run.__name__, run.__doc__, run.__annotations__ = command.__name__, command.__doc__, annotations
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


@app.command("lit")
@with_config_flags
def lit(
    data: Data,
    run: Run,
    preset: Preset = "plus",
    validate: Held = None,
    layout: Layout = "auto",
    shape: Shape = None,
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    trust: options.Trust = False,
    init: Init = None,
    device: options.Device = "auto",
    workers: Workers = 2,
    resume: Resume = False,
    stop_after: StopAfter = 0.0,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **settings: Any,
) -> None:
    """Train the transformer that fills dropped cells; the backbone stays as it is.

    Presets: paper (the paper's set-up), plus (ours), smoke (seconds, to see that everything is in place).
    """
    from inlay.train.presets import LIT_PRESETS

    config = pick("preset", preset, LIT_PRESETS)().with_options(**settings)
    check_paths(data, validate, run, resume=resume)

    from inlay.fill.lit import LitConfig, paper, paper_small, plus
    from inlay.tokenizer import pick_device
    from inlay.train.runs import train_lit

    shapes = {
        "paper": paper,
        "paper-small": paper_small,
        "plus": plus,
        "smoke": lambda: LitConfig(width=64, heads=2, blocks=2),
    }
    outcome = train_lit(
        config, run, data=data, lit=pick("shape", shape or preset, shapes)(), validate=validate, layout=layout,
        backbone=backbone, backbone_weights=weights, trust=trust, start=init, device=pick_device(device),
        workers=workers, resume=resume, stop_after=stop_after, quiet=quiet or json,
    )  # fmt: skip
    show(outcome, Screen(json=json, quiet=quiet), run)


@app.command("backbone")
@with_config_flags
def backbone(
    data: Data,
    run: Run,
    preset: Preset = "mini",
    validate: Held = None,
    layout: Layout = "auto",
    init: Init = None,
    device: options.Device = "auto",
    workers: Workers = 2,
    resume: Resume = False,
    stop_after: StopAfter = 0.0,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **settings: Any,
) -> None:
    """Train the embedded backbone, from nothing or from the weights --from names.

    Presets: mini (our recipe for it alone), smoke (seconds, to see that everything is in place).
    """
    from inlay.train.presets import BACKBONE_PRESETS

    config = pick("preset", preset, BACKBONE_PRESETS)().with_options(**settings)
    check_paths(data, validate, run, resume=resume)

    from inlay.backbones import MiniConfig, tiny
    from inlay.tokenizer import pick_device
    from inlay.train.runs import train_backbone

    outcome = train_backbone(
        config, run, data=data, shape=tiny() if preset == "smoke" else MiniConfig(), validate=validate, layout=layout,
        start=init, device=pick_device(device), workers=workers, resume=resume, stop_after=stop_after,
        quiet=quiet or json,
    )  # fmt: skip
    show(outcome, Screen(json=json, quiet=quiet), run)


@app.command("together")
@with_config_flags
def together(
    data: Data,
    run: Run,
    preset: Preset = "together",
    validate: Held = None,
    layout: Layout = "auto",
    init: Init = None,
    init_lit: InitLit = None,
    device: options.Device = "auto",
    workers: Workers = 2,
    resume: Resume = False,
    stop_after: StopAfter = 0.0,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **settings: Any,
) -> None:
    """Train the embedded backbone and its LIT at once, so that latents change most where the picture does.

    Presets: together (how the one that ships ended its training), smoke (seconds, to see that everything is in place).
    """
    from inlay.train.presets import TOGETHER_PRESETS

    config = pick("preset", preset, TOGETHER_PRESETS)().with_options(**settings)
    check_paths(data, validate, run, resume=resume)

    from inlay.backbones import MiniConfig, tiny
    from inlay.fill.lit import LitConfig, plus
    from inlay.tokenizer import pick_device
    from inlay.train.runs import train_together

    small = preset == "smoke"
    outcome = train_together(
        config, run, data=data, shape=tiny() if small else MiniConfig(),
        lit=LitConfig(width=64, heads=2, blocks=2) if small else plus(), start=init, start_lit=init_lit,
        validate=validate, layout=layout, device=pick_device(device), workers=workers, resume=resume,
        stop_after=stop_after, quiet=quiet or json,
    )  # fmt: skip
    show(outcome, Screen(json=json, quiet=quiet), run)


def check_paths(data: str, validate: str | None, run: str, *, resume: bool) -> None:
    """What can be refused before anything is loaded."""
    for place in (data, validate):
        if place is not None and not Path(place).exists():
            raise UsageError(f"{place}: no such folder or list; give a folder of videos or a text file that names some")
    if (Path(run) / "config.json").exists() and not resume:
        raise UsageError(f"{run} holds a run already; go on with --resume, or choose another folder")


def show(outcome: Outcome, screen: Screen, run: str) -> None:
    if os.environ.get("RANK", "0") != "0":  # of several processes one speaks
        return
    psnr = outcome.best_psnr
    record = {
        "run": run,
        "step": outcome.step,
        "finished": outcome.finished,
        "seconds": outcome.seconds,
        "best_step": outcome.best_step,
        "best_psnr": psnr,
        "weights": None if outcome.weights is None else str(outcome.weights),
    }
    rows = [
        ("steps", f"{outcome.step:,}" if outcome.finished else f"{outcome.step:,} (stopped; go on with --resume)"),
        ("best", "not validated" if psnr is None else f"{psnr:.3f} dB at step {outcome.best_step:,}"),
        ("took", f"{outcome.seconds:.1f} s"),
        ("weights", str(outcome.weights or "written when the run is finished")),
    ]
    screen.show(record, rows)
