# SPDX-License-Identifier: Apache-2.0
"""One GPU in, everything that docs/speed.md says about it out: tests, mask kernel, LIT, whole pipeline, growth.

    PYTHONPATH=src python benchmarks/speed_gpu.py --out speed_gpu.json            # all stages
    PYTHONPATH=src python benchmarks/speed_gpu.py --stages lit --out speed_gpu.json
    PYTHONPATH=src python benchmarks/speed_gpu.py --device cpu --small            # the same code on tiny sizes

Each stage stands alone: one that fails leaves its error in the record and the next one runs. The file is written after
every stage. Times are medians between CUDA events after a warm-up. Weights are random where no trained ones exist for a
size: time does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.bench.peaks import measured, sheet
from inlay.bench.timing import timed
from inlay.bench.work import flops, path, tensor_bytes, weight_bytes
from inlay.fill import Lit, LitConfig, hold, plus
from inlay.kernels import Replay
from inlay.masking import MaskConfig, keep_mask
from inlay.masking.reference import plain_scan
from inlay.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where, how large, how often."""

    device: torch.device
    small: bool
    repeats: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16

    def time(self, call: Callable[[], Any], *, repeats: int | None = None) -> dict[str, float]:
        with torch.inference_mode():
            return timed(call, self.device, repeats=repeats or self.repeats, warmup=3)


# --- tests ---------------------------------------------------------------------------------------------------------


def run_tests(s: Setup) -> dict[str, Any]:
    """The kernels' tests; on a machine that must have a GPU a skip is a failure."""
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests" / "rooms").glob("test_kernels*.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *files]
    command += ["-W", "ignore::pytest.PytestConfigWarning", "--durations=5"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    env |= {"INLAY_REQUIRE_GPU": "1"} if s.device.type == "cuda" else {}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
    tail = (done.stdout + done.stderr).splitlines()[-40:]
    return {"passed": done.returncode == 0, "summary": tail[-1:], "tail": tail if done.returncode else []}


# --- mask ----------------------------------------------------------------------------------------------------------


def run_mask(s: Setup) -> dict[str, Any]:
    """The fused scan against a copy of the same memory, and against the plain scan."""
    ceiling = measured(s.device, s.dtype)
    rows = []
    for clips, channels, last, dtype in mask_cases(s):
        z = latents(s, clips, channels, 9, 32, last=last).to(dtype)
        for criterion, tau in (("latent-l1", 0.8), ("latent-l2", 1.0), ("latent-cosine", 0.1)):
            config = MaskConfig(tau=tau, criterion=criterion)
            fast = s.time(lambda z=z, c=config: keep_mask(z, c))
            moved = tensor_bytes(z) + z[:, 0].numel() + tensor_bytes(z[:, :, 0])
            rows.append({
                "clips": clips, "channels": channels, "channels_last": last, "dtype": str(dtype),
                "criterion": criterion, **fast, "gbs": moved / fast["ms"] / 1e6,
                "share_of_copy": moved / fast["ms"] * 1e3 / ceiling.bytes,
                "equal": bool(torch.equal(keep_mask(z[:64], config).keep, plain_scan(z[:64], config)[0])),
            })  # fmt: skip
    return {"copy_gbs": ceiling.bytes / 1e9, "rows": rows, "one_clip": one_mask(s)}


def mask_cases(s: Setup) -> list[tuple[int, int, bool, torch.dtype]]:
    large = 2 if s.small else 4096
    half = s.dtype
    return [(large, 16, True, half), (large, 16, False, half), (large // 2, 16, True, torch.float32),
            (large, 4, True, half), (large // 2, 48, True, half), (1, 16, True, half)]  # fmt: skip


def one_mask(s: Setup) -> dict[str, Any]:
    """One clip: plain, fused, and fused from a graph."""
    z, config = latents(s, 1, 16, 9, 32, last=True), MaskConfig(tau=0.8)
    replay = Replay(lambda z: keep_mask(z, config).keep)
    return {
        "plain": s.time(lambda: plain_scan(z, config)),
        "fused": s.time(lambda: keep_mask(z, config)),
        "fused_from_graph": s.time(lambda: replay(z)),
    }


def latents(s: Setup, clips: int, channels: int, slots: int, side: int, *, last: bool) -> Tensor:
    side = 8 if s.small else side
    z = torch.randn(clips, slots, side, side, channels, device=s.device).cumsum(1).to(s.dtype)
    return z.permute(0, 4, 1, 2, 3) if last else z.permute(0, 4, 1, 2, 3).contiguous()


# --- LIT -----------------------------------------------------------------------------------------------------------


def run_lit(s: Setup) -> dict[str, Any]:
    """`plus` in every form at batch 1 and 8, its distance from float32, and its kernels one by one."""
    record: dict[str, Any] = {"forms": [], "kernels": {}}
    for batch in (1, 2 if s.small else 8):
        record["forms"] += lit_forms(s, batch)
        if s.device.type == "cuda":
            record["kernels"][f"batch{batch}"] = attempt(lambda b=batch: lit_kernels(s, b))
    return record


def lit_forms(s: Setup, batch: int) -> list[dict[str, Any]]:
    lit, z, keep, tau = lit_case(s, batch)
    exact = made_lit(s).to(s.device)
    work = flops(lit, lambda net: net(z.to("meta"), keep.to("meta"), tau.to("meta")))
    peaks = sheet(device_name(s), s.dtype) or measured(s.device, s.dtype)
    floor = peaks.floor_ms(work, 2 * tensor_bytes(z) + tensor_bytes(keep) + weight_bytes(lit))
    compiled = torch.compile(lit_case(s, batch)[0], dynamic=False)
    forms: dict[str, tuple[str, Callable[..., Tensor]]] = {
        "eager": ("0", lit), "kernels": ("1", lit), "kernels from a graph": ("1", Replay(lit)),
    }  # fmt: skip
    if not s.small and batch == 1:  # compiling takes its time
        forms |= {"compiled": ("1", compiled), "compiled, from a graph": ("1", Replay(compiled))}
    with torch.inference_mode(), path("0"):
        want = exact(z.float(), keep, tau)
        change = (want - hold(z.float(), keep)).norm()
    rows = []
    for name, (level, run) in forms.items():
        with path(level):
            row = attempt(lambda run=run: s.time(lambda: run(z, keep, tau)))
            if "error" not in row:
                with torch.inference_mode():
                    off = float((run(z, keep, tau).float() - want).norm() / change)
                row |= {"clip_ms": row["ms"] / batch, "off_float32": off, "times_floor": row["ms"] / floor}
        rows.append({"form": name, "batch": batch, "gflop": work / 1e9, "floor_ms": floor, **row})
    return rows


def lit_case(s: Setup, batch: int) -> tuple[Lit, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    z = latents(s, batch, 16, 9, 32, last=True)
    keep = torch.rand(z[:, 0].shape, device=s.device) < 0.32
    keep[:, 0] = True
    return made_lit(s).to(s.device, s.dtype), z, keep, torch.full((batch,), 1.0, device=s.device)


def made_lit(s: Setup) -> Lit:
    torch.manual_seed(0)
    config = LitConfig(width=64, heads=2, blocks=1) if s.small else plus()
    lit = Lit.build(config).eval().requires_grad_(False)
    torch.nn.init.normal_(lit.out_proj.weight, std=0.02)
    return lit


def lit_kernels(s: Setup, batch: int) -> dict[str, Any]:
    """Each launch of a block, and the attention in several block sizes."""
    from inlay.fill.lit import rope_tables
    from inlay.kernels.lit import activated
    from inlay.kernels.lit_triton import attention, layer_norm, near_norm

    lit, z, *_ = lit_case(s, batch)
    block = lit.blocks[1]
    h = torch.randn(batch, 9, 32, 32, 256, device=s.device, dtype=s.dtype)
    rows = h.view(-1, 256)
    qkv, wide = block.qkv(h), activated(rows, block.up)
    rope = rope_tables((9, 8, 8), (16, 24, 24), h.float())
    calls: dict[str, Callable[[], Any]] = {
        "near_norm": lambda: near_norm(h, [block.proj.bias, block.down.bias], block.near, block.norm1),
        "norm": lambda: layer_norm(h, [block.proj.bias], block.norm2),
        "qkv": lambda: block.qkv(h),
        "proj": lambda: torch.addmm(rows, rows, block.proj.weight.t()),
        "up": lambda: activated(rows, block.up),
        "down": lambda: torch.addmm(rows, wide, block.down.weight.t()),
        "features": lambda: lit.features(z, hold(z, z[:, 0] > 0), z[:, 0] > 0, torch.ones(batch, device=s.device)),
    }
    for blocks in ((64, 64, 4, 2), (64, 64, 4, 1), (64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 2), (64, 32, 4, 2),
                   (128, 32, 4, 2), (64, 96 + 32, 4, 1)):  # fmt: skip
        calls[f"attention {blocks}"] = lambda b=blocks: attention(qkv, rope, heads=4, window=8, offset=4, blocks=b)
    found = {}
    for name, call in calls.items():
        replay = Replay(lambda x, call=call: last_of(call()))  # from a graph, so that launches do not count
        found[name] = attempt(lambda r=replay: s.time(lambda: r(h)))
        found[name]["refused"] = replay.refused
    return found


def last_of(answer: Tensor | tuple[Tensor, ...]) -> Tensor:
    return answer if isinstance(answer, Tensor) else answer[-1]


# --- the whole pipeline --------------------------------------------------------------------------------------------


def run_pipeline(s: Setup) -> dict[str, Any]:
    """Native Cosmos-360p and `mini` with random weights, plain and fast: stages, and all of it in one go."""
    record: dict[str, Any] = {}
    for name in ("mini", "cosmos"):
        for batch in (1,) if s.small else (1, 8):
            for form, level in (("eager", "0"), ("fast", "1"), ("compiled", "compile")):
                if form == "compiled" and (s.small or name == "mini"):
                    continue
                start = time.perf_counter()
                with path(level):
                    row = attempt(lambda n=name, b=batch: pipeline(s, n, b))
                record[f"{name}_batch{batch}_{form}"] = row | {"took_s": time.perf_counter() - start}
                if s.device.type == "cuda":
                    torch.cuda.empty_cache()
    return record


def pipeline(s: Setup, name: str, batch: int) -> dict[str, Any]:
    tokenizer = made_tokenizer(s, name)
    side, frames = (32, 9) if s.small else (256, 33)
    x = torch.rand(batch, 3, frames, side, side, device=s.device).mul_(2).sub_(1).to(s.dtype)
    config = MaskConfig(tau=0.5 * float(tokenizer.latents(x).float().std()))

    @torch.inference_mode()
    def whole(x: Tensor) -> Tensor:
        z = tokenizer.run_encode(x)
        keep = keep_mask(z, config).keep
        return tokenizer.run_decode(tokenizer.fill_cells(z, keep, config.tau, "lit"))

    z = tokenizer.latents(x)
    keep = keep_mask(z, config).keep
    times = {
        "encode": s.time(lambda: tokenizer.latents(x)),
        "mask": s.time(lambda: keep_mask(z, config)),
        "lit": s.time(lambda: tokenizer.fill_cells(z, keep, config.tau, "lit")),
        "decode": s.time(lambda: tokenizer.run_decode(z)),
        "whole": s.time(lambda: whole(x)),
    }
    clip_ms = {stage: row["ms"] / batch for stage, row in times.items()}
    share = (clip_ms["mask"] + clip_ms["lit"]) / (clip_ms["encode"] + clip_ms["decode"])
    return {"times": times, "clip_ms": clip_ms, "adaptivity_share": share, "keep_rate": float(keep.float().mean()),
            "files": attempt(lambda: through_nouns(s, tokenizer, frames, side)) if batch == 1 else {}}  # fmt: skip


def through_nouns(s: Setup, tokenizer: Tokenizer, frames: int, side: int) -> dict[str, float]:
    """Video to tokens to video: with uploads, downloads and everything between."""
    from inlay.video.synthetic import demo_clip

    clip = demo_clip(frames=frames, height=side, width=side)
    tau = 0.5 * float(tokenizer.latents(tokenizer.pixels([clip])).float().std())
    return s.time(lambda: tokenizer.decode(tokenizer.encode(clip, tau=tau)), repeats=5)


def made_tokenizer(s: Setup, name: str) -> Tokenizer:
    from inlay.backbones.cosmos import Cosmos, cosmos_360p, tiny_cosmos
    from inlay.backbones.mini import Mini, tiny

    torch.manual_seed(0)
    config: Any
    if name == "mini":
        network: Any = Mini(tiny() if s.small else None)
    else:
        config = tiny_cosmos() if s.small else cosmos_360p()
        network = Cosmos(config)
    network = network.eval().requires_grad_(False).to(device=s.device, dtype=s.dtype)
    lit = made_lit(s).to(s.device, s.dtype)
    return Tokenizer(network, lits={"lit": lit}, device=s.device, dtype=s.dtype)


# --- growth --------------------------------------------------------------------------------------------------------


def run_growth(s: Setup) -> dict[str, Any]:
    """Time and memory of `mini` and `plus` against frames, pixels and batch, one of them at a time."""
    sides = (
        [(16, 16), (24, 24)] if s.small else [(128, 128), (192, 192), (256, 256), (384, 384), (480, 848), (720, 1280)]
    )
    base = sides[0] if s.small else (256, 256)
    frames = (5, 9) if s.small else (9, 17, 33, 65, 129)
    batches = (1, 2) if s.small else (1, 2, 4, 8, 16)
    record: dict[str, Any] = {
        "frames": [attempt(lambda t=t: grown(s, 1, t, base)) for t in frames],
        "size": [attempt(lambda b=b: grown(s, 1, frames[0] if s.small else 33, b)) for b in sides],
        "batch": [attempt(lambda b=b: grown(s, b, frames[0] if s.small else 33, base)) for b in batches],
    }
    return record


def grown(s: Setup, batch: int, frames: int, size: tuple[int, int]) -> dict[str, Any]:
    """One point, with a tokenizer of its own: graphs of other shapes would count as memory."""
    if s.device.type == "cuda":
        torch.cuda.empty_cache()
    tokenizer = made_tokenizer(s, "mini")
    x = torch.rand(batch, 3, frames, *size, device=s.device).mul_(2).sub_(1).to(s.dtype)
    z = tokenizer.latents(x)
    config = MaskConfig(tau=0.5 * float(z.float().std()))
    keep = keep_mask(z, config).keep
    calls: dict[str, Callable[[], Any]] = {
        "encode": lambda: tokenizer.latents(x),
        "mask": lambda: keep_mask(z, config),
        "lit": lambda: tokenizer.fill_cells(z, keep, config.tau, "lit"),
        "decode": lambda: tokenizer.run_decode(z),
    }
    place = {"batch": batch, "frames": frames, "height": size[0], "width": size[1]}
    with path("1"):
        return place | {name: s.time(call, repeats=5) for name, call in calls.items()}


# --- all of it -----------------------------------------------------------------------------------------------------

STAGES: dict[str, Callable[[Setup], dict[str, Any]]] = {
    "tests": run_tests,
    "mask": run_mask,
    "lit": run_lit,
    "pipeline": run_pipeline,
    "growth": run_growth,
}


def attempt(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer, or the error as one: a failing measurement must not lose the others."""
    try:
        return call()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500], "where": traceback.format_exc().splitlines()[-6:]}


def device_name(s: Setup) -> str:
    return torch.cuda.get_device_name() if s.device.type == "cuda" else platform.processor() or platform.machine()


def brief(record: dict[str, Any]) -> str:
    """The numbers that matter, for a terminal."""
    lines = [f"{record['device']}, torch {record['torch']}"]
    for name, found in record["stages"].items():
        lines.append(f"[{name}] {found.get('took_s', 0):.0f} s {found.get('error', '')}")
        lines += [f"  {line}" for line in found.get("summary", []) + found.get("tail", [])]
        for row in [r for r in found.get("rows", []) if r["criterion"] == "latent-l1"]:
            lines.append(f"  {row['clips']}x{row['channels']} {row['dtype']} {'CL' if row['channels_last'] else 'CF'}: "
                         f"{row['ms']:.4f} ms, {row['share_of_copy']:.0%} of copy, equal {row['equal']}")  # fmt: skip
        lines += [f"  one clip {k}: {v['ms']:.4f} ms" for k, v in found.get("one_clip", {}).items()]
        for row in found.get("forms", []):
            said = row.get("error") or f"{row['clip_ms']:.3f} ms a clip, {row['off_float32']:.4f} off float32"
            lines.append(f"  batch {row['batch']} {row['form']}: {said}, floor {row['floor_ms']:.3f}")
        for batch, kernels in found.get("kernels", {}).items():
            lines += [
                f"  {batch} {k}: {v.get('ms', v.get('error'))} {v.get('refused', '')}" for k, v in kernels.items()
            ]
        if name == "pipeline":
            lines += [f"  {k}: {v.get('error') or {a: round(b, 3) for a, b in v['clip_ms'].items()}} "
                      f"{v.get('adaptivity_share', 0):.1%} {v.get('files', {}).get('ms', '')}"
                      for k, v in found.items() if isinstance(v, dict)]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to rehearse")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("speed_gpu.json"))
    a = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".cache" / "inductor"))
    if a.device == "cuda":
        torch.backends.cudnn.benchmark = True
    s = Setup(device=torch.device(a.device), small=a.small, repeats=a.repeats)
    record: dict[str, Any] = {
        "command": f"python benchmarks/speed_gpu.py --stages {' '.join(a.stages)}", "device": device_name(s),
        "torch": torch.__version__, "python": platform.python_version(), "dtype": str(s.dtype), "stages": {},
    }  # fmt: skip
    for name in a.stages:
        start = time.perf_counter()
        found = attempt(lambda n=name: STAGES[n](s))
        record["stages"][name] = found | {"took_s": time.perf_counter() - start}
        a.out.write_text(json.dumps(record, indent=2) + "\n")
        sys.stderr.write(f"{name}: {time.perf_counter() - start:.0f} s {found.get('error', '')}\n")
    print(brief(record))


if __name__ == "__main__":
    main()
