# SPDX-License-Identifier: Apache-2.0
"""Train a backbone and its LIT at once.

    x ── encode ── z ──┬── a share of the clips: mask, fill ──┬── decode ── x^
                       └── the rest as they are ──────────────┘

A backbone that never met a mask moves its latents as it likes: a cell may change much where the picture hardly does,
and the threshold, which sees distances only, keeps the wrong cells. One that learns with the mask in the way puts
distance where it counts. Afterwards both are frozen; nothing changes in how they are used.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.backbones import Mini
from inlay.errors import ConfigError, pick
from inlay.fill import Lit, save_lit
from inlay.masking import CRITERIA, MaskConfig, keep_mask, keep_rate_of, nearest_tau
from inlay.train.config import TrainConfig
from inlay.train.data import Batch
from inlay.train.losses import Pair, StepLoss, weigh
from inlay.train.tasks import (
    autocast,
    check_clips,
    check_mask,
    check_pixel_terms,
    compile_all,
    draw_noise,
    draw_tau,
    load_perceptual,
    masks,
    save_mini,
)
from inlay.train.validate import Validation, ValidationSet, in_rows, psnr, shown
from inlay.weightfile import hash_weights

VALIDATED_RATE = 0.35  # of cells kept
LIT_FILE = "lit.safetensors"  # beside the backbone's weights


class TogetherTask:
    """An autoencoder learns to give back what it was shown, a part of it through the mask and the fill."""

    kind = "together"

    def __init__(
        self, backbone: Mini, lit: Lit, config: TrainConfig, *, validation: ValidationSet | None = None
    ) -> None:
        check_clips(config, backbone)
        if not config.masked:
            raise ConfigError("a backbone and its LIT learn together from masked clips, and masked is 0; 0.5 is usual")
        check_pixel_terms(config.loss)
        check_mask(config)
        if backbone.spec.slots(config.clips.frames) < 2:
            raise ConfigError(f"a mask needs clips of two slots or more; {config.clips.frames} frames are one")
        if config.criterion == "pixel-l1":
            raise ConfigError("what learns together here is the distance between latents, and pixel-l1 has none")
        self.config, self.validation = config, validation
        self.module = nn.ModuleDict({"backbone": backbone, "lit": lit}).requires_grad_(True).train()
        lit.set_statistics(backbone.spec.latent_mean, backbone.spec.latent_std)
        backbone.weight_hash = "in training"  # weights change every step; their digest is taken when they are saved
        self.device = next(backbone.parameters()).device
        self.lpips = load_perceptual(config.loss, self.device)

    @property
    def networks(self) -> dict[str, Any]:
        backbone, lit = parts(self.module)
        return {"backbone": asdict(backbone.config), "lit": asdict(lit.config)}

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        through = max(1, round(self.config.masked * len(batch.draws)))  # the first so many: a batch has no order
        tau_B = draw_tau(batch.draws[:through], self.config.tau).to(self.device)
        return {"x": batch.pixels, "tau_B": tau_B, **draw_noise(batch, parts(self.module)[0], self.config)}

    def loss(self, inputs: dict[str, Tensor]) -> StepLoss:
        x, through, c = inputs["x"], len(inputs["tau_B"]), self.config
        backbone, lit = parts(self.module)
        with autocast(x.device, c.precision):
            z = backbone.encode(x)
            tau_B = inputs["tau_B"] * self.mean_change(z)
            with torch.no_grad():
                keep = masks(z[:through].float(), tau_B, criterion=c.criterion, reference=c.reference)
            z_hat = torch.cat([lit(z[:through], keep, tau_B).to(z.dtype), z[through:]])
            x_hat = backbone.decode(z_hat + inputs["noise"].to(z.dtype) if "noise" in inputs else z_hat)
            found = weigh(c.loss, Pair(x=x, x_hat=x_hat, z=z), lpips=self.lpips)
        seen = {"keep_rate": keep.float().mean(), "latent_std": z.detach().float().std()}
        return StepLoss(total=found.total, terms={**found.terms, **seen})

    @torch.no_grad()
    def mean_change(self, z_BCTHW: Tensor) -> Tensor:
        """The unit of tau: distance between neighbouring slots, so that larger latents do not escape the threshold."""
        distance = pick("criterion", self.config.criterion, CRITERIA)
        before, after = (z.transpose(1, 2).flatten(0, 1).float() for z in (z_BCTHW[:, :, :-1], z_BCTHW[:, :, 1:]))
        return distance(before, after).mean()

    @torch.no_grad()
    def validate(self, module: nn.Module) -> Validation | None:
        """Both ways; the mean of the two decides."""
        if not self.validation:
            return None
        backbone, lit = parts(module)
        clips = list(self.validation.clips())
        latents = [backbone.encode(x) for x in clips]
        tau_B = self.tau_for(latents, VALIDATED_RATE)
        full, filled = [], []
        rows: list[list[Tensor]] = []
        for x, z in zip(clips, latents, strict=True):
            keep = masks(z, tau_B, criterion=self.config.criterion, reference=self.config.reference)
            x_full, x_hat = backbone.decode(z), backbone.decode(lit(z, keep, tau_B))
            full.append(psnr(x, x_full))
            filled.append(psnr(x, x_hat))
            if len(rows) < self.config.pictures:
                rows.append([shown(x), shown(x_full), shown(x, keep), shown(x_hat)])
        whole, part = (sum(v) / len(v) for v in (full, filled))
        numbers = {"psnr_full": whole, "psnr_filled": part, "keep_rate": VALIDATED_RATE}
        return Validation(psnr=(whole + part) / 2, numbers=numbers, picture=in_rows(rows))

    def tau_for(self, latents: list[Tensor], rate: float) -> Tensor:
        """[1]: the threshold that keeps this share of all cells, so that weights are compared at one rate."""
        c = self.config

        def kept(tau: float) -> float:
            config = MaskConfig(tau=tau, criterion=c.criterion, reference=c.reference)
            return keep_rate_of(torch.cat([keep_mask(z, config).flatten() for z in latents]))

        found = nearest_tau(kept, rate, start=float(self.mean_change(latents[0])) or 1.0, tolerance=1e-4)
        return torch.full((1,), found.tau, device=self.device)

    def compile(self) -> None:
        backbone, lit = parts(self.module)
        compile_all(*backbone.children(), lit)

    def export(self, module: nn.Module, path: Path, facts: dict[str, Any]) -> None:
        """The backbone at `path`, its LIT beside it."""
        backbone, lit = parts(module)
        save_mini(path, backbone, facts, self.validation)
        own = {**facts, "backbone": backbone.name, "backbone_hash": hash_weights(backbone.state_dict())}
        save_lit(path.with_name(LIT_FILE), lit, own, stored="fp32")


def parts(module: nn.Module) -> tuple[Mini, Lit]:
    """The two networks of what a TogetherTask trains."""
    assert isinstance(module, nn.ModuleDict), "a TogetherTask trains two networks side by side"
    backbone, lit = module["backbone"], module["lit"]
    assert isinstance(backbone, Mini) and isinstance(lit, Lit), "a TogetherTask trains a Mini and a Lit"
    return backbone, lit
