# SPDX-License-Identifier: Apache-2.0
"""Time every stage of a tokenizer at several sizes, clip lengths and batches: one record, and the same as a table."""

from __future__ import annotations

import itertools
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from inlay import __version__
from inlay.errors import ConfigError, pick
from inlay.fill import Filler, Lit, plus
from inlay.kernels.switch import at_level
from inlay.research.bench.before import PLACE
from inlay.research.bench.config import PATHS, BenchConfig, size_of
from inlay.research.bench.stages import Case, Stage
from inlay.research.bench.timing import Peaks, measured, resident_gb, sheet, timed
from inlay.tokenizer import Tokenizer, pick_device

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RANDOM = ("cosmos-360p-random", "mini-random")
Note = Callable[[str], None]


def bench(config: BenchConfig, tokenizer: Tokenizer | None = None, note: Note = lambda text: None) -> dict[str, Any]:
    """Time every case. Ratios between paths are those of one run on one machine."""
    tokenizer = tokenizer or load(config)
    if "compiled" in config.paths and tokenizer.device.type != "cuda":
        raise ConfigError(f"networks are compiled on CUDA only, and this is {tokenizer.device}; leave compiled out")
    found = measured(tokenizer.device, tokenizer.dtype)
    with tempfile.TemporaryDirectory() as folder:
        rows = cases(config, tokenizer, Path(folder), note)
    found = found.over(measured(tokenizer.device, tokenizer.dtype))  # once more: one of the two may be disturbed
    named = sheet(machine(tokenizer.device), tokenizer.dtype)
    peaks = raised(named or found, rows)
    add_floors(rows, peaks)
    return {
        "inlay": __version__, "config": asdict(config), "device": machine(tokenizer.device), "torch": torch.__version__,
        "python": platform.python_version(), "threads": torch.get_num_threads(), "backbone": tokenizer.spec.name,
        "load_average": load_average(), "parameters": tokenizer.spec.parameters, "peaks": asdict(peaks),
        "measured_peaks": asdict(found), "resident_gb": resident_gb(), "rows": rows,
    }  # fmt: skip


def cases(config: BenchConfig, tokenizer: Tokenizer, folder: Path, note: Note) -> list[dict[str, Any]]:
    models: dict[bool, Tokenizer] = {False: tokenizer}
    rows: list[dict[str, Any]] = []
    every = list(itertools.product(config.sizes, config.frames, config.batches, config.paths))
    until, left = time.monotonic() + config.seconds, len(every) * len(config.stages)
    for size, frames, batch, way in every:
        note(f"{size}, {frames} frames, batch {batch}, {way}")
        with at_level(PATHS[way]):
            compiled = way == "compiled"
            if compiled not in models:
                models[compiled] = load(config)  # a network of its own: what is compiled once stays so
            case = Case(models[compiled], folder, size=size_of(size), frames=frames, batch=batch, keep=config.keep)
            place = {"size": size, "frames": frames, "batch": batch, "path": way}
            for name in config.stages:
                share = max(until - time.monotonic(), 0) / left
                rows.append(place | row(case, name, config, seconds=share))
                left -= 1
            del case
    return rows


def row(case: Case, name: str, config: BenchConfig, *, seconds: float) -> dict[str, Any]:
    stage: Stage = case.stage(name)
    if stage.missing:
        return {"stage": name, "missing": stage.missing}
    device = CPU if stage.on_cpu else case.tokenizer.device
    times = timed(stage.call, device, repeats=config.repeats, warmup=config.warmup, seconds=seconds)
    out: dict[str, Any] = {"stage": name, "on": device.type, **times, "clip_ms": times["ms"] / case.batch}
    if stage.flops:
        out |= {"gflop": stage.flops / 1e9, "tflops": stage.flops / times["ms"] / 1e9}
    if stage.moved:
        out |= {"moved_gb": stage.moved / 1e9, "gbs": stage.moved / times["ms"] / 1e6}
    return out


def raised(peaks: Peaks, rows: list[dict[str, Any]]) -> Peaks:
    """Ceilings that no row breaks: what was reached can be reached, whatever was measured or printed of the device."""
    names: list[str] = []
    for r in rows:
        if "moved_gb" not in r:
            continue
        kind = "flops" if r["path"] == "eager" else "quick"
        for key, rate in ((kind, r.get("gflop", 0.0)), ("bytes", r["moved_gb"])):
            reached = rate * 1e12 / r["best_ms"]
            if reached > getattr(peaks, key):
                peaks = replace(peaks, **{key: reached})
                names.append(f"{r['path']} {r['stage']}")
    return replace(peaks, source=", ".join([peaks.source, *(f"reached by {name}" for name in dict.fromkeys(names))]))


def add_floors(rows: list[dict[str, Any]], peaks: Peaks) -> None:
    for r in rows:
        if "moved_gb" in r:
            floor = peaks.floor_ms(r.get("gflop", 0.0) * 1e9, r["moved_gb"] * 1e9, quick=r["path"] != "eager")
            r |= {"floor_ms": floor, "times_floor": r["ms"] / floor}


def load_average() -> float | None:
    """Of the last minute, where the system tells: times of a busy machine are not to be compared."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


HEAD = (*PLACE, "ms/clip", "GFLOP", "TFLOP/s", "GB/s", "floor ms", "x floor", "GB")


def table(record: dict[str, Any]) -> str:
    """The rows as text, with what they took before where the record was compared."""
    compared = "before" in record
    lines: list[tuple[str, ...]] = [(*HEAD, *(("before", "x before") if compared else ()))]
    for r in record["rows"]:
        place = tuple(str(r[k]) for k in PLACE)
        if "missing" in r:
            lines.append((*place, r["missing"][:40], *[""] * (len(lines[0]) - 6)))
            continue
        columns = [
            ("clip_ms", ",.3f", 1), ("gflop", ",.1f", 1), ("tflops", ".3f", 1), ("gbs", ",.1f", 1),
            ("floor_ms", ",.3f", r["batch"]), ("times_floor", ",.1f", 1), ("peak_gb", ".2f", 1),
            *((("before_ms", ",.3f", 1), ("times_before", ",.2f", 1)) if compared else ()),
        ]  # fmt: skip
        lines.append((*place, *(f"{r[k] / scale:{form}}" if k in r else "" for k, form, scale in columns)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    forms = [f"<{n}" if i < 5 else f">{n}" for i, n in enumerate(widths)]
    text = ["  ".join(map(format, line, forms)).rstrip() for line in lines]
    peaks = record["peaks"]
    quick = f" (fast paths {peaks['quick'] / 1e12:.3g})" if peaks.get("quick", 0) > peaks["flops"] else ""
    best = f"{peaks['flops'] / 1e12:.3g} TFLOP/s{quick}, {peaks['bytes'] / 1e9:.4g} GB/s ({peaks['source']})"
    last = [f"before: {record['before']}"] if compared else []
    return "\n".join([f"{record['backbone']} on {record['device']}; at best {best}", *text, *last])


def load(config: BenchConfig) -> Tokenizer:
    device, dtype = pick_device(config.device), pick("dtype", config.dtype, DTYPES)
    if config.backbone in RANDOM:
        backbone = _random_network(config.backbone).eval().requires_grad_(False).to(device=device, dtype=dtype)
        return with_lit(Tokenizer(backbone, device=device, dtype=dtype))
    return with_lit(Tokenizer.from_pretrained(config.backbone, device=device, dtype=dtype))


def _random_network(name: str) -> Any:
    torch.manual_seed(0)
    if name == "mini-random":
        from inlay.backbones.mini import Mini

        return Mini()
    from inlay.backbones.cosmos import Cosmos, cosmos_360p

    return Cosmos(cosmos_360p())


def with_lit(tokenizer: Tokenizer) -> Tokenizer:
    """With a LIT, an untrained one where none is at hand."""
    if "lit" in tokenizer.filler.lits:
        return tokenizer
    torch.manual_seed(0)
    lit = Lit.build(replace(plus(), channels=tokenizer.spec.channels)).eval().requires_grad_(False)
    device, dtype = tokenizer.device, tokenizer.dtype
    filler = Filler({"lit": lit.to(device=device, dtype=dtype)}, device=device, dtype=dtype)
    return Tokenizer(tokenizer.backbone, filler=filler, device=device, dtype=dtype)
