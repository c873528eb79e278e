# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/speed_gpu.py measures on a device, one stage at a time.

Times are medians between CUDA events after a warm-up. Weights are random where no trained ones exist for a size: time
does not depend on them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.files import write_atomic
from inlay.fill import Filler, Lit, LitConfig, hold, paper, plus
from inlay.kernels import Replay
from inlay.kernels.switch import at_level
from inlay.masking import MaskConfig, keep_mask
from inlay.masking.scan import plain_scan
from inlay.research.bench.timing import flops, measured, sheet, tensor_bytes, timed, weight_bytes
from inlay.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
TAUS = {"latent-l1": 0.8, "latent-l2": 1.0, "latent-cosine": 0.1}


FORMS = ("eager", "fast", "compiled")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where, how large, how often, how long."""

    device: torch.device
    small: bool
    repeats: int
    until: float
    forms: tuple[str, ...] = FORMS  # of the whole pipeline

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def time(self, call: Callable[[], Any], *, repeats: int | None = None, queued: bool = False) -> dict[str, float]:
        with torch.inference_mode():
            return timed(call, self.device, repeats=repeats or self.repeats, warmup=3, queued=queued)


class Notes(dict[str, Any]):
    """What a stage has found, on disk whenever it changes."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        write_atomic(self.file, json.dumps(self).encode())

    def attempt(self, key: str, call: Callable[[], dict[str, Any]]) -> None:
        """The answer, or the error as one: a failing measurement must not lose the others."""
        start = time.perf_counter()
        try:
            found = call()
        except Exception as error:
            found = {
                "error": f"{type(error).__name__}: {error}"[:500],
                "where": traceback.format_exc().splitlines()[-14:],
            }
        self[key] = found | {"took_s": round(time.perf_counter() - start, 2)}


# --- mask ----------------------------------------------------------------------------------------------------------


def run_mask(s: Setup, notes: Notes) -> None:
    """The fused scan against a copy that moves as many bytes, and against the plain scan; then sizes of its tile."""
    large = 2 if s.small else 4096
    cases = [
        *((clips, 16, last, s.dtype) for clips, last in ((large, True), (1, True), (large, False))),
        *((clips, channels, True, s.dtype) for clips, channels in ((large, 4), (large // 2, 48))),
        (large // 2, 48, False, s.dtype),
        (large // 2, 16, True, torch.float32),
    ]
    for clips, channels, last, dtype in cases:
        z = latents(s, clips, channels, last=last).to(dtype)
        for criterion, tau in TAUS.items():
            name = f"{criterion} {clips}x{channels} {'last' if last else 'first'} {str(dtype).removeprefix('torch.')}"
            config = MaskConfig(tau=tau, criterion=criterion)
            notes.attempt(name, lambda z=z, c=config: mask_row(s, z, c))
    for name, call in one_mask(s).items():
        notes.attempt(name, lambda call=call: s.time(call))
    if s.device.type == "cuda":
        for criterion in TAUS:
            for tile, channels, last in ((256, 16, True), (1024, 16, True), (1024, 48, False)):
                name = f"tile {tile} {criterion} {channels} {'last' if last else 'first'}"
                notes.attempt(name, lambda x=(criterion, tile, channels, last): tile_row(s, *x))


def mask_row(s: Setup, z: Tensor, config: MaskConfig) -> dict[str, Any]:
    fast = s.time(lambda: keep_mask(z, config), queued=True)
    moved = tensor_bytes(z) + z[:, 0].numel() + tensor_bytes(z[:, :, 0])
    copy = copy_row(s, moved)
    few = z[:64]
    equal = bool(torch.equal(keep_mask(few, config), plain_scan(few, config)[0]))
    return {**fast, "gbs": moved / fast["ms"] / 1e6, "copy_gbs": moved / copy["ms"] / 1e6,
            "share_of_copy": copy["ms"] / fast["ms"], "equal": equal}  # fmt: skip


def copy_row(s: Setup, moved: int) -> dict[str, float]:
    """A copy that reads half of these bytes and writes the other half."""
    source = torch.zeros(moved // 2, dtype=torch.uint8, device=s.device)
    target = torch.empty_like(source)
    return s.time(lambda: target.copy_(source), queued=True)


def tile_row(s: Setup, criterion: str, tile: int, channels: int, last: bool) -> dict[str, float]:
    from inlay.kernels.scan_triton import launch

    z = latents(s, 2 if s.small else 4096 if channels < 48 else 2048, channels, last=last)
    call = functools.partial(launch, z, None, criterion=criterion, previous=False, tau=TAUS[criterion], tile=tile)
    return s.time(call, queued=True)


def one_mask(s: Setup) -> dict[str, Callable[[], Any]]:
    """One clip: plain, fused, and fused from a graph."""
    z, config = latents(s, 1, 16, last=True), MaskConfig(tau=0.8)
    replay = Replay(lambda z: keep_mask(z, config))
    return {
        "one clip, plain": lambda: plain_scan(z, config),
        "one clip, fused": lambda: keep_mask(z, config),
        "one clip, fused from a graph": lambda: replay(z),
    }


def latents(s: Setup, clips: int, channels: int, *, last: bool) -> Tensor:
    side = 8 if s.small else 32
    z = torch.randn(clips, 9, side, side, channels, device=s.device).cumsum_(1).to(s.dtype)
    return z.permute(0, 4, 1, 2, 3) if last else z.permute(0, 4, 1, 2, 3).contiguous()


# --- LIT -----------------------------------------------------------------------------------------------------------


def run_lit(s: Setup, notes: Notes) -> None:
    """Both shapes in every form at batch 1 and 8, their distance from float32, and the kernels of `plus` one by one."""
    batches = (1, 2) if s.small else (1, 8)
    for kind in ("plus", "paper"):
        for batch in batches:
            lit_forms(s, notes, kind, batch)
    if s.device.type == "cuda":
        for batch in batches:
            lit_kernels(s, notes, batch)


def lit_forms(s: Setup, notes: Notes, kind: str, batch: int) -> None:
    lit, z, keep, tau = lit_case(s, kind, batch)
    work = flops(lit, lambda net: net(z.to("meta"), keep.to("meta"), tau.to("meta")))
    peaks = sheet(device_name(s), s.dtype) or measured(s.device, s.dtype)
    floor = peaks.floor_ms(work, 2 * tensor_bytes(z) + tensor_bytes(keep) + weight_bytes(lit))
    with torch.inference_mode(), at_level("0"):
        want = made_lit(s, kind).to(s.device)(z.float(), keep, tau)
        change = (want - hold(z.float(), keep)).norm()

    def form(run: Callable[..., Tensor]) -> dict[str, Any]:
        row = s.time(lambda: run(z, keep, tau))
        with torch.inference_mode():
            off = float((run(z, keep, tau).float() - want).norm() / change)
        return {**row, "clip_ms": row["ms"] / batch, "floor_ms": floor, "gflop": work / 1e9, "off_float32": off,
                "refused": getattr(run, "refused", "")}  # fmt: skip

    fast = "fast" if kind == "paper" else "kernels"
    forms: dict[str, tuple[str, Callable[..., Tensor]]] = {
        f"{fast}, from a graph": ("1", Replay(lit)), fast: ("1", lit), "eager": ("0", lit)
    }  # fmt: skip
    for name, (level, run) in forms.items():
        with at_level(level):
            notes.attempt(f"{kind} batch {batch} {name}", lambda run=run: form(run))


def lit_case(s: Setup, kind: str, batch: int) -> tuple[Lit, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    z = latents(s, batch, 16, last=True)
    keep = torch.rand(z[:, 0].shape, device=s.device) < 0.32
    keep[:, 0] = True
    return made_lit(s, kind).to(s.device, s.dtype), z, keep, torch.full((batch,), 1.0, device=s.device)


def made_lit(s: Setup, kind: str = "plus", channels: int = 16) -> Lit:
    torch.manual_seed(0)
    small = LitConfig(kind=kind, width=64, heads=2, blocks=1)
    config = small if s.small else {"plus": plus, "paper": paper}[kind]()
    lit = Lit.build(replace(config, channels=channels)).eval().requires_grad_(False)
    torch.nn.init.normal_(lit.out_proj.weight, std=0.02)
    return lit


def lit_kernels(s: Setup, notes: Notes, batch: int) -> None:
    """Each launch of a block, and the attention in several sizes; from graphs, so that launching does not count."""
    from inlay.fill.lit import rope_tables
    from inlay.kernels.lit import activated, features, finish
    from inlay.kernels.lit_triton import attention, layer_norm, near_norm

    lit, z, keep, tau = lit_case(s, "plus", batch)
    block: Any = lit.blocks[1]
    h = torch.randn(batch, 9, 32, 32, 256, device=s.device, dtype=s.dtype)
    rows = h.view(-1, 256)
    with torch.inference_mode():
        qkv, wide = block.qkv(h), activated(rows, block.up)
        told, change = features(z, keep, tau, lit.latent_mean, lit.latent_std), h[..., :16].contiguous()
    rope = rope_tables((9, 8, 8), (16, 24, 24), h.float())
    q, k, v = torch.randn(3, batch * 16, 4, 576, 64, device=s.device, dtype=s.dtype)
    calls: dict[str, Callable[[], Any]] = {
        "near_norm": lambda: near_norm(h, [block.proj.bias, block.down.bias], block.near, block.norm1),
        "norm": lambda: layer_norm(h, [block.proj.bias], block.norm2),
        "qkv": lambda: block.qkv(h),
        "proj": lambda: torch.addmm(rows, rows, block.proj.weight.t()),
        "up": lambda: activated(rows, block.up),
        "down": lambda: torch.addmm(rows, wide, block.down.weight.t()),
        "features": lambda: features(z, keep, tau, lit.latent_mean, lit.latent_std),
        "plain features": lambda: lit.features(z, hold(z, keep), keep, tau),  # type: ignore[operator]
        "finish": lambda: finish(z, keep, change, lit.latent_std),
        "in_proj": lambda: lit.in_proj(told),  # type: ignore[operator]
        "attention of the library, 16 whole windows": lambda: F.scaled_dot_product_attention(q, k, v),
    }
    for blocks in ((64, 64, 4, 2), (64, 64, 4, 1), (128, 64, 4, 2), (64, 128, 4, 2)):
        calls[f"attention {blocks}"] = lambda b=blocks: attention(qkv, rope, heads=4, window=8, offset=4, blocks=b)
    half = tuple(table.to(s.dtype) for table in rope)
    calls["attention, tables in half"] = lambda: attention(qkv, half, heads=4, window=8, offset=4)
    calls["attention whole windows"] = lambda: attention(qkv, rope, heads=4, window=8, offset=0)
    for name, call in calls.items():
        notes.attempt(f"batch {batch} {name}", lambda call=call: from_graph(s, call, h))


def from_graph(s: Setup, call: Callable[[], Any], anything: Tensor) -> dict[str, Any]:
    replay = Replay(lambda _: one_number(call()))
    row = s.time(lambda: replay(anything[:1, :1, :1, :1, :1]))
    return {**row, "refused": replay.refused}


def one_number(answer: Tensor | tuple[Tensor, ...]) -> Tensor:
    """A view of it, so that nothing worth counting is copied out of a graph."""
    return (answer if isinstance(answer, Tensor) else answer[-1]).as_strided((1,), (1,))


# --- tests ---------------------------------------------------------------------------------------------------------


def run_tests(s: Setup, notes: Notes) -> None:
    """All tests marked `gpu`, a process a file, where a skip is a failure; elsewhere the kernels' tests."""
    on_gpu = s.device.type == "cuda"
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [f for f in every if ("mark.gpu" in f.read_text() if on_gpu else f.name.startswith("test_kernels"))]
    env = {**os.environ} | ({"INLAY_REQUIRE_GPU": "1"} if on_gpu else {})
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["-W", "ignore::pytest.PytestConfigWarning", "--durations=5", "-rfEs"]
    command += ["-m", "gpu"] if on_gpu else []
    logs = {file: notes.file.with_name(f"{notes.file.name}.{file.stem}.log") for file in files}
    running = {}
    for file, log in logs.items():
        with log.open("wb") as out:
            place = str(file.relative_to(ROOT))
            running[file] = subprocess.Popen([*command, place], cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)
    for file, child in running.items():
        try:
            child.wait(timeout=max(1.0, s.left - 2))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        notes[file.stem] = judged(logs[file].read_text(errors="replace"), child.returncode)


def judged(log: str, code: int) -> dict[str, Any]:
    """How a test file ended; of a killed one, how far it came."""
    lines = log.splitlines()
    counts = {word: len(re.findall(rf" {word}\b", log)) for word in ("PASSED", "FAILED", "SKIPPED", "ERROR")}
    failed = [line for line in lines if re.match(r"(FAILED|ERROR|E  )", line)]
    return {"code": code, "summary": [f"{counts} {lines[-1:] if code >= 0 else 'killed'}"], "failed": failed[:60],
            "tail": lines[-120:] if code else []}  # fmt: skip


# --- the whole pipeline --------------------------------------------------------------------------------------------


def run_pipeline(s: Setup, notes: Notes) -> None:
    """Native Cosmos-360p and `mini` with random weights, plain and fast: stages, and all of it in one go."""
    both = [("cosmos", 1, "1"), ("cosmos", 8, "1"), ("mini", 1, "1"), ("mini", 8, "1"), ("mini", 1, "0"),
            ("cosmos", 1, "0"), ("cosmos", 1, "compile"), ("cosmos", 8, "compile")]  # fmt: skip
    for name, batch, level in [("mini", 1, "0"), ("mini", 1, "1"), ("cosmos", 1, "1")] if s.small else both:
        form = {"0": "eager", "1": "fast", "compile": "compiled"}[level]
        if form not in s.forms:
            continue
        with at_level(level):
            notes.attempt(f"{name} batch {batch} {form}", lambda n=name, b=batch: pipeline(s, n, b))
        if s.device.type == "cuda":
            torch.cuda.empty_cache()


def pipeline(s: Setup, name: str, batch: int) -> dict[str, Any]:
    tokenizer = made_tokenizer(s, name)
    side, frames = (32, 9) if s.small else (256, 33)
    x = torch.rand(batch, 3, frames, side, side, device=s.device).mul_(2).sub_(1).to(s.dtype)
    z = tokenizer.encode_pixels(x)
    config = MaskConfig(tau=0.5 * float(z.float().std()))
    keep = keep_mask(z, config)

    @torch.inference_mode()
    def whole(x: Tensor) -> Tensor:
        z = tokenizer.encode_pixels(x)
        keep = keep_mask(z, config)
        return tokenizer.decode_latents(tokenizer.fill_cells(z, keep, config.tau, "lit"))

    @torch.inference_mode()
    def bare(x: Tensor) -> Tensor:
        return tokenizer.decode_latents(tokenizer.encode_pixels(x))

    replay = Replay(whole)
    calls: dict[str, Callable[[], Any]] = {
        "whole": lambda: whole(x),
        "encode": lambda: tokenizer.encode_pixels(x),
        "mask": lambda: keep_mask(z, config),
        "lit": lambda: tokenizer.fill_cells(z, keep, config.tau, "lit"),
        "decode": lambda: tokenizer.decode_latents(z),
        "whole in one graph": lambda: replay(x),
        "encode and decode alone": lambda: bare(x),
    }
    times = {stage: s.time(call) for stage, call in calls.items()}
    clip_ms = {stage: row["ms"] / batch for stage, row in times.items()}
    share = (clip_ms["mask"] + clip_ms["lit"]) / (clip_ms["encode"] + clip_ms["decode"])
    added = clip_ms["whole"] / clip_ms["encode and decode alone"] - 1
    return {"times": times, "clip_ms": clip_ms, "adaptivity_share": share, "adaptivity_added": added,
            "refused": replay.refused, "keep_rate": float(keep.float().mean())}  # fmt: skip


def made_tokenizer(s: Setup, name: str) -> Tokenizer:
    from inlay.backbones.cosmos import Cosmos, cosmos_360p, tiny_cosmos
    from inlay.backbones.mini import Mini, tiny

    torch.manual_seed(0)
    network: Any
    with s.device:  # random numbers are quickest made where they are needed
        if name == "mini":
            network = Mini(tiny() if s.small else None)
        else:
            network = Cosmos(tiny_cosmos() if s.small else cosmos_360p())
    network = network.eval().requires_grad_(False).to(device=s.device, dtype=s.dtype)
    lit = made_lit(s, channels=network.spec.channels).to(s.device, s.dtype)
    return Tokenizer(
        network, filler=Filler({"lit": lit}, device=s.device, dtype=s.dtype), device=s.device, dtype=s.dtype
    )


# --- growth --------------------------------------------------------------------------------------------------------


def run_growth(s: Setup, notes: Notes) -> None:
    """Time and memory of `mini` and `plus` against frames, pixels and batch, one of them at a time."""
    base, frames = ((16, 16), 5) if s.small else ((256, 256), 33)
    sizes = [(24, 24)] if s.small else [(720, 1280), (128, 128), (480, 848), (192, 192), (384, 384)]
    lengths, batches = ((9,), (2,)) if s.small else ((129, 9, 65, 17), (16, 8, 4, 2))
    points = [(1, frames, base), *((1, frames, size) for size in sizes)]
    points += [(b, frames, base) for b in batches] + [(1, t, base) for t in lengths]
    for batch, length, size in points:
        name = f"{batch}x{length}x{size[0]}x{size[1]}"
        notes.attempt(name, lambda b=batch, t=length, wh=size: grown(s, b, t, wh))


def grown(s: Setup, batch: int, frames: int, size: tuple[int, int]) -> dict[str, Any]:
    """One point, with a tokenizer of its own: time of a call, and the memory that the first one takes beside its input.

    First calls run without a graph, whose memory is taken once and then held.
    """
    if s.device.type == "cuda":
        torch.cuda.empty_cache()
    tokenizer = made_tokenizer(s, "mini")
    x = torch.rand(batch, 3, frames, *size, device=s.device).mul_(2).sub_(1).to(s.dtype)
    made: dict[str, Any] = {"batch": batch, "frames": frames, "height": size[0], "width": size[1]}

    def run(step: str, call: Callable[[], Any]) -> Any:
        found, taken = first(s, call)
        made[step] = s.time(call, repeats=5) | taken
        return found

    with at_level("1"):
        z = run("encode", lambda: tokenizer.encode_pixels(x))
        config = MaskConfig(tau=0.5 * float(z.float().std()))
        run("mask", lambda: keep_mask(z, config))
        keep = torch.rand(z[:, 0].shape, device=s.device) < 0.32  # noise changes everywhere: nothing would be filled
        keep[:, 0] = True
        run("lit", lambda: tokenizer.fill_cells(z, keep, config.tau, "lit"))
        run("decode", lambda: tokenizer.decode_latents(z))
    return made


def first(s: Setup, call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What a call gives, and the most memory it takes beyond what is held before it."""
    if s.device.type != "cuda":
        return call(), {}
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode():
        found = call()
    return found, {"call_gb": (torch.cuda.max_memory_allocated() - held) / 1e9}


def device_name(s: Setup) -> str:
    return torch.cuda.get_device_name() if s.device.type == "cuda" else "CPU"


STAGES: dict[str, Callable[[Setup, Notes], None]] = {
    "mask": run_mask,
    "lit": run_lit,
    "tests": run_tests,
    "pipeline": run_pipeline,
    "growth": run_growth,
}
