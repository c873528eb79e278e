# SPDX-License-Identifier: Apache-2.0
"""The terms of the training objective, as pure functions in float32.

All are means, so that weights mean the same at every clip size. x: pixels or latents [B, C, T, H, W].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from inlay.train.config import LossConfig


def mse(x_BCTHW: Tensor, y_BCTHW: Tensor) -> Tensor:
    """Mean squared error."""
    return (x_BCTHW.float() - y_BCTHW.float()).square().mean()


def l1(x_BCTHW: Tensor, y_BCTHW: Tensor) -> Tensor:
    """Mean absolute error."""
    return (x_BCTHW.float() - y_BCTHW.float()).abs().mean()


def log_mse(x_BCTHW: Tensor, y_BCTHW: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Mean over clips of log MSE: PSNR itself but for a factor, so an easy clip counts as much as a hard one."""
    mse_B = (x_BCTHW.float() - y_BCTHW.float()).square().flatten(1).mean(1)
    return (mse_B + eps).log().mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": mse, "log-mse": log_mse, "l1": l1}


def temporal(x_BCTHW: Tensor, y_BCTHW: Tensor) -> Tensor:
    """Appendix G: mean |(x_t - x_{t-1}) - (y_t - y_{t-1})|; on pixels or on latents."""
    return _error_steps(x_BCTHW, y_BCTHW).mean()


def temporal_static(x_BCTHW: Tensor, y_BCTHW: Tensor, *, scale: float = 0.05) -> Tensor:
    """The same, weighted towards places where x stands still; weights have mean 1, so both forms weigh alike."""
    motion_B1THW = x_BCTHW.float().diff(dim=2).abs().mean(1, keepdim=True)
    weight_B1THW = torch.exp(-motion_B1THW / scale)
    weight_B1THW = weight_B1THW / weight_B1THW.mean().clamp_min(1e-6)
    return (_error_steps(x_BCTHW, y_BCTHW) * weight_B1THW).mean()


TEMPORAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pixel": temporal,
    "latent": temporal,
    "static": temporal_static,
}


def _error_steps(x_BCTHW: Tensor, y_BCTHW: Tensor) -> Tensor:
    if x_BCTHW.shape[2] < 2:  # a single frame has no change to match
        return (x_BCTHW.float() - y_BCTHW.float()) * 0
    return (x_BCTHW.float() - y_BCTHW.float()).diff(dim=2).abs()


def pick_frames(x_BCTHW: Tensor, frames: int) -> Tensor:
    """[B*n, C, H, W]: n frames spread over each clip, the first and last among them."""
    b, c, t, h, w = x_BCTHW.shape
    n = min(frames, t)
    index = torch.linspace(0, t - 1, n, device=x_BCTHW.device).round().long()
    return x_BCTHW[:, :, index].transpose(1, 2).reshape(b * n, c, h, w)


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """What a batch teaches: the number to lower, and what to write into the log."""

    total: Tensor
    terms: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A clip and its reconstruction, as pixels and as latents where there are any."""

    x: Tensor | None = None
    x_hat: Tensor | None = None
    z: Tensor | None = None
    z_hat: Tensor | None = None


def weigh(config: LossConfig, pair: Pair, *, lpips: nn.Module | None = None) -> StepLoss:
    """The weighted sum of the terms that have a weight and the tensors they need; terms are logged unweighted."""
    terms: dict[str, Tensor] = {}
    weights = {"pixel": config.pixel, "latent": config.latent, "temporal": config.temporal}
    weights |= {"perceptual": config.perceptual, "latent_size": config.latent_size}
    if pair.x is not None and pair.x_hat is not None:
        if config.pixel:
            terms["pixel"] = LOSSES[config.pixel_loss](pair.x, pair.x_hat)
        if config.temporal and config.temporal_form != "latent":
            terms["temporal"] = TEMPORAL[config.temporal_form](pair.x, pair.x_hat)
        if config.perceptual and lpips is not None:
            terms["perceptual"] = perceptual(lpips, pair.x, pair.x_hat, config.perceptual_frames)
    if pair.z is not None and pair.z_hat is not None:
        if config.latent:
            terms["latent"] = LOSSES[config.latent_loss](pair.z, pair.z_hat)
        if config.temporal and config.temporal_form == "latent":
            terms["temporal"] = temporal(pair.z, pair.z_hat)
    elif pair.z is not None and config.latent_size:
        terms["latent_size"] = pair.z.float().square().mean()
    total = torch.stack([weights[name] * value for name, value in terms.items()]).sum()
    return StepLoss(total=total, terms={name: value.detach() for name, value in terms.items()})


def perceptual(lpips: nn.Module, x_BCTHW: Tensor, y_BCTHW: Tensor, frames: int) -> Tensor:
    """Mean LPIPS over some frames of each clip: every frame would cost more than the rest of the step."""
    return lpips(pick_frames(x_BCTHW, frames), pick_frames(y_BCTHW, frames)).float().mean()
