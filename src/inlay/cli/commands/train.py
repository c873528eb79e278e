# SPDX-License-Identifier: Apache-2.0
"""`inlay train`: a run folder with trained weights. Every setting of `TrainConfig` is a flag, made from its field."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from inlay.cli import options
from inlay.cli.help import PanelCommand, PanelGroup
from inlay.cli.screen import Screen
from inlay.errors import UsageError, pick
from inlay.files import check_folder
from inlay.train.config import ClipConfig, LossConfig, OptimConfig, TrainConfig, option_fields
from inlay.train.presets import BACKBONE_PRESETS, LIT_PRESETS, TOGETHER_PRESETS, Presets

if TYPE_CHECKING:
    from inlay.fill.lit import LitConfig
    from inlay.train.loop import TrainResult
    from inlay.train.runs import RunOptions

app = typer.Typer(cls=PanelGroup, help="Train a LIT, the embedded backbone, or both at once.", no_args_is_help=True)
METAVARS: dict[Any, str | None] = {int: "N", float: "X", str: "NAME", bool: None}
PANELS = {"": "Training", "clips": "Clips", "loss": "Loss", "optim": "Optimiser"}  # headings of the settings

Data = Annotated[
    str, typer.Argument(metavar="VIDEOS", help="A video, a folder of videos, or a text file that lists some.")
]
Run = Annotated[str, typer.Option("--run", metavar="DIR", help="The run's folder: log, checkpoints, weights.")]
Preset = Annotated[str, typer.Option("--preset", metavar="NAME", help="Where settings not given here come from.")]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings in TOML, in place of the preset's; flags go before them."),
]
Held = Annotated[
    str | None,
    typer.Option("--validate", metavar="VIDEOS", help="Videos to validate on.  [default: some of VIDEOS, held out]"),
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


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """What the commands of `inlay train` have in common, each field a flag."""

    data: Data
    run: Run
    validate: Held = None
    layout: Layout = "auto"
    device: options.Device = "auto"
    workers: Workers = 2
    resume: Resume = False
    stop_after: StopAfter = 0.0
    config: ConfigFile = None

    def check(self) -> None:
        """Refuse what can be refused before anything is loaded."""
        for place in (self.data, self.validate):
            if place is not None and not Path(place).exists():
                raise UsageError(
                    f"{place}: no such folder or list; give a folder of videos or a text file that names some"
                )
        check_folder(Path(self.run), about="run")
        if (Path(self.run) / "config.json").exists() and not self.resume:
            raise UsageError(f"{self.run} holds a run already; go on with --resume, or choose another folder")

    def settings(self, preset: str, presets: Presets, given: dict[str, Any]) -> TrainConfig:
        """The preset, changed by the file, changed by the flags."""
        from inlay.train.settings import read_settings

        stored = read_settings(self.config) if self.config is not None else {}
        return pick("preset", preset, presets)().with_options(**{**stored, **given})

    def options(self, screen: Screen) -> RunOptions:
        from inlay.tokenizer import pick_device
        from inlay.train.runs import RunOptions

        return RunOptions(
            run_dir=self.run, data=self.data, validate=self.validate, layout=self.layout, workers=self.workers,
            device=pick_device(self.device), resume=self.resume, stop_after=self.stop_after,
            quiet=screen.quiet or screen.json,
        )  # fmt: skip

    def show(self, outcome: TrainResult, screen: Screen) -> None:
        if os.environ.get("RANK", "0") != "0":  # of several processes one prints
            return
        psnr = outcome.best_psnr
        record = {
            "run": self.run,
            **{name: getattr(outcome, name) for name in ("step", "finished", "seconds", "best_step", "best_psnr")},
            "weights": None if outcome.weights is None else str(outcome.weights),
        }
        rows = [
            ("steps", f"{outcome.step:,}" if outcome.finished else f"{outcome.step:,} (stopped; go on with --resume)"),
            ("best", "not validated" if psnr is None else f"{psnr:.3f} dB at step {outcome.best_step:,}"),
            ("took", f"{outcome.seconds:.1f} s"),
            ("weights", str(outcome.weights or "written when the run is finished")),
        ]
        screen.show(record, rows)


def _show_preset(task: str, presets: Presets) -> Any:
    """A flag that prints a preset as a file for --config, and leaves: it needs neither data nor a run."""

    def show(name: str | None) -> None:
        if name is not None:
            from inlay.train.settings import settings_text

            typer.echo(settings_text(pick("preset", name, presets)(), task), nl=False)
            raise typer.Exit

    text = f"Print the settings of a preset ({', '.join(presets)}) as a file for --config, and leave."
    return Annotated[str | None, typer.Option("--show-preset", metavar="NAME", is_eager=True, callback=show, help=text)]


def train_command(name: str, presets: Presets) -> Callable[[Callable[..., None]], None]:
    """A command of `inlay train`: flags for its job, its presets, and each training setting that it looks at."""

    def add(command: Callable[..., None]) -> None:
        shown = options.parameter("show_preset", _show_preset(name, presets), None)
        flags = options.with_flags(command, settings={"show_preset": shown, **_settings(name)})
        app.command(name, cls=PanelCommand)(flags)

    return add


@cache
def _settings(task: str) -> dict[str, inspect.Parameter]:
    owners = {"": TrainConfig, "clips": ClipConfig, "loss": LossConfig, "optim": OptimConfig}
    hints: dict[str, dict[str, Any]] = {group: get_type_hints(owner) for group, owner in owners.items()}
    found = {}
    for group, field in option_fields(task):
        text = field.metadata["help"]
        kind = hints[group][field.name]
        name = METAVARS.get(kind, "LOW HIGH" if field.name != "betas" else "X Y")
        flag = typer.Option(
            metavar=name,
            help=text[:1].upper() + text[1:] + ".",
            rich_help_panel=f"{PANELS[group]}, instead of the preset's",
        )
        found[field.name] = options.parameter(field.name, Annotated[kind | None, flag], None)
    return found


@train_command("lit", LIT_PRESETS)
def lit(
    job: TrainJob,
    *,
    preset: Preset = "plus",
    shape: Shape = None,
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    trust: options.Trust = False,
    init: Init = None,
    screen: Screen,
    **settings: Any,
) -> None:
    """Train the transformer that fills dropped cells (LIT).

    The backbone stays as it is. Presets: paper (the paper's set-up), plus (ours), smoke (seconds, to see that
    everything is in place).
    """
    config = job.settings(preset, LIT_PRESETS, settings)
    job.check()

    from inlay.fill.lit import paper, paper_small, plus
    from inlay.train.runs import train_lit

    shapes = {"paper": paper, "paper-small": paper_small, "plus": plus, "smoke": smoke_lit}
    outcome = train_lit(
        config, job.options(screen), lit=pick("shape", shape or preset, shapes)(), backbone=backbone,
        backbone_weights=weights, trust=trust, start=init,
    )  # fmt: skip
    job.show(outcome, screen)


@train_command("backbone", BACKBONE_PRESETS)
def backbone(job: TrainJob, *, preset: Preset = "mini", init: Init = None, screen: Screen, **settings: Any) -> None:
    """Train the embedded backbone.

    From nothing, or from the weights --from names. Presets: mini (our recipe for it alone), smoke (seconds, to see that
    everything is in place).
    """
    config = job.settings(preset, BACKBONE_PRESETS, settings)
    job.check()

    from inlay.backbones import MiniConfig, tiny
    from inlay.train.runs import train_backbone

    shape = tiny() if preset == "smoke" else MiniConfig()
    job.show(train_backbone(config, job.options(screen), shape=shape, start=init), screen)


@train_command("together", TOGETHER_PRESETS)
def together(
    job: TrainJob,
    *,
    preset: Preset = "together",
    init: Init = None,
    init_lit: InitLit = None,
    screen: Screen,
    **settings: Any,
) -> None:
    """Train the embedded backbone and its LIT at once.

    Latents then change most where the picture does. Presets: together (how the one that ships ended its training),
    smoke (seconds, to see that everything is in place).
    """
    config = job.settings(preset, TOGETHER_PRESETS, settings)
    job.check()

    from inlay.backbones import MiniConfig, tiny
    from inlay.fill.lit import plus
    from inlay.train.runs import train_together

    shape, fill = (tiny(), smoke_lit()) if preset == "smoke" else (MiniConfig(), plus())
    outcome = train_together(config, job.options(screen), shape=shape, lit=fill, start=init, start_lit=init_lit)
    job.show(outcome, screen)


def smoke_lit() -> LitConfig:
    """The network of the preset `smoke`."""
    from inlay.fill.lit import LitConfig

    return LitConfig(width=64, heads=2, blocks=2)
