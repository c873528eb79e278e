# SPDX-License-Identifier: Apache-2.0
"""Where native Cosmos spends its time on a GPU: a table of kernels, and what other choices would take.

    python benchmarks/cosmos_profile.py --out cosmos_profile.json --seconds 95

    eager      both halves from a graph, as the library runs them, and how far they are from plain layers
    tiles      the same, one clip, with tiles of other sizes, and with blocks fetched by descriptors
    shapes     the heaviest convolutions alone: cuDNN as torch picks it, the best of all that cuDNN has, and, of those
               over time, the kernel with every tile, two frames a program (taps_pairs_triton.py) and blocks fetched
               by descriptors (taps_tma_triton.py); TFLOP/s of each. The norm of a frame beside a copy of it.
    compiled   both halves, each in a process of its own that compiles while the others do; timed one after the other

`--ahead N` compiles the kernels of these parts in N processes first, each its share of them. Random weights, bfloat16,
clips of 33x256x256. Times are the best of several: other processes compile meanwhile, and
can only delay. Whatever is measured is on disk at once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.backbones.cosmos import Cosmos, cosmos_360p, tiny_cosmos
from inlay.kernels.replay import Replay
from inlay.kernels.rule import why_not
from inlay.kernels.switch import at_level
from inlay.origin import commit

COMPILED = ("decode:1", "encode:1", "decode:8", "encode:8")
TILES = (  # cells, channels out, channels in of a step, warps, stages
    (128, 256, 64, 8, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (64, 256, 64, 4, 3), (256, 128, 64, 8, 3),
    (128, 256, 64, 8, 4), (64, 128, 64, 4, 4),
)  # fmt: skip
SHAPES = {  # frames, side, channels in and out, taps over time, height, width
    "3x3, 256 of 128x128": (17, 128, 256, 256, (1, 3, 3)),
    "3x3, 512 of 64x64": (9, 64, 512, 512, (1, 3, 3)),
    "3x3, 512 of 32x32": (9, 32, 512, 512, (1, 3, 3)),
    "3x3, 512 to 256 of 128x128": (17, 128, 512, 256, (1, 3, 3)),
    "over time, 256 of 128x128": (17, 128, 256, 256, (3, 1, 1)),
    "over time, 512 of 64x64": (9, 64, 512, 512, (3, 1, 1)),
    "over time, 512 of 32x32": (9, 32, 512, 512, (3, 1, 1)),
}
ROWS = 40  # of a table of kernels
Ways = dict[str, Callable[..., Tensor]]


def main() -> None:
    a = parse()
    if a.one:
        compiled_half(a)
        return
    began = time.monotonic()
    record: dict[str, Any] = {
        "what": "kernels of native Cosmos, and what other choices would take",
        "command": f"python benchmarks/cosmos_profile.py {' '.join(sys.argv[1:])}",
        "commit": commit(),
        "machine": f"{torch.cuda.get_device_name() if a.device == 'cuda' else 'cpu'}, torch {torch.__version__}",
        "cudnn": torch.backends.cudnn.version(),
    }

    def keep(name: str, found: Any) -> None:
        record[name] = found
        a.out.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{time.monotonic() - began:6.1f} s {name}", flush=True)

    if a.ahead:
        compile_ahead(a)
        print(f"{time.monotonic() - began:6.1f} s kernels compiled", flush=True)
    children = {job: start(a, job) for job in a.jobs}
    try:
        for name, measure in MEASURES.items():
            if name in a.parts:
                for key, found in measure(a):
                    keep(f"{name}: {key}", found)
        for job, child in children.items():
            keep(f"compiled: {job}", finished(child, part_of(a, job), began + a.seconds - time.monotonic()))
    finally:
        for child in children.values():
            child.kill()


def compile_ahead(a: argparse.Namespace) -> None:
    """Triton keeps what it has compiled on disk: processes side by side fill that, each with its share."""
    parts = [part for part in a.parts if part != "eager"]  # with the usual tile, which is among the tiles
    command = [sys.executable, __file__, "--device", a.device, "--repeats", "1", "--jobs", "--parts", *parts]
    command += ["--small"] if a.small else []
    shares = (["--share", str(i), str(a.ahead), "--out", f"{a.out}.share-{i}"] for i in range(a.ahead))
    children = [subprocess.Popen([*command, *share], stdout=subprocess.DEVNULL) for share in shares]
    for i, child in enumerate(children):
        child.wait()
        Path(f"{a.out}.share-{i}").unlink(missing_ok=True)


def share_of(a: argparse.Namespace, ways: Ways) -> Ways:
    """All of them, or those that this process is to compile."""
    mine, all_of_us = a.share
    return {name: way for i, (name, way) in enumerate(ways.items()) if i % all_of_us == mine}


# --- networks ---------------------------------------------------------------------------------------------------------


def made(a: argparse.Namespace) -> Cosmos:
    torch.manual_seed(0)
    network = Cosmos(tiny_cosmos() if a.small else cosmos_360p())
    return network.eval().requires_grad_(False).to(device=a.device, dtype=a.dtype)


def half_of(network: Cosmos, job: str, a: argparse.Namespace) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """encode or decode, and what it is given; `encode:8` is of a batch of 8."""
    name, _, batch = job.partition(":")
    side, slots = (32, 3) if a.small else (256, 9)
    torch.manual_seed(1)
    if name == "encode":
        x = torch.rand(int(batch), 3, 4 * slots - 3, side, side).mul_(2).sub_(1)
    else:
        x = torch.randn(int(batch), 16, slots, side // 8, side // 8)
    return getattr(network, name), x.to(a.device, a.dtype)


def from_graph(call: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    replay = Replay(call)
    for _ in range(2):  # recorded the second time
        replay(x)
    return lambda: replay(x)


def best_ms(call: Callable[[], object], a: argparse.Namespace) -> float:
    """The best of several, each waited for."""
    best = float("inf")
    for _ in range(a.repeats):
        start = time.perf_counter()
        call()
        if a.device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return round(1000 * best, 4)


def kernels(call: Callable[[], object], a: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a call by kernel, longest first, and how often each runs."""
    cuda = a.device == "cuda"
    activity = torch.profiler.ProfilerActivity
    calls = 3
    with torch.profiler.profile(activities=[activity.CUDA if cuda else activity.CPU]) as profile:
        for _ in range(calls):
            call()
        if cuda:
            torch.cuda.synchronize()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in profile.events():
        spent = event.device_time_total if cuda else event.self_cpu_time_total
        if spent and (not cuda or event.device_type == torch.autograd.DeviceType.CUDA):
            times[event.name[:120]] += spent
            counts[event.name[:120]] += 1
    rows = [[name, round(us / 1000 / calls, 4), counts[name] / calls] for name, us in times.most_common(ROWS)]
    return {"all_ms": round(sum(times.values()) / 1000 / calls, 4), "kernels": rows}


class BestAlgorithms:
    """cuDNN tries the first of what it has, or all, and keeps the quickest."""

    def __init__(self, limit: int = 10) -> None:
        self.limit = limit

    def __enter__(self) -> None:
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.benchmark_limit = self.limit

    def __exit__(self, *error: object) -> None:
        torch.backends.cudnn.benchmark = False


@torch.inference_mode()
def eager(a: argparse.Namespace) -> Any:
    """Both halves from a graph."""
    network = made(a)
    for job in ("encode:1", "decode:1", "encode:8", "decode:8"):
        call, x = half_of(network, job, a)
        with at_level("0"):
            plain = call(x)
        way = from_graph(call, x)
        found: dict[str, Any] = {"ms": best_ms(way, a), "difference": off(way(), plain), **kernels(way, a)}
        yield job, found


@torch.inference_mode()
def tiles(a: argparse.Namespace) -> Any:
    """Both halves from a graph, one clip, with tiles of other sizes and with blocks."""
    if why_not("taps"):
        return
    from inlay.kernels import taps_triton

    network, before = made(a), taps_triton.convolve
    for job in ("encode:1", "decode:1"):
        call, x = half_of(network, job, a)
        found = {}
        for name, way in share_of(a, ways_over_time()).items():
            taps_triton.convolve = way
            try:
                found[f"ms, {name}"] = best_ms(from_graph(call, x), a)
            finally:
                taps_triton.convolve = before
        yield job, found


def off(got: Tensor, wanted: Tensor) -> float:
    """How far apart, as a share of what is wanted."""
    return float((got - wanted).float().norm() / wanted.float().norm())


def ways_over_time() -> Ways:
    """Names of what can stand where the library's `convolve` stands; convolutions over space stay its own."""
    if why_not("taps"):
        return {}
    from taps_tma_triton import WAYS, convolve_blocks

    from inlay.kernels import taps_triton

    plain = taps_triton.convolve

    def tiled(y: Tensor, taps: Any, T: int, *, tile: tuple[int, ...], **more: Any) -> Tensor:
        with tiled_by(tile):
            return plain(y, taps, T, **more)

    def by_blocks(y: Tensor, taps: Any, T: int, *, way: Any, **more: Any) -> Tensor:
        over_time = (taps.kernel[1], taps.stride[1], taps.up[1]) == (1, 1, 1)
        return convolve_blocks(y, taps, T, way, **more) if over_time else plain(y, taps, T, **more)

    ways: Ways = {f"tile {tile}": partial(tiled, tile=tile) for tile in TILES}
    blocks = {f"blocks {tuple(w.tile)}{', lasting' if w.lasting else ''}": partial(by_blocks, way=w) for w in WAYS}
    return ways | blocks


@contextmanager
def tiled_by(tile: tuple[int, ...]) -> Iterator[None]:
    """The kernel with another tile."""
    from inlay.kernels import taps_triton

    before, taps_triton.TILE = taps_triton.TILE, taps_triton.Tile(*tile)
    try:
        yield
    finally:
        taps_triton.TILE = before


@torch.inference_mode()
def compiled_half(a: argparse.Namespace) -> None:
    """A child: compile, say so, wait to be told to go on, measure."""
    network = made(a)
    if a.device == "cuda":
        network.compiled()
    call, x = half_of(network, a.one, a)
    start = time.monotonic()
    before = call(x)
    found: dict[str, Any] = {"compile_s": round(time.monotonic() - start, 1)}
    print("compiled", flush=True)
    sys.stdin.readline()
    part = part_of(a, a.one)
    clips = x.shape[0]
    way = from_graph(call, x)
    found["ms a clip"] = best_ms(way, a) / clips
    part.write_text(json.dumps(found))
    found["as it is"] = kernels(way, a)
    part.write_text(json.dumps(found))
    with BestAlgorithms():
        call(x)
        best = from_graph(call, x)
    found["best algorithms, ms a clip"] = best_ms(best, a) / clips
    found["difference"] = off(best(), before)
    part.write_text(json.dumps(found))
    found["best algorithms"] = kernels(best, a)
    part.write_text(json.dumps(found))
    print("done", flush=True)


def start(a: argparse.Namespace, job: str) -> subprocess.Popen[str]:
    part_of(a, job).unlink(missing_ok=True)
    command = [sys.executable, __file__, "--one", job, "--out", str(a.out), "--device", a.device]
    command += ["--repeats", str(a.repeats), *(["--small"] if a.small else [])]
    env = {"TORCHINDUCTOR_COMPILE_THREADS": "4", **os.environ}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def finished(child: subprocess.Popen[str], part: Path, seconds: float) -> Any:
    """What a child finds once it is told to go on; what it has left on disk where time is up."""
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write("go\n")  # it reads this when it is compiled
        child.stdin.flush()
        child.communicate(timeout=max(seconds, 0.1))
    except (subprocess.TimeoutExpired, BrokenPipeError):
        child.kill()
    return json.loads(part.read_text()) if part.is_file() else {"error": "no time was left"}


def part_of(a: argparse.Namespace, job: str) -> Path:
    return a.out.with_name(f"{a.out.name}.{job.replace(':', '-')}.part")


# --- convolutions alone -----------------------------------------------------------------------------------------------


@torch.inference_mode()
def shapes(a: argparse.Namespace) -> Any:
    """TFLOP/s of the heaviest convolutions, and the norm of a frame."""
    for name, (frames, side, channels, out, size) in SHAPES.items():
        if a.share[1] > 1 and size[0] == 1:
            continue  # nothing to compile
        if a.small:
            frames, side, channels, out = 3, 8, 32, 32
        yield name, convolutions(frames, side, channels, out, size, a)
    if a.device == "cuda":
        from inlay.kernels.norm_triton import frame_norm

        y = torch.randn(17, 256, 128, 128, device=a.device, dtype=a.dtype).contiguous(memory_format=torch.channels_last)
        weight, target = torch.ones(256, device=a.device, dtype=a.dtype), torch.empty_like(y)
        yield (
            "norm of 17 x 256 x 128 x 128",
            {
                "kernels_ms": queued_ms(lambda: frame_norm(y, weight, weight, 1e-6, silu=True), a),
                "copy_ms": queued_ms(lambda: target.copy_(y), a),
            },
        )


def convolutions(
    frames: int, side: int, channels: int, out: int, size: tuple[int, int, int], a: argparse.Namespace
) -> dict[str, Any]:
    torch.manual_seed(0)
    weight = (torch.randn(out, channels, *size) / (channels * size[0] * size[1] * size[2]) ** 0.5).to(a.device, a.dtype)
    bias = torch.zeros(out, device=a.device, dtype=a.dtype)
    x_FHWC = torch.randn(frames, side, side, channels).to(a.device, a.dtype)
    tflop = 2e-12 * x_FHWC[..., 0].numel() * weight.numel()
    calls: dict[str, Callable[[], Tensor]] = {"cuDNN": lambda: by_cudnn(x_FHWC, weight, size)}
    wanted = calls["cuDNN"]()
    found = {"cuDNN": round(1000 * tflop / queued_ms(calls["cuDNN"], a), 1)}
    with BestAlgorithms(limit=0):
        calls["cuDNN"]()
        found["cuDNN, best"] = round(1000 * tflop / queued_ms(calls["cuDNN"], a), 1)
    if size[0] == 1 or why_not("taps"):
        return found
    from taps_pairs_triton import PAIRS, convolve_pairs

    from inlay.kernels.taps_triton import Taps

    taps, y = Taps.of(weight, bias), x_FHWC.permute(0, 3, 1, 2)
    add = torch.zeros_like(y)
    ways = ways_over_time()
    for pair in PAIRS:
        ways[f"pairs {tuple(pair)}"] = partial(convolve_pairs, tile=pair)
    for name, way in share_of(a, ways).items():
        call = partial(way, y, taps, frames, add=add, norm=True)
        apart = off(call().permute(0, 2, 3, 1), wanted)
        found[name] = round(1000 * tflop / queued_ms(call, a), 1)
        found[f"{name}, difference"] = round(apart, 6)
    return found


def by_cudnn(x_FHWC: Tensor, weight: Tensor, size: tuple[int, int, int]) -> Tensor:
    """As the layers of Cosmos call it; over time with the copy that puts the first frame before itself."""
    if size[0] == 1:
        return F.conv2d(x_FHWC.permute(0, 3, 1, 2), weight[:, :, 0], padding=1).permute(0, 2, 3, 1)
    frames, height, width, channels = x_FHWC.shape
    x = torch.cat([x_FHWC[:1], x_FHWC[:1], x_FHWC]).view(1, frames + 2, height * width, channels)
    z = F.conv2d(x.permute(0, 3, 1, 2), weight[..., 0])
    return z.permute(0, 2, 3, 1).reshape(frames, height, width, -1)


def queued_ms(call: Callable[[], object], a: argparse.Namespace) -> float:
    """The best of a few rows of calls that are queued together: launches do not count."""
    calls, best = (10, float("inf")) if a.device == "cuda" else (1, float("inf"))
    call()
    for _ in range(4):
        if a.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if a.device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return 1000 * best


MEASURES = {"eager": eager, "tiles": tiles, "shapes": shapes}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=95)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--parts", nargs="*", choices=list(MEASURES), default=list(MEASURES))
    parser.add_argument("--jobs", nargs="*", default=list(COMPILED))
    parser.add_argument("--ahead", type=int, default=0, metavar="N", help="processes that compile before all else")
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="a rehearsal")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.dtype = torch.bfloat16 if a.device == "cuda" else torch.float32
    return a


if __name__ == "__main__":
    main()
