# SPDX-License-Identifier: Apache-2.0
"""Time Wan's autoencoders with random weights at their published sizes; writes one JSON object.

    python benchmarks/bench_wan.py --out benchmarks/wan_h200.json

Measured in one run, in bfloat16 on clips of 33x256x256, encode and decode apart: diffusers' own calls, eager (the form
that trainers run); ours, eager; ours with weights channels-last; ours replayed from CUDA graphs; ours compiled. Times
are medians of whole calls after a warm-up, divided by the clips of a batch. Before it is timed each form is held
against diffusers' numbers; one that fails is recorded with its error. `--device cpu --tiny` only shows that it runs.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
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
    return other.encode, other.decode


FORMS: dict[str, Callable[[Wan], Form]] = {
    "diffusers_eager": theirs,
    "ours_eager": lambda network: (network.encode, network.decode),
    "ours_channels_last": channels_last,
    "ours_replayed": lambda network: (Replay(network.encode), Replay(network.decode)),
    "ours_compiled": compiled,
}


def measure_form(form: Form, x: Tensor, z: Tensor, pixels: Tensor, a: argparse.Namespace) -> dict[str, float]:
    """Milliseconds a clip, the peak of memory, and how far the numbers are from those of diffusers."""
    encode, decode = form
    found = {
        "encode_difference": float((encode(x) - z).norm() / z.norm()),
        "decode_difference": float((decode(z).clamp(-1, 1) - pixels).norm() / pixels.norm()),
    }
    for name, call in (("encode", lambda: encode(x)), ("decode", lambda: decode(z))):
        time = timed(call, torch.device(a.device), repeats=a.repeats, warmup=a.warmup)
        found[f"{name}_ms"] = time["ms"] / len(x)
        if a.device == "cuda":
            found[f"{name}_peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return found


@torch.inference_mode()
def measure(name: str, a: argparse.Namespace) -> dict[str, Any]:
    network = made(name, a)
    rows: dict[str, Any] = {"parameters": network.spec.parameters}
    for batch in a.batches:
        torch.manual_seed(1)
        x = torch.rand(batch, 3, a.frames, a.side, a.side, device=a.device).mul_(2).sub_(1).to(torch.bfloat16)
        encode, decode = theirs(network)
        z = encode(x)
        pixels = decode(z)
        for form in a.forms:
            try:
                row: Any = measure_form(FORMS[form](network), x, z, pixels, a)
            except Exception as error:  # the other forms are worth their numbers all the same
                row = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            rows[f"{form}_batch{batch}"] = row
            print(name, batch, form, row, flush=True)
            if a.device == "cuda":
                torch.cuda.empty_cache()
    return rows


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
    parser.add_argument("--tiny", action="store_true", help="a hundredth of the network, to see that all is in place")
    parser.add_argument("--out", type=Path, default=None)
    a = parser.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this measures a GPU, and there is none")
    torch.backends.cudnn.benchmark = True
    device = torch.cuda.get_device_name() if a.device == "cuda" else platform.processor()
    record = {
        "device": device, "torch": torch.__version__, "diffusers": diffusers.__version__, "dtype": "bfloat16",
        "frames": a.frames, "side": a.side, "tiny": a.tiny, "models": {name: measure(name, a) for name in a.models},
    }  # fmt: skip
    text = json.dumps(record, indent=1)
    if a.out:
        a.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
