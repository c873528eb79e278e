# SPDX-License-Identifier: Apache-2.0
"""What is learnt, apart from how: the loss of a batch, validation, export. The loop knows tasks by these names only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from inlay.backbones import Backbone, Mini
from inlay.errors import ConfigError, MissingError, pick
from inlay.fill import Lit, hold, save_lit
from inlay.masking import CRITERIA, REFERENCES, MaskConfig, compared, scored_scan
from inlay.train.config import LossConfig, TrainConfig
from inlay.train.data import Batch, LatentCache
from inlay.train.losses import Pair, StepLoss, weigh
from inlay.train.sampler import Draw
from inlay.train.validate import Validation, ValidationSet, in_rows, psnr, shown
from inlay.weightfile import save_weights


class Task(Protocol):
    """Something to learn."""

    kind: str

    @property
    def module(self) -> nn.Module:
        """What is trained."""
        ...

    @property
    def networks(self) -> dict[str, Any]:
        """Which networks take part, as JSON values: written into the run folder, and the same when a run goes on."""
        ...

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """All that the loss of a batch depends on, on the device; what was drawn by chance is among it."""
        ...

    def loss(self, inputs: dict[str, Tensor]) -> StepLoss:
        """The loss of a batch, a mean over its clips; called with gradients on. Waits for no value."""
        ...

    def validate(self, module: nn.Module) -> Validation | None:
        """How good `module` (the weights or their average) is; None without validation clips."""
        ...

    def compile(self) -> None:
        """Compile what is run every step."""
        ...

    def export(self, module: nn.Module, path: Path, facts: dict[str, Any]) -> None:
        """Write weights that the rest of the package loads."""
        ...


class LitTask:
    """The paper's pipeline: encode, mask, fill, decode. Only the fill learns; gradients flow through the decoder."""

    kind = "lit"

    def __init__(
        self,
        lit: Lit,
        backbone: Backbone,
        config: TrainConfig,
        *,
        validation: ValidationSet | None = None,
        cache: LatentCache | None = None,
    ) -> None:
        check_clips(config, backbone)
        check_mask(config)
        self.module, self.backbone, self.config = lit, backbone, config
        self.validation, self.cache = validation, cache
        self.device = next(lit.parameters()).device
        lit.set_statistics(backbone.spec.latent_mean, backbone.spec.latent_std)
        lit.trained_on(max(backbone.spec.grid(config.clips.size, config.clips.size)))
        self.lpips = load_perceptual(config.loss, self.device)
        self._baseline: dict[str, float] = {}

    @property
    def networks(self) -> dict[str, Any]:
        spec = self.backbone.spec
        return {"lit": asdict(self.module.config), "backbone": {"name": spec.name, "weights": spec.weight_hash}}

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        drawn = {"x": batch.pixels, "tau_B": draw_tau(batch.draws, self.config.tau).to(self.device)}
        return drawn if self.cache is None else {**drawn, "z": self.cache.latents(batch, self._latents)}

    def loss(self, inputs: dict[str, Tensor]) -> StepLoss:
        x, tau_B, c = inputs["x"], inputs["tau_B"], self.config
        z = inputs["z"] if "z" in inputs else self._latents(x)
        keep = masks(z, tau_B, criterion=c.criterion, reference=c.reference, pixels_BCTHW=x)
        with autocast(x.device, c.precision):
            z_hat = self.module(z, keep, tau_B)
            x_hat = self.backbone.decode(z_hat) if needs_pixels(c.loss) else None
            found = weigh(c.loss, Pair(x=x, x_hat=x_hat, z=z, z_hat=z_hat), lpips=self.lpips)
        return StepLoss(total=found.total, terms={**found.terms, "keep_rate": keep.float().mean()})

    @torch.no_grad()
    def _latents(self, x_BCTHW: Tensor) -> Tensor:
        """In float32 whatever the precision of training: these are the cells that will be met in use."""
        return self.backbone.encode(x_BCTHW)

    @torch.no_grad()
    def validate(self, module: nn.Module) -> Validation | None:
        if not self.validation:
            return None
        sums: dict[str, list[float]] = {"psnr": [], "keep_rate": []}
        plain: dict[str, list[float]] = {"psnr_full": [], "psnr_hold": []}
        tau = self.config.validate_tau or middle(self.config.tau)
        rows: list[list[Tensor]] = []
        for x in self.validation.clips():
            z = self.backbone.encode(x)
            tau_B = torch.full((1,), tau, device=x.device)
            c = self.config
            keep = masks(z, tau_B, criterion=c.criterion, reference=c.reference, pixels_BCTHW=x)
            x_hat = self.backbone.decode(module(z, keep, tau_B))
            sums["psnr"].append(psnr(x, x_hat))
            sums["keep_rate"].append(keep.float().mean().item())
            if not self._baseline:  # the frozen backbone's own figures never change
                plain["psnr_full"].append(psnr(x, self.backbone.decode(z)))
                plain["psnr_hold"].append(psnr(x, self.backbone.decode(hold(z, keep))))
            if len(rows) < self.config.pictures:
                rows.append([shown(x), shown(x, keep), shown(x_hat)])
        self._baseline = self._baseline or {k: _mean(v) for k, v in plain.items()}
        numbers = {"keep_rate": _mean(sums["keep_rate"]), **self._baseline}
        return Validation(psnr=_mean(sums["psnr"]), numbers=numbers, picture=in_rows(rows))

    def compile(self) -> None:
        compile_all(self.module)
        if isinstance(self.backbone, nn.Module):
            compile_all(*self.backbone.children())

    def export(self, module: nn.Module, path: Path, facts: dict[str, Any]) -> None:
        spec = self.backbone.spec
        meta = {**facts, "backbone": spec.name, "backbone_hash": spec.weight_hash, "tau": list(self.config.tau)}
        assert isinstance(module, Lit), "a LitTask trains a Lit"
        save_lit(path, module, meta, stored="fp32")


class BackboneTask:
    """An autoencoder learns to give back what it was shown."""

    kind = "backbone"

    def __init__(self, backbone: Mini, config: TrainConfig, *, validation: ValidationSet | None = None) -> None:
        check_clips(config, backbone)
        check_pixel_terms(config.loss)
        self.module, self.config, self.validation = backbone, config, validation
        backbone.requires_grad_(True).train()
        backbone.weight_hash = "in training"  # weights change every step; their digest is taken when they are saved
        self.device = next(backbone.parameters()).device
        self.lpips = load_perceptual(config.loss, self.device)

    @property
    def networks(self) -> dict[str, Any]:
        return {"backbone": asdict(self.module.config)}

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        return {"x": batch.pixels, **draw_noise(batch, self.module, self.config)}

    def loss(self, inputs: dict[str, Tensor]) -> StepLoss:
        x, c = inputs["x"], self.config
        with autocast(x.device, c.precision):
            z = self.module.encode(x)
            x_hat = self.module.decode(z + inputs["noise"].to(z.dtype) if "noise" in inputs else z)
            found = weigh(c.loss, Pair(x=x, x_hat=x_hat, z=z), lpips=self.lpips)
        return StepLoss(total=found.total, terms={**found.terms, "latent_std": z.detach().float().std()})

    @torch.no_grad()
    def validate(self, module: nn.Module) -> Validation | None:
        assert isinstance(module, Mini), "a BackboneTask trains a Mini"
        if not self.validation:
            return None
        found: list[float] = []
        rows: list[list[Tensor]] = []
        for x in self.validation.clips():
            x_hat = module.decode(module.encode(x))
            found.append(psnr(x, x_hat))
            if len(rows) < self.config.pictures:
                rows.append([shown(x), shown(x_hat)])
        return Validation(psnr=_mean(found), picture=in_rows(rows))

    def compile(self) -> None:
        compile_all(*self.module.children())

    def export(self, module: nn.Module, path: Path, facts: dict[str, Any]) -> None:
        assert isinstance(module, Mini), "a BackboneTask trains a Mini"
        save_mini(path, module, facts, self.validation)


def masks(
    z_BCTHW: Tensor, tau_B: Tensor, *, criterion: str, reference: str, pixels_BCTHW: Tensor | None = None
) -> Tensor:
    """[B, T, H, W] bool: the encoder's scan, with a threshold for each clip."""
    config = MaskConfig(criterion=criterion, reference=reference)
    return scored_scan(compared(z_BCTHW, config, pixels_BCTHW), config, tau=tau_B).keep_BTHW


def draw_tau(draws: Sequence[Draw], tau: tuple[float, float]) -> Tensor:
    """[B]: log-uniform between the two, so that low and high rates are met equally often; uniform from zero."""
    low, high = tau
    levels = torch.tensor([d.level for d in draws], dtype=torch.float64)
    found = low * (high / low) ** levels if low > 0 else high * levels
    return found.float()


def middle(tau: tuple[float, float]) -> float:
    """The tau of level one half."""
    return (tau[0] * tau[1]) ** 0.5 if tau[0] > 0 else tau[1] / 2


def draw_noise(batch: Batch, backbone: Backbone, config: TrainConfig) -> dict[str, Tensor]:
    """Noise for latents that belongs to the draw: the same in every process layout and after every resume."""
    if not config.latent_noise:
        return {}
    spec, device, size = backbone.spec, batch.pixels.device, config.clips.size // backbone.spec.space_stride
    shape = (spec.channels, spec.slots(config.clips.frames), size, size)
    seeds = [torch.Generator(device=device).manual_seed(draw.seed) for draw in batch.draws]
    noise = torch.stack([torch.randn(shape, generator=g, device=device) for g in seeds])
    return {"noise": noise * config.latent_noise}


@torch.no_grad()
def save_mini(path: Path, backbone: Mini, facts: dict[str, Any], validation: ValidationSet | None) -> None:
    """Write the weights, with the mean and standard deviation of each latent channel where clips can tell them."""
    meta = {**facts, "config": asdict(backbone.config)}
    if validation:
        z_CN = torch.cat([backbone.encode(x).transpose(0, 1).flatten(1) for x in validation.clips()], dim=1).double()
        meta |= {"latent_mean": z_CN.mean(1).tolist(), "latent_std": z_CN.std(1).clamp_min(1e-6).tolist()}
    save_weights(path, backbone.state_dict(), meta, stored="fp32")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def compile_all(*modules: nn.Module) -> None:
    """One graph for each shape: a general one, made once validation brings another batch size, would slow training."""
    for module in modules:
        module.compile(dynamic=False)


def needs_pixels(loss: LossConfig) -> bool:
    """Whether any term looks at decoded pixels; without one the decoder need not run."""
    return bool(loss.pixel or loss.perceptual or (loss.temporal and loss.temporal_form != "latent"))


def load_perceptual(loss: LossConfig, device: torch.device) -> nn.Module | None:
    if not loss.perceptual:
        return None
    from inlay.measure.lpips import load_lpips
    from inlay.measure.weights import find_weights

    try:
        return load_lpips(find_weights("lpips"), str(device))
    except MissingError as error:
        raise MissingError(f"{error}; or train without it: perceptual=0") from error


def check_clips(config: TrainConfig, backbone: Backbone) -> None:
    """Refuse clips that this backbone cannot fold."""
    spec, c = backbone.spec, config.clips
    if spec.frames(spec.slots(c.frames)) != c.frames:
        raise ConfigError(
            f"{spec.name} takes {spec.first_slot_frames} + {spec.time_stride}k frames; {c.frames} is none of these, "
            f"{spec.frames(spec.slots(c.frames))} would be"
        )
    if c.size % spec.space_stride:
        raise ConfigError(f"{spec.name} takes sizes that are multiples of {spec.space_stride}; got {c.size}")


def check_pixel_terms(loss: LossConfig) -> None:
    """A backbone makes its own latents: there are none to compare them with."""
    if not needs_pixels(loss):
        raise ConfigError("a backbone learns from pixels, and no term of the loss looks at them; give pixel a weight")


def check_mask(config: TrainConfig) -> None:
    """Refuse unknown names before a run is begun with them."""
    pick("criterion", config.criterion, CRITERIA)
    pick("reference", config.reference, REFERENCES)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
