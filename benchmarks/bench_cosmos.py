# SPDX-License-Identifier: Apache-2.0
"""Time native Cosmos with random weights at its published size on one GPU; prints one JSON object.

    python benchmarks/bench_cosmos.py --out benchmarks/cosmos_h200.json

Measured in one run, in bfloat16 on clips of 33x256x256: the published form (three-dimensional convolutions, eager) as
diffusers has it where it is installed; ours with plain layers, with kernels, with kernels replayed from a graph, and
compiled; batch 1 and 8, encode and decode apart. Times are medians of whole calls between CUDA events after a warm-up;
a batch's time is divided by its clips. Before any timing each form is held against the plain layers.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.backbones.cosmos import Cosmos, CosmosConfig, cosmos_01, cosmos_360p
from inlay.backbones.cosmos_layers import Memory
from inlay.kernels.replay import Replay
from inlay.kernels.switch import at_level
from inlay.research.bench.timing import on_cuda

CONFIGS = {"cosmos-cv4x8x8-360p": cosmos_360p, "cosmos-0.1-cv4x8x8": cosmos_01}


def timed(call: Callable[[], Any], *, repeats: int, warmup: int) -> float:
    """Median milliseconds of a call."""
    for _ in range(warmup):
        call()
    return on_cuda(call, repeats, queued=False)["ms"]


def made(config: CosmosConfig) -> Cosmos:
    torch.manual_seed(0)
    return Cosmos(config).eval().requires_grad_(False).to(device="cuda", dtype=torch.bfloat16)


def both(
    encode: Callable[[Tensor], Any], decode: Callable[[Tensor], Any], x: Tensor, z: Tensor, a: Any
) -> dict[str, float]:
    clips = x.shape[0]
    times = {
        "encode_ms": timed(lambda: encode(x), repeats=a.repeats, warmup=a.warmup) / clips,
        "decode_ms": timed(lambda: decode(z), repeats=a.repeats, warmup=a.warmup) / clips,
    }
    return times | {"both_ms": sum(times.values()), "peak_gb": torch.cuda.max_memory_allocated() / 1e9}


def published_form(config: CosmosConfig) -> Any:
    """Three-dimensional convolutions, eager: what NVIDIA's release runs, as diffusers has it."""
    try:
        import diffusers
    except ImportError:
        return None
    widths = [config.width * m for m in config.decoder_levels]
    model = diffusers.AutoencoderKLCosmos(
        patch_size=config.patch, latent_channels=config.channels, num_layers=config.blocks, attention_resolutions=(),
        encoder_block_out_channels=(config.width, *(config.width * m for m in config.encoder_levels)),
        decode_block_out_channels=(*widths, widths[-1]), spatial_compression_ratio=config.space_stride,
        temporal_compression_ratio=config.time_stride,
    )  # fmt: skip
    return model.eval().requires_grad_(False).to(device="cuda", dtype=torch.bfloat16)


def conv3d_form(network: Cosmos) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The same weights through nn.Conv3d, layer by layer: the eager baseline where diffusers is not installed."""
    import inlay.backbones.cosmos_layers as layers

    def space(self: Any, y: Tensor, *, add: Tensor | None = None) -> Tensor:
        padded = torch.nn.functional.pad(y, (self.padding,) * 4)[:, :, None].contiguous()
        weight = self.conv3d.weight.contiguous()
        z = torch.nn.functional.conv3d(padded, weight, self.conv3d.bias, stride=(1, self.stride, self.stride))
        return z[:, :, 0] if add is None else add + z[:, :, 0]

    def time(self: Any, y: Tensor, T: int, memory: Memory, add: Tensor | None = None) -> Tensor:
        v = y.unflatten(0, (-1, T)).transpose(1, 2)
        v = torch.cat([v[:, :, :1].expand(-1, -1, 2, -1, -1), v], dim=2).contiguous()
        weight = self.conv3d.weight.contiguous()
        out = torch.nn.functional.conv3d(v, weight, self.conv3d.bias, stride=(self.stride, 1, 1))
        z = out.transpose(1, 2).flatten(0, 1)
        return z if add is None else add + z

    def swapped(call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            before = layers.SpaceConv.forward, layers.TimeConv.forward
            layers.SpaceConv.forward, layers.TimeConv.forward = space, time  # type: ignore[method-assign]
            try:
                with at_level("0"):
                    return call(x)
            finally:
                layers.SpaceConv.forward, layers.TimeConv.forward = before  # type: ignore[method-assign]

        return run

    return swapped(network.encode), swapped(network.decode)


@torch.inference_mode()
def measure(name: str, a: Any) -> dict[str, Any]:
    config = CONFIGS[name]()
    eager, fast = made(config), made(config).compiled(a.mode)
    published = published_form(config)
    rows: dict[str, Any] = {"parameters": eager.spec.parameters}
    for batch in a.batches:
        torch.manual_seed(1)
        x = torch.rand(batch, 3, a.frames, a.side, a.side, device="cuda").mul_(2).sub_(1).to(torch.bfloat16)
        with at_level("0"):
            z = eager.encode(x)
            y = eager.decode(z)
        for form, network in (("kernels", eager), ("compiled", fast)):
            rows[f"{form}_difference_encode_batch{batch}"] = float((network.encode(x) - z).norm() / z.norm())
            rows[f"{form}_difference_decode_batch{batch}"] = float((network.decode(z) - y).norm() / y.norm())
        torch.cuda.reset_peak_memory_stats()
        if published is not None:
            rows[f"published_batch{batch}"] = both(published.encode, published.decode, x, z, a)
        rows[f"conv3d_eager_batch{batch}"] = both(*conv3d_form(eager), x, z, a)
        with at_level("0"):
            rows[f"ours_plain_batch{batch}"] = both(eager.encode, eager.decode, x, z, a)
        rows[f"ours_kernels_batch{batch}"] = both(eager.encode, eager.decode, x, z, a)
        rows[f"ours_replayed_batch{batch}"] = both(Replay(eager.encode), Replay(eager.decode), x, z, a)
        rows[f"ours_compiled_batch{batch}"] = both(fast.encode, fast.decode, x, z, a)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cosmos-cv4x8x8-360p"], choices=list(CONFIGS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--mode", default=None, help="of torch.compile, for example max-autotune-no-cudagraphs")
    parser.add_argument("--out", type=Path, default=None)
    a = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this measures a GPU, and there is none")
    torch.backends.cudnn.benchmark = True
    record = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(),
        "clip": f"{a.frames}x{a.side}x{a.side}", "dtype": "bfloat16", "mode": a.mode,
        "models": {name: measure(name, a) for name in a.models},
    }  # fmt: skip
    text = json.dumps(record, indent=2)
    if a.out is not None:
        a.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
