# SPDX-License-Identifier: Apache-2.0
"""Time Wan's autoencoders with random weights at their published sizes; writes one JSON object.

    python benchmarks/bench_wan.py --out benchmarks/wan_h200.json [--seconds 110]

Measured in one run, in bfloat16 on clips of 33x256x256, encode and decode apart: diffusers' own calls, eager (the form
that trainers run); ours, eager; ours compiled, block by block and in whole halves, and replayed from CUDA graphs as the
library does it; ours with weights channels-last; ours replayed alone. Block by block, what comes before caches are full
(two slots of a video) runs eagerly, so that a shape has one graph and not three. Times are medians of whole calls after
a warm-up, divided by the clips of a batch. Before it is timed each form is held against diffusers' numbers; one that
fails, or that compiles longer than `--compile-seconds`, is recorded with its error and what was found before it. Only
the first batch is compiled. After `--seconds` nothing more is begun. The file is written after each half of a form,
and names what has not been run. `--device cpu --tiny` only shows that it runs.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResidualBlock
from torch import Tensor

from inlay.backbones.diffusers import KINDS, Wan
from inlay.kernels import Replay
from inlay.research.bench.timing import timed

CONFIGS: dict[str, dict[str, Any]] = {
    "wan-2.1": {},
    "wan-2.2": {
        "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "patch_size": 2, "in_channels": 12,
        "out_channels": 12, "scale_factor_spatial": 16, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48,
    },
}  # fmt: skip
TINY = {"base_dim": 4, "decoder_base_dim": 4, "num_res_blocks": 1}
COMPILED = ("ours_compiled_blocks", "ours_compiled")
GRAPHS = 64  # of one function: each shape of a block
CACHED = 2  # frames before a convolution, once there are as many
Form = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def made(name: str, a: argparse.Namespace) -> Wan:
    torch.manual_seed(0)
    model = diffusers.AutoencoderKLWan(**CONFIGS[name] | (TINY if a.tiny else {}))
    network = Wan(model, KINDS["AutoencoderKLWan"], name=name)
    return network.eval().requires_grad_(False).to(device=a.device, dtype=torch.bfloat16)


def theirs(network: Wan) -> Form:
    model = network.model

    def encode(x: Tensor) -> Tensor:
        z = model.encode(x).latent_dist.mode()
        mean, std = network.tables(z)
        return (z - mean) / std

    def decode(z: Tensor) -> Tensor:
        mean, std = network.tables(z)
        return model.decode(z * std + mean).sample

    return encode, decode


def channels_last(network: Wan) -> Form:
    other = copy.deepcopy(network)
    for part in other.modules():
        if isinstance(part, torch.nn.Conv3d):
            part.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        elif isinstance(part, torch.nn.Conv2d):
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return other.encode, other.decode


def compiled(network: Wan) -> Form:
    other = copy.deepcopy(network)
    for half in (other.encoder, other.decoder):  # as INLAY_FAST=compile does
        half.compile(dynamic=False)
    return Replay(other.encode), Replay(other.decode)


def compiled_blocks(network: Wan, *, backend: str = "inductor") -> Form:
    """Residual blocks with full caches, as one function of block, frames and caches: one graph for all of a shape."""
    other = copy.deepcopy(network)
    torch._dynamo.config.recompile_limit = GRAPHS
    run = torch.compile(residual, dynamic=False, backend=backend)
    for part in other.modules():
        if isinstance(part, WanResidualBlock):
            part.forward = partial(with_cache, run, part)  # type: ignore[method-assign]
    return Replay(other.encode), Replay(other.decode)


def residual(block: WanResidualBlock, x: Tensor, one: Tensor | None, two: Tensor | None) -> tuple[Any, ...]:
    cache = [one, two]  # of its two convolutions
    y = WanResidualBlock.forward(block, x, feat_cache=cache, feat_idx=[0])
    return y, *cache


def with_cache(
    run: Callable[..., tuple[Any, ...]], block: WanResidualBlock, x: Tensor, feat_cache: list, feat_idx: list[int]
) -> Tensor:
    """A block as the halves call it: its place in the whole cache is kept out of the graph."""
    here = slice(feat_idx[0], feat_idx[0] + 2)
    if any(not isinstance(past, Tensor) or past.shape[2] < CACHED for past in feat_cache[here]):
        return WanResidualBlock.forward(block, x, feat_cache=feat_cache, feat_idx=feat_idx)
    y, *feat_cache[here] = run(block, x, *feat_cache[here])
    feat_idx[0] += 2
    return y


FORMS: dict[str, Callable[[Wan], Form]] = {
    "diffusers_eager": theirs,
    "ours_eager": lambda network: (network.encode, network.decode),
    "ours_channels_last": channels_last,
    "ours_replayed": lambda network: (Replay(network.encode), Replay(network.decode)),
    "ours_compiled_blocks": compiled_blocks,
    "ours_compiled": compiled,
}  # in this order: what compiles may take all the time there is


def measure_form(
    form: Form, sample: Sample, a: argparse.Namespace, row: dict[str, Any], keep: Callable[[], None]
) -> None:
    """Into the row: milliseconds a clip, the peak of memory, and how far the numbers are from those of diffusers."""
    halves = (("encode", form[0], sample.x, sample.z), ("decode", form[1], sample.z, sample.pixels))
    for name, call, given, wanted in halves:
        begin = time.perf_counter()
        found = call(given)
        row[f"{name}_difference"] = float(((found.clamp(-1, 1) if name == "decode" else found) - wanted).norm()
                                          / wanted.norm())  # fmt: skip
        row[f"{name}_first_seconds"] = round(time.perf_counter() - begin, 1)
        del found
        spent = timed(partial(call, given), torch.device(a.device), repeats=a.repeats, warmup=a.warmup)
        row[f"{name}_ms"] = spent["ms"] / len(given)
        if a.device == "cuda":
            row[f"{name}_peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        keep()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after so many seconds, and again each second: a compiler may swallow the first one."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e6), 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """A batch, and what diffusers makes of it."""

    x: Tensor
    z: Tensor
    pixels: Tensor

    @staticmethod
    @torch.inference_mode()
    def of(network: Wan, batch: int, a: argparse.Namespace) -> Sample:
        torch.manual_seed(1)
        x = torch.rand(batch, 3, a.frames, a.side, a.side, device=a.device).mul_(2).sub_(1).to(torch.bfloat16)
        encode, decode = theirs(network)
        z = encode(x)
        return Sample(x=x, z=z, pixels=decode(z))


@torch.inference_mode()
def measure(
    network: Wan, form: str, sample: Sample, a: argparse.Namespace, row: dict[str, Any], keep: Callable[[], None]
) -> None:
    """Fill the row of a form; it is kept after each half."""
    begin = time.perf_counter()
    try:
        with at_most(a.compile_seconds) if form in COMPILED else nullcontext():
            measure_form(FORMS[form](network), sample, a, row, keep)
    except Exception as error:  # the other forms are worth their numbers all the same
        late = form in COMPILED and time.perf_counter() - begin > a.compile_seconds  # whatever the compiler made of it
        told = f"took more than {a.compile_seconds:.0f} s" if late else f"{type(error).__name__}: {error}"
        row["error"] = told.splitlines()[0]
    if form in COMPILED:
        torch._dynamo.reset()
    if a.device == "cuda":
        torch.cuda.empty_cache()
    row["seconds_in_all"] = round(time.perf_counter() - begin, 1)


def plan(a: argparse.Namespace) -> list[tuple[int, str, str]]:
    """(batch, model, form), best first: all of the first model, then what is not compiled, then the rest."""
    forms = [form for form in FORMS if form in a.forms]
    jobs = [(batch, name, form) for batch in a.batches for name in a.models for form in forms]
    jobs = [job for job in jobs if job[0] == a.batches[0] or job[2] not in COMPILED]
    return sorted(jobs, key=lambda job: job[:2] != (a.batches[0], a.models[0]) and 1 + (job[2] in COMPILED))


def write(record: dict[str, Any], out: Path | None) -> None:
    """What is known so far: a run cut short leaves what it found."""
    if out:
        out.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=math.inf, help="after so many no form is begun")
    parser.add_argument("--compile-seconds", type=float, default=math.inf, help="for a compiled form, timing included")
    parser.add_argument("--tiny", action="store_true", help="a hundredth of the network, to see that all is in place")
    parser.add_argument("--out", type=Path, default=None)
    words = sys.argv[1:]
    a = parser.parse_args(words)
    if a.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this measures a GPU, and there is none")
    torch.backends.cudnn.benchmark = True
    device = torch.cuda.get_device_name() if a.device == "cuda" else platform.processor()
    told = ["FILE" if word == str(a.out) else word for word in words]
    record: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/bench_wan.py", *told]),
        "device": device, "torch": torch.__version__, "diffusers": diffusers.__version__, "dtype": "bfloat16",
        "frames": a.frames, "side": a.side, "tiny": a.tiny, "models": {},
        "left_out": [f"{name} {form} batch {batch}" for batch, name, form in plan(a)],
    }  # fmt: skip
    begin, networks, samples = time.perf_counter(), {}, {}
    for batch, name, form in plan(a):
        if time.perf_counter() - begin > a.seconds:
            break
        if name not in networks:
            networks[name] = made(name, a)
            record["models"][name] = {"parameters": networks[name].spec.parameters}
        if (name, batch) not in samples:
            samples[name, batch] = Sample.of(networks[name], batch, a)
        row = record["models"][name][f"{form}_batch{batch}"] = dict[str, Any]()
        measure(networks[name], form, samples[name, batch], a, row, partial(write, record, a.out))
        record["left_out"].pop(0)
        print(name, batch, form, row, flush=True)
        write(record, a.out)
    if not a.out:
        print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
