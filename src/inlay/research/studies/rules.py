# SPDX-License-Identifier: Apache-2.0
"""The paper's rule for the cells to keep, and those it is compared with, on the same latents.

Legend: B batch (here 1), C channels, T slots, H W grid. Slot 0 is kept whole by every rule, so that every fill has
something to start from. A rule without a rate or threshold of its own keeps as many cells of each clip as `ours` does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inlay.errors import ConfigError, pick
from inlay.masking import CRITERIA, MaskConfig, keep_mask, pixel_grid, smallest_tau

if TYPE_CHECKING:  # which imports this module: a rule looks at a scene's pixels and latents, and calls its networks
    from inlay.research.studies.evaluate import Scene

LEAST_RATIO = 1 / 16  # the router keeps at least this part of a slot
SEARCH_MSE = 0.003  # on pixels in [-1, 1]: 31.25 dB


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to make and fill a mask; its JSON form is part of the name of a record."""

    rule: str = "ours"
    tau: float | None = None  # threshold of ours; of pixel-l1 for that rule, where None means: as many cells as ours
    fill: str | None = None  # None: the tokenizer's own
    criterion: str = "latent-l1"
    reference: str = "last-kept"
    rate: float | None = None  # for rules that take a budget; None: that of ours on the same clip
    mse: float = SEARCH_MSE
    precision: str = "none"  # how kept cells are stored before they are filled; none: as the encoder made them

    def __post_init__(self) -> None:
        pick("rule", self.rule, RULES)
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ConfigError(f"a rate is the part of the cells kept, in (0, 1]; got {self.rate}")
        if not self.mse > 0:
            raise ConfigError(f"mse is a squared error on pixels in [-1, 1], above 0; got {self.mse}")
        MaskConfig(tau=self.tau or 0.0, criterion=self.criterion, reference=self.reference)

    def record(self) -> dict[str, Any]:
        return asdict(self)


Rule = Callable[["Scene", Setting], Tensor]  # -> [1, T, H, W] bool


def ours(scene: Scene, setting: Setting) -> Tensor:
    """The paper's: keep what changed by tau or more since it was kept last. Looks at nothing but the latents."""
    tau = scene.tau if setting.tau is None else setting.tau
    config = MaskConfig(tau=tau, criterion=setting.criterion, reference=setting.reference)
    return keep_mask(scene.z_BCTHW, config, scene.x_BCTHW)


def full(scene: Scene, setting: Setting) -> Tensor:
    """Every cell: the backbone alone."""
    return torch.ones_like(scene.z_BCTHW[:, 0], dtype=torch.bool)


def random(scene: Scene, setting: Setting) -> Tensor:
    """Any cells, drawn by the clip's name, so that a second run draws the same."""
    seed = int.from_bytes(hashlib.sha256(scene.name.encode()).digest()[:7], "big")
    score_BTHW = torch.rand(scene.z_BCTHW[:, 0].shape, generator=torch.Generator().manual_seed(seed))
    score_BTHW = score_BTHW.to(scene.z_BCTHW.device)
    keep_BTHW = torch.ones_like(score_BTHW, dtype=torch.bool)
    keep_BTHW[:, 1:] = _largest(score_BTHW[:, 1:], max(0, budget(scene, setting) - score_BTHW[:, 0].numel()))
    return keep_BTHW


def frame_skip(scene: Scene, setting: Setting) -> Tensor:
    """Whole slots, evenly spaced, as many as come nearest to the budget."""
    keep_BTHW = torch.zeros_like(scene.z_BCTHW[:, 0], dtype=torch.bool)
    slots, cells = keep_BTHW.shape[1], keep_BTHW[0, 0].numel()
    count = min(max(round(budget(scene, setting) / cells), 1), slots)
    keep_BTHW[:, [i * slots // count for i in range(count)]] = True
    return keep_BTHW


def pixel_l1(scene: Scene, setting: Setting) -> Tensor:
    """Run-length tokenisation's signal: change of the pixels, pooled onto the grid (Appendix F)."""
    _, _, t, h, w = scene.z_BCTHW.shape
    pooled = pixel_grid(scene.x_BCTHW, (t, h, w))
    if setting.tau is None:
        return mask_of_count(pooled, budget(scene, setting), setting.reference)
    return keep_mask(pooled, MaskConfig(tau=setting.tau, reference=setting.reference))


def search(scene: Scene, setting: Setting) -> Tensor:
    """ElasticTok's rate control: bisect the budget with the decoder in the loop, for the smallest under an error.

    Which cells a budget keeps is decided as in `ours`, so that only the way to the budget differs. Where no budget
    meets the error, all cells are kept.
    """
    cells, slot = scene.z_BCTHW[:, 0].numel(), scene.z_BCTHW[0, 0, 0].numel()
    best = torch.ones_like(scene.z_BCTHW[:, 0], dtype=torch.bool)
    low, high = slot, cells
    while low <= high:
        count = (low + high) // 2
        keep_BTHW = mask_of_count(scene.z_BCTHW, count, setting.reference, setting.criterion)
        if _mse(scene.rebuild(keep_BTHW, setting), scene.x_BCTHW) <= setting.mse:
            best, high = keep_BTHW, count - 1
        else:
            low = count + 1
    return best


def search_blocks(scene: Scene, setting: Setting) -> Tensor:
    """The same search as the released code runs it: one after the other for each block of frames (here: slot)."""
    _, _, slots, h, w = scene.z_BCTHW.shape
    distance = pick("criterion", setting.criterion, CRITERIA)
    keep_BTHW = torch.ones_like(scene.z_BCTHW[:, :1, 0], dtype=torch.bool)
    held_BCHW = scene.z_BCTHW[:, :, 0]
    for t in range(1, slots):
        z_BCHW = scene.z_BCTHW[:, :, t]
        order = distance(z_BCHW, held_BCHW).flatten().argsort(descending=True, stable=True)
        kept_BHW = _search_slot(scene, setting, keep_BTHW, order, h, w)
        keep_BTHW = torch.cat([keep_BTHW, kept_BHW[:, None]], dim=1)
        held_BCHW = torch.where(kept_BHW[:, None], z_BCHW, held_BCHW)
    return keep_BTHW


def _search_slot(scene: Scene, setting: Setting, past_BTHW: Tensor, order: Tensor, h: int, w: int) -> Tensor:
    best = torch.ones(1, h, w, dtype=torch.bool, device=past_BTHW.device)
    low, high = max(1, h * w // 16), h * w
    while low <= high:
        count = (low + high) // 2
        kept = torch.zeros(h * w, dtype=torch.bool, device=past_BTHW.device)
        kept[order[:count]] = True
        x_BCTHW = scene.rebuild(torch.cat([past_BTHW, kept.view(1, 1, h, w)], dim=1), setting)
        fresh = x_BCTHW.shape[2] - scene.bench.tokenizer.spec.frames(past_BTHW.shape[1])
        truth = scene.x_BCTHW[:, :, : x_BCTHW.shape[2]]
        if _mse(x_BCTHW[:, :, -fresh:], truth[:, :, -fresh:]) <= setting.mse:
            best, high = kept.view(1, h, w), count - 1
        else:
            low = count + 1
    return best


def router(scene: Scene, setting: Setting) -> Tensor:
    """InfoTok's rule: one full-rate decode, its error pooled to the grid, budgets by error, cells by error.

    With L the mean error of a slot, w = L / mean(L) - 1 and base rate b, a slot keeps b (1 + s w) of its cells, where
    s = min(max w, 1/b - 1) / max w, within [1/16, 1]: those with the largest error. Slot 0 is kept whole here, and b
    is that of the other slots, so that the whole meets the budget.
    """
    _, _, t, h, w = scene.z_BCTHW.shape
    error = (scene.decode_full() - scene.x_BCTHW.float().clamp(-1, 1)).abs().mean(1, keepdim=True)
    error_THW = pixel_grid(error, (t, h, w))[0, 0]
    keep_THW = torch.ones_like(error_THW, dtype=torch.bool)
    if t > 1:
        base = min(max(budget(scene, setting) / (h * w) - 1, LEAST_RATIO) / (t - 1), 1.0)
        for k, ratio in enumerate(router_ratios(error_THW[1:].flatten(1).mean(1), base).tolist(), 1):
            keep_THW[k] = _largest(error_THW[k], round(ratio * h * w))
    return keep_THW[None]


def router_ratios(loss_N: Tensor, base: float) -> Tensor:
    """The part of each block that is kept: InfoTok's formula, strategy `elbo`."""
    weight_N = loss_N.double() / loss_N.double().mean().clamp_min(1e-12) - 1
    most = float(weight_N.max())
    scale = min(most, 1 / base - 1) / most if most > 0 else 0.0
    return (base * (1 + scale * weight_N)).clamp(LEAST_RATIO, 1)


RULES: dict[str, Rule] = {
    "full": full,
    "ours": ours,
    "hold": ours,
    "linear": ours,
    "random": random,
    "frame-skip": frame_skip,
    "pixel-l1": pixel_l1,
    "search": search,
    "search-blocks": search_blocks,
    "router": router,
}
FILL_OF = {"full": "hold", "hold": "hold", "linear": "linear"}  # rules with a fill of their own (full drops nothing)


def budget(scene: Scene, setting: Setting) -> int:
    """Cells to keep: the setting's rate, or as many as ours keeps of this clip."""
    cells = scene.z_BCTHW[:, 0].numel()
    if setting.rate is not None:
        return min(cells, max(scene.z_BCTHW[0, 0, 0].numel(), round(setting.rate * cells)))
    return int(ours(scene, Setting(rule="ours")).sum())


def mask_of_count(z_BCTHW: Tensor, count: int, reference: str = "last-kept", criterion: str = "latent-l1") -> Tensor:
    """The mask whose threshold keeps the most cells, but no more than `count`; slot 0 at least."""

    def mask(tau: float) -> Tensor:
        return keep_mask(z_BCTHW, MaskConfig(tau=tau, reference=reference, criterion=criterion))

    least = z_BCTHW[:, 0, 0].numel()
    found = smallest_tau(lambda tau: float(mask(tau).sum()), max(count, least), start=1.0)
    assert found is not None, "a high threshold keeps slot 0 alone"
    return mask(found.tau)


def _largest(score: Tensor, count: int) -> Tensor:
    keep = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
    keep[score.flatten().argsort(descending=True, stable=True)[:count]] = True
    return keep.view(score.shape)


def _mse(a: Tensor, b: Tensor) -> float:
    value = float((a.float().clamp(-1, 1) - b.float().clamp(-1, 1)).square().mean())
    return value if math.isfinite(value) else math.inf
