# SPDX-License-Identifier: Apache-2.0
"""What trained networks are worth on whole sets: at full rate, rounded, and filled at the rates of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from clips import TestSet
from stages import Nets, to_x
from torch import Tensor, nn

from inlay.backbones.mini import TIME
from inlay.masking import FIRST_LOOK, MaskConfig, fill_error, keep_mask, keep_rate_of, nearest_tau
from inlay.measure.lpips import Lpips

RATES = {"davis": (0.62, 0.35), "bench": (0.32,), "held": (0.35,)}  # of kept cells, of a whole set at one tau
STEPS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@torch.no_grad()
def measure(nets: Nets, kind: str, tests: dict[str, TestSet], lpips: Lpips | None) -> dict[str, Any]:
    """All there is to know of a stage, from averaged weights."""
    backbone = nets["backbone"].eval()
    found: dict[str, Any] = {"clips": {}}
    fills = {"backbone": [], "paper": ["paper"]}.get(kind, ["lit"])
    with torch.compiler.set_stance("force_eager"):
        for name, (names, clips) in tests.items():
            z = latents(backbone, clips)
            frames_NT = psnr_by_frame(backbone, z, clips)
            plain = frames_NT.mean(1).tolist()
            row = found[name] = {"psnr": mean(plain), "fast": mean(fastest(plain, clips))}
            row["places"] = by_place(frames_NT)
            found["clips"][name] = dict(zip(names, [round(p, 3) for p in plain], strict=True))
            learnt = kind in ("backbone", "together")  # the others leave the backbone as it was
            if lpips is not None and learnt:
                row["lpips"] = lpips_of(backbone, z, clips, lpips)
            for step in STEPS if learnt else ():
                rounded = (z / step).round()
                row[f"psnr_{step}"] = mean(psnr_of(backbone, rounded * step, clips))
                row[f"entropy_{step}"] = entropy(rounded, clips)
            for rate in RATES.get(name, ()):
                row |= filled(nets, z, clips, rate, lpips, fills)
    return found


@torch.no_grad()
def look(nets: Nets, tests: dict[str, TestSet]) -> dict[str, float]:
    """PSNR at full rate and after the fill: for the log of a stage."""
    found: dict[str, float] = {}
    with torch.compiler.set_stance("force_eager"):
        for name, (_, clips) in tests.items():
            z = latents(nets["backbone"].eval(), clips)
            found[name] = mean(psnr_of(nets["backbone"], z, clips))
            for rate in RATES.get(name, ()) if "lit" in nets else ():
                found[f"{name}_{rate}"] = filled(nets, z, clips, rate, None, ["lit"])[f"lit_{rate}"]
    return found


def filled(
    nets: Nets, z: Tensor, clips: Tensor, rate: float, lpips: Lpips | None, fills: list[str]
) -> dict[str, float]:
    keep, tau = mask_at(z, rate)
    out = {f"tau_{rate}": tau}
    for name in fills:
        lit = nets[name].eval()
        z_hat = fill_all(lit, z, keep, tau)
        out[f"{name}_{rate}"] = mean(psnr_of(nets["backbone"], z_hat, clips))
        if lpips is not None:
            out[f"{name}_{rate}_lpips"] = lpips_of(nets["backbone"], z_hat, clips, lpips)
        first, tau_1 = mask_at(z, FIRST_LOOK * rate)
        error = fill_error(z, fill_all(lit, z, first, tau_1)).masked_fill(first, torch.inf)
        twice = error >= error.flatten().sort(descending=True).values[int(rate * error.numel()) - 1]
        out[f"{name}_{rate}_twice"] = mean(psnr_of(nets["backbone"], fill_all(lit, z, twice, tau_1), clips))
    return out


def mask_at(z: Tensor, rate: float) -> tuple[Tensor, float]:
    """The masks of a set that keep a share of all its cells, and their tau."""

    def kept(tau: float) -> float:
        return keep_rate_of(keep_mask(z, MaskConfig(tau=tau)))

    tau = nearest_tau(kept, rate, start=float(z.diff(dim=2).abs().mean()), tolerance=1e-4).tau
    return keep_mask(z, MaskConfig(tau=tau)), tau


def fill_all(lit: nn.Module, z: Tensor, keep: Tensor, tau: float) -> Tensor:
    return torch.cat([lit(a, k, tau) for a, k in zip(z.split(2), keep.split(2), strict=True)])


@torch.no_grad()
def statistics(backbone: nn.Module, tests: dict[str, TestSet]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, of held-out clips where there are any."""
    _, clips = tests.get("held") or next(iter(tests.values()))
    with torch.compiler.set_stance("force_eager"):
        z = latents(backbone.eval(), clips)
    return tuple(z.mean((0, 2, 3, 4)).tolist()), tuple(z.std((0, 2, 3, 4)).tolist())


def latents(backbone: nn.Module, clips: Tensor) -> Tensor:
    return torch.cat([backbone.encode(to_x(u8)) for u8 in clips.split(4)])


def psnr_of(backbone: nn.Module, z: Tensor, clips: Tensor) -> list[float]:
    """Of each clip, the mean over its frames."""
    return psnr_by_frame(backbone, z, clips).mean(1).tolist()


def psnr_by_frame(backbone: nn.Module, z: Tensor, clips: Tensor) -> Tensor:
    """[clips, frames]."""
    return torch.cat([psnr(u8, x_hat) for u8, x_hat in decoded(backbone, z, clips, 4)])


def by_place(psnr_NT: Tensor) -> list[float]:
    """Means of the first frame and of each place in a slot: a mean over frames does not show if one is favoured."""
    return [
        round(v, 3)
        for v in (psnr_NT[:, 0].mean().item(), *psnr_NT[:, 1:].unflatten(1, (-1, TIME)).mean((0, 1)).tolist())
    ]


def psnr(u8_BTCHW: Tensor, x_hat_BCTHW: Tensor) -> Tensor:
    """[B, T]."""
    y = ((x_hat_BCTHW.float().clamp(-1, 1) + 1) * 127.5).round().transpose(1, 2)
    mse = (y - u8_BTCHW.float()).square().flatten(2).mean(2).double()
    return (10 * (255**2 / mse.clamp_min(1e-9)).log10()).clamp(max=100)


def lpips_of(backbone: nn.Module, z: Tensor, clips: Tensor, lpips: Lpips) -> float:
    """Every third frame: enough for a mean, at a third of the time."""
    values: list[float] = []
    for u8, x_hat in decoded(backbone, z, clips, 2):
        x, y = (v[:, :, ::3].transpose(1, 2).flatten(0, 1) for v in (to_x(u8), x_hat.clamp(-1, 1)))
        values += lpips(x, y).tolist()
    return round(float(np.mean(values)), 4)


def decoded(backbone: nn.Module, z: Tensor, clips: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    for a, u8 in zip(z.split(batch), clips.split(batch), strict=True):
        yield u8, backbone.decode(a)


def fastest(values: list[float], clips: Tensor) -> list[float]:
    """Those of the third of the clips that moves most."""
    motion = [u8.float().diff(dim=0).abs().mean().item() for u8 in clips]
    return [values[k] for k in np.argsort(motion)[-max(1, len(motion) // 3) :]]


def entropy(rounded_BCTHW: Tensor, clips: Tensor) -> float:
    """Bits a pixel of all numbers, each channel by its own histogram, nothing predicted."""
    bits = 0.0
    for channel in rounded_BCTHW.unbind(1):
        counts = channel.flatten().unique(return_counts=True)[1].double()
        bits += float(-(counts * (counts / channel.numel()).log2()).sum())
    return round(bits / (clips.numel() / 3), 4)


def mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 3)
