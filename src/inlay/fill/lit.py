# SPDX-License-Identifier: Apache-2.0
"""LIT, the latent inpainting transformer: predicts the dropped cells from the kept ones.

    paper   z * mask ── InProj ── (6 + 3) x [spatial block, temporal block] ── OutProj ──► every cell anew

    plus    hold, linear, mask, age, time to go, tau ── InProj ── n x [conv, window block] ── OutProj
            ──► hold + residual where a cell was dropped; kept cells pass through untouched

Legend: B batch, C latent channels, T slots, H W grid, D width, L tokens in one attention, E head size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.errors import ConfigError, pick
from inlay.fill.plain import age, between, check_pair, hold, until_kept
from inlay.kernels import lit as kernels
from inlay.kernels import may_run, windows
from inlay.kernels.tiles import fade_to_edges, tiled
from inlay.weightfile import Weights, fill_module, load_weights, save_weights

OVERLAP = 8  # cells that neighbouring windows share on a grid larger than the network was trained on
FARTHEST = 1000.0  # deviations: a tau beyond this keeps nothing, and says no more to a network


@dataclass(frozen=True, kw_only=True)
class LitConfig:
    """The shape of a LIT; stored beside its weights."""

    kind: str = "plus"  # which network: paper or plus
    channels: int = 16
    width: int = 256
    heads: int = 4
    blocks: int = 6  # paper: pairs of spatial and temporal blocks, main and refinement together
    expansion: int = 4
    window: int = 8  # plus: cells a side of an attention window; every slot is in it
    grid: int = 32  # largest grid run in one piece; training of `paper` sets it

    def __post_init__(self) -> None:
        pick("LIT", self.kind, LIT_KINDS)
        if self.width % (8 * self.heads):
            raise ConfigError(f"width {self.width} over {self.heads} heads must give a head size divisible by 8")
        if self.grid <= OVERLAP:
            raise ConfigError(f"grid must be larger than the overlap of {OVERLAP} cells; got {self.grid}")


def paper() -> LitConfig:
    """The text's sizes: 6 + 3 pairs, D = 192, 8 heads. They give 8.0 M parameters, not the 2.7 M it states."""
    return LitConfig(kind="paper", width=192, heads=8, blocks=9)


def paper_small() -> LitConfig:
    """The stated 2.7 M: three pairs of the same blocks."""
    return replace(paper(), blocks=3)


def plus() -> LitConfig:
    """Ours: windows that see all slots at once, heads of 64, a residual to hold."""
    return LitConfig(kind="plus", width=256, heads=4, blocks=6, grid=64)


class Lit(nn.Module, ABC):
    """What both kinds share: the latent statistics, the check of shapes, and tiles on large grids."""

    latent_mean: Tensor
    latent_std: Tensor

    def __init__(self, config: LitConfig) -> None:
        super().__init__()
        self.config = config
        self.weight_hash = ""
        self.backbone_hash = ""  # weights of the backbone it was trained for; empty: not known
        self.register_buffer("latent_mean", torch.zeros(config.channels))
        self.register_buffer("latent_std", torch.ones(config.channels))

    @staticmethod
    def build(config: LitConfig) -> Lit:
        return pick("LIT", config.kind, LIT_KINDS)(config)

    def forward(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau: Tensor | float = 0.0) -> Tensor:
        """Dense latents; values of dropped cells in `z` are never read. `tau` is the threshold of the mask."""
        check_pair(z_BCTHW, keep_BTHW)
        tau_B = torch.as_tensor(tau, device=z_BCTHW.device, dtype=torch.float32).expand(z_BCTHW.shape[0])
        tau_B = tau_B.minimum(FARTHEST * self.latent_std.float().mean())  # a file may say that tau is infinite

        def part(rows: slice, columns: slice) -> Tensor:
            return self.inlay(z_BCTHW[..., rows, columns], keep_BTHW[..., rows, columns], tau_B)

        return tiled(part, z_BCTHW, tile=self.config.grid, overlap=OVERLAP, ramp=fade_to_edges)

    @abstractmethod
    def inlay(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor) -> Tensor:
        """The fill of a grid that fits in one piece."""

    def trained_on(self, cells: int) -> None:
        """Take note of the side of the grids it learns on."""

    def set_statistics(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Those of the backbone whose latents it fills."""
        if len(mean) != self.config.channels:
            raise ConfigError(
                f"this LIT is for latents of {self.config.channels} channels, and the backbone's have {len(mean)}; "
                "build it with LitConfig(channels=...) of the backbone's spec"
            )
        self.latent_mean.copy_(torch.tensor(mean))
        self.latent_std.copy_(torch.tensor(std))


class PaperLit(Lit):
    """As in the paper: dropped cells enter as zeros, and all cells are predicted anew."""

    def __init__(self, config: LitConfig) -> None:
        super().__init__(config)
        D, C = config.width, config.channels
        self.in_proj = nn.Linear(C, D)
        self.spatial = nn.ModuleList([AxialBlock(config) for _ in range(config.blocks)])
        self.temporal = nn.ModuleList([AxialBlock(config) for _ in range(config.blocks)])
        self.out_proj = nn.Linear(D, C)

    def forward(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau: Tensor | float = 0.0) -> Tensor:
        z_masked = torch.where(keep_BTHW[:, None], z_BCTHW, torch.zeros_like(z_BCTHW))
        return super().forward(z_masked, keep_BTHW, tau)

    def trained_on(self, cells: int) -> None:
        """Attends over the whole grid, so on a larger one than it has seen it is off by dBs: that runs in windows."""
        self.config = replace(self.config, grid=max(cells, OVERLAP + 1))

    def inlay(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor) -> Tensor:
        B, _, T, H, W = z_BCTHW.shape
        E = self.config.width // self.config.heads
        space = rope_tables((H, W), (E // 2, E // 2), z_BCTHW)
        time = rope_tables((T,), (E,), z_BCTHW)
        h = self.in_proj(z_BCTHW.permute(0, 2, 3, 4, 1)).reshape(B * T, H * W, -1)
        for spatial, temporal in zip(self.spatial, self.temporal, strict=True):
            h = spatial(h, space)
            h = h.view(B, T, H * W, -1).transpose(1, 2).reshape(B * H * W, T, -1)
            h = temporal(h, time)
            h = h.view(B, H * W, T, -1).transpose(1, 2).reshape(B * T, H * W, -1)
        return self.out_proj(h).view(B, T, H, W, -1).permute(0, 4, 1, 2, 3)


class PlusLit(Lit):
    """Ours: starts from hold, reads what the mask tells, changes dropped cells only."""

    def __init__(self, config: LitConfig) -> None:
        super().__init__(config)
        D, C = config.width, config.channels
        self.in_proj = nn.Linear(2 * C + 4, D)
        self.blocks = nn.ModuleList([WindowBlock(config, shifted=bool(i % 2)) for i in range(config.blocks)])
        self.norm_out = nn.LayerNorm(D)
        self.out_proj = nn.Linear(D, C)
        nn.init.zeros_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)
        self.tables: dict[Any, tuple[Tensor, Tensor]] = {}  # rotations the kernels have used before

    def forward(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau: Tensor | float = 0.0) -> Tensor:
        return torch.where(keep_BTHW[:, None], z_BCTHW, super().forward(z_BCTHW, keep_BTHW, tau))

    def inlay(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor) -> Tensor:
        if may_run("lit", tensors=(z_BCTHW,)):
            from inlay.kernels import lit_ends_triton as ends  # Triton is imported when it first runs

            told = ends.features(z_BCTHW, keep_BTHW, tau_B, self.latent_mean, self.latent_std)
            change = self.out_proj(self.run_blocks(self.in_proj(told)))
            return ends.finish(z_BCTHW, keep_BTHW, change, self.latent_std)
        if len(z_BCTHW) > 1 and may_run("int8", tensors=(z_BCTHW,)):  # a clip is to be the same in any company
            clips = zip(z_BCTHW.split(1), keep_BTHW.split(1), tau_B.split(1), strict=True)
            return torch.cat([self.inlay(*clip) for clip in clips])
        dropped_HW = ~keep_BTHW.all(1).all(0) if may_run("windows", tensors=(z_BCTHW,)) else None
        if dropped_HW is not None and not dropped_HW.any():
            return z_BCTHW
        held = hold(z_BCTHW, keep_BTHW)
        h_BTHWD = self.in_proj(self.features(z_BCTHW, held, keep_BTHW, tau_B))
        h_BTHWD = self.run_blocks(h_BTHWD, dropped_HW)
        change = self.out_proj(h_BTHWD).permute(0, 4, 1, 2, 3)
        change = change * self.latent_std.to(change.dtype).view(1, -1, 1, 1, 1)
        return held + change.to(held.dtype)

    def run_blocks(self, h_BTHWD: Tensor, wanted_HW: Tensor | None = None) -> Tensor:
        """All blocks and the last norm, by the kernels where they may run; a CPU computes what `wanted` depends on."""
        c, T = self.config, h_BTHWD.shape[1]
        E = c.width // c.heads
        sizes, parts = (T, c.window, c.window), (E // 4, 3 * E // 8, 3 * E // 8)
        if kernels.fits(c.width, c.heads) and may_run("lit", tensors=(h_BTHWD,)):
            key = (T, h_BTHWD.device)
            if key not in self.tables:
                self.tables[key] = rope_tables(sizes, parts, h_BTHWD.float())
            return kernels.window_blocks(self.blocks, self.norm_out, h_BTHWD, self.tables[key])
        rope = rope_tables(sizes, parts, h_BTHWD)
        blocks = [block for block in self.blocks if isinstance(block, WindowBlock)]
        asked = [None] * len(blocks) if wanted_HW is None else windows.asked_of(blocks, wanted_HW)
        for block, asked_HW in zip(blocks, asked, strict=True):
            h_BTHWD = block(h_BTHWD, rope, asked_HW)
        return self.norm_out(h_BTHWD)

    def features(self, z_BCTHW: Tensor, held: Tensor, keep_BTHW: Tensor, tau_B: Tensor) -> Tensor:
        """[B, T, H, W, 2C + 4]: both plain fills, normalised, and what the mask tells."""
        mean, std = (s.to(z_BCTHW.dtype).view(1, -1, 1, 1, 1) for s in (self.latent_mean, self.latent_std))
        gone, to_go = age(keep_BTHW), until_kept(keep_BTHW)
        drawn = between(z_BCTHW, keep_BTHW, held, gone, to_go)
        told = torch.stack([
            keep_BTHW.to(z_BCTHW.dtype),
            gone.to(z_BCTHW.dtype) / 4,
            to_go.to(z_BCTHW.dtype) / 4,
            (tau_B / self.latent_std.mean()).to(z_BCTHW.dtype).view(-1, 1, 1, 1).expand(keep_BTHW.shape),
        ], dim=1)  # fmt: skip
        return torch.cat([(held - mean) / std, (drawn - mean) / std, told], dim=1).permute(0, 2, 3, 4, 1)


LIT_KINDS: dict[str, Callable[[LitConfig], Lit]] = {"paper": PaperLit, "plus": PlusLit}


class AxialBlock(nn.Module):
    """Pre-LN attention along one axis and a feed-forward: Equations 2 and 3 of the paper."""

    def __init__(self, config: LitConfig) -> None:
        super().__init__()
        D = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, config.expansion * D), nn.Linear(config.expansion * D, D)

    def forward(self, h_NLD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        if may_run("windows", tensors=(h_NLD,)):
            return windows.some_rows(lambda part: self.whole(part, rope), h_NLD)
        return self.whole(h_NLD, rope)

    def whole(self, h_NLD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """All rows at once."""
        h_NLD = h_NLD + self.proj(attend(self.qkv(self.norm1(h_NLD)), self.heads, rope))
        return h_NLD + self.down(F.gelu(self.up(self.norm2(h_NLD))))


class WindowBlock(nn.Module):
    """A 3x3 depthwise conv for the neighbourhood, attention in windows over all slots, a feed-forward."""

    def __init__(self, config: LitConfig, *, shifted: bool) -> None:
        super().__init__()
        D = config.width
        self.heads, self.window = config.heads, config.window
        self.offset = config.window // 2 if shifted else 0
        self.near = nn.Conv2d(D, D, 3, padding=1, groups=D)
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, config.expansion * D), nn.Linear(config.expansion * D, D)

    def forward(self, h_BTHWD: Tensor, rope: tuple[Tensor, Tensor], asked_HW: Tensor | None = None) -> Tensor:
        if may_run("windows", tensors=(h_BTHWD,)):
            return windows.window_block(self, h_BTHWD, rope, asked_HW)
        return self.whole(h_BTHWD, rope)

    def whole(self, h_BTHWD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """All windows at once."""
        B, T = h_BTHWD.shape[:2]
        near = self.near(h_BTHWD.flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        h_BTHWD = h_BTHWD + near.unflatten(0, (B, T))
        h_BTHWD = h_BTHWD + self.proj(self.attend_windows(self.qkv(self.norm1(h_BTHWD)), rope))
        return h_BTHWD + self.down(F.gelu(self.up(self.norm2(h_BTHWD))))

    def attend_windows(self, qkv_BTHWD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Border cells are repeated outward until windows fit, so any grid works and nothing needs a mask."""
        B, T, H, W, _ = qkv_BTHWD.shape
        s, o = self.window, self.offset
        padded = repeat_edges(repeat_edges(qkv_BTHWD, 2, o, -(H + o) % s), 3, o, -(W + o) % s)
        h, w = padded.shape[2] // s, padded.shape[3] // s
        tokens = padded.reshape(B, T, h, s, w, s, -1).permute(0, 2, 4, 1, 3, 5, 6).reshape(B * h * w, T * s * s, -1)
        out = attend(tokens, self.heads, rope)
        out = out.view(B, h, w, T, s, s, -1).permute(0, 3, 1, 4, 2, 5, 6).reshape(B, T, h * s, w * s, -1)
        return out[:, :, o : o + H, o : o + W]


def attend(qkv_NLD: Tensor, heads: int, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Multi-head attention over L with rotary positions; [N, L, 3D] to [N, L, D]."""
    q, k, v = qkv_NLD.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # each [N, heads, L, E]
    out = F.scaled_dot_product_attention(rotate(q, rope), rotate(k, rope), v)
    return out.transpose(1, 2).flatten(2)


def rope_tables(sizes: tuple[int, ...], parts: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [L, E/2] for a row-major grid; each axis turns its own part of the head."""
    angles = []
    for axis, (size, part) in enumerate(zip(sizes, parts, strict=True)):
        rate = 100.0 ** -(torch.arange(part // 2, device=like.device, dtype=torch.float32) / max(part // 2, 1))
        angle = torch.arange(size, device=like.device, dtype=torch.float32)[:, None] * rate
        shape = [1] * len(sizes) + [part // 2]
        shape[axis] = size
        angles.append(angle.view(shape).expand(*sizes, part // 2))
    table = torch.cat(angles, dim=-1).flatten(0, len(sizes) - 1)
    return table.cos().to(like.dtype), table.sin().to(like.dtype)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Turns the pairs (i, i + E/2) of each head by its position's angles."""
    cos, sin = rope
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def repeat_edges(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Repeats the first and last slice along `dim`."""
    if not before and not after:
        return x
    shape = list(x.shape)
    shape[dim] = before
    first = x.narrow(dim, 0, 1).expand(shape)
    shape[dim] = after
    last = x.narrow(dim, x.shape[dim] - 1, 1).expand(shape)
    return torch.cat([first, x, last], dim=dim)


def save_lit(path: Path, lit: Lit, meta: dict[str, Any] | None = None, *, stored: str = "int8") -> None:
    """Weights, configuration and whatever else is worth knowing, in one file."""
    save_weights(path, lit.state_dict(), {**(meta or {}), "config": asdict(lit.config)}, stored=stored)


def load_lit(path: Path) -> Lit:
    file: Weights = load_weights(path)
    lit = Lit.build(LitConfig(**file.meta.get("config", {})))
    fill_module(lit, file, source=str(path))
    lit.weight_hash, lit.backbone_hash = file.hash, str(file.meta.get("backbone_hash", ""))
    return lit.eval().requires_grad_(False)
