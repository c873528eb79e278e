# SPDX-License-Identifier: Apache-2.0
"""`inlay study`: the paper's tables, figures and one HTML report; a second run goes on from the first one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.cli import options
from inlay.cli.screen import Screen, public_command
from inlay.errors import MissingError, UsageError
from inlay.files import made_folder


def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="main, cost, ablation, streaming, sweep, fill-sweep, masks, usage, backbones, flicker, bits; "
            "all; or docs.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Records, tables, figures and report go here.")],
    *,
    data_davis: Annotated[
        str | None, typer.Option("--data-davis", metavar="DIR", help="DAVIS: frame folders or videos.")
    ] = None,
    data_bench: Annotated[
        str | None, typer.Option("--data-bench", metavar="DIR", help="TokenBench, or any videos in its place.")
    ] = None,
    page: Annotated[
        str | None,
        typer.Option("--page", metavar="FILE", help="With docs: the page of results.  [default: docs/results.md]"),
    ] = None,
    metrics: options.Metrics = "auto",
    tau: options.Tau = None,
    lit: Annotated[
        list[str] | None,
        typer.Option("--lit", metavar="NAME=PATH", help="Another filling network to compare (may be repeated)."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="NAME", help="Another backbone for the study backbones (may be repeated)."),
    ] = None,
    clips: options.Clips,
    model: options.ProfiledModel,
    screen: Screen,
) -> None:
    """Make the paper's tables and figures.

    Every result is a record of its own, so a study that was stopped goes on where it was. `docs` writes the page of
    results from what the studies left, without data or weights.
    """
    from inlay.research.studies.catalogue import chosen, run_all, write_page
    from inlay.research.studies.records import Store

    names = [] if name == "docs" else chosen(name)
    store = Store(Path(out))
    if name == "docs":
        written = write_page(store, Path(page or "docs/results.md"))
        screen.show({"page": written}, [("page", str(written))])
        return
    if page is not None:
        raise UsageError("--page belongs to: inlay study docs")
    places = {role: place for role, place in (("davis", data_davis), ("bench", data_bench)) if place is not None}
    if not places:
        raise UsageError("a study needs videos; give --data-davis DIR, --data-bench DIR, or both")

    from inlay.masking import Budget
    from inlay.measure import MeasureConfig
    from inlay.research.studies.datasets import ClipSpec, open_data
    from inlay.research.studies.evaluate import Bench
    from inlay.research.studies.records import READ_FILE, choose_metrics, without_unreadable
    from inlay.research.studies.workspace import Workspace
    from inlay.tokenizer import pick_device

    Budget(tau=tau)  # refused here if it cannot be
    fill, model = model.fill, replace(model, fill=None)  # one of --lit may be named
    model.check()
    kind = pick_device(model.device)
    place = str(kind) if kind.type == "cuda" else "cpu"  # metrics run on these two
    metric_names = choose_metrics(metrics, place)
    lits = _lits(lit or [])
    spec = ClipSpec(frames=clips.frames, size=clips.side)
    data = {role: open_data(p, name=role, spec=spec, limit=clips.limit, tell=screen.note) for role, p in places.items()}
    with made_folder(out, notes=(READ_FILE,)):
        tokenizer = _tokenizer(model, lits, fill)  # before every clip is read, which takes longer
        data = {role: without_unreadable(one, store, screen.note) for role, one in data.items()}
        work = Workspace(
            bench=Bench(tokenizer, tau=tau, measure=MeasureConfig(device=place)),
            store=store,
            data=data,
            metrics=metric_names,
            also=tuple(also or ()),
            command=public_command(),
            tell=screen.note,
        )
        done, failed = run_all(work, names)
    record = {
        "out": out,
        "report": str(Path(out) / "report.html"),
        "sections": {n: s.record() for n, s in done.items()},
        "failed": failed,
    }
    rows = [(n, s.title) for n, s in done.items()]
    rows += [(n, f"not run: {why}") for n, why in failed.items()]
    screen.show(record, [*rows, ("report", str(Path(out) / "report.html"))])
    for n, why in failed.items() if screen.quiet else ():
        Screen().note(f"{n}: not run: {why}")
    if not done:
        raise UsageError(f"no study could run: {'; '.join(failed.values())}")


def _lits(given: list[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        name, _, path = text.partition("=")
        if not name or not path:
            raise UsageError(f"--lit takes NAME=PATH, as lit-temporal=run/weights.safetensors; got {text!r}")
        if not Path(path).is_file():
            raise MissingError(f"no weights at {path}; give the path of a safetensors file")
        found[name] = Path(path)
    return found


def _tokenizer(model: options.Model, lits: dict[str, Path], fill: str | None) -> Any:
    from inlay.fill import Filler, load_lit
    from inlay.tokenizer import Tokenizer

    one = model.load()
    more = {name: load_lit(path).to(device=one.device, dtype=one.dtype) for name, path in lits.items()}
    filler = Filler({**one.filler.lits, **more}, default=fill or one.filler.default, device=one.device, dtype=one.dtype)
    return Tokenizer(one.backbone, profile=one.profile, filler=filler, device=one.device, dtype=one.dtype)
