# SPDX-License-Identifier: Apache-2.0
"""Class scores of a packed batch of cells: a small transformer that does not care how many cells a clip has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.pack import Packed, RopeConfig, attend, rope_angles, rotate


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    channels: int
    classes: int
    width: int = 64
    depth: int = 3
    heads: int = 2
    attention: str = "nested"
    run_lengths: bool = True  # tell each cell for how many slots it stands


class Classifier(nn.Module):
    """Cells are embedded, see the cells of their own clip, and are averaged clip by clip."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, D = config, config.width
        self.rope = RopeConfig(head_dim=D // config.heads, base=100.0)  # grids are small, so slow turns say nothing
        self.embed = nn.Linear(config.channels, D)
        self.run = nn.Linear(3, D)
        self.blocks = nn.ModuleList(Block(D, config.heads, config.attention) for _ in range(config.depth))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, config.classes)

    def forward(self, batch: Packed) -> Tensor:
        x_ND = self.embed(batch.values)
        if self.config.run_lengths:
            x_ND = x_ND + self.run(run_features(batch).to(x_ND.dtype))
        angles = rope_angles(batch.positions, self.rope)
        for block in self.blocks:
            x_ND = block(x_ND, angles, batch)
        return self.head(batch.mean(self.norm(x_ND)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_ND: Tensor, angles: Tensor, batch: Packed) -> Tensor:
        q, k, v = self.qkv(self.norm1(x_ND)).unflatten(1, (3, self.heads, -1)).unbind(1)
        seen = attend(rotate(q, angles), rotate(k, angles), v.contiguous(), batch, how=self.attention)
        x_ND = x_ND + self.proj(seen.flatten(1))
        return x_ND + self.down(F.gelu(self.up(self.norm2(x_ND))))


def run_features(batch: Packed) -> Tensor:
    """[N, 3]: how long a cell stands, in doublings; whether it opens the clip; whether it lasts to the end."""
    t_N, run_N = batch.positions[:, 0], batch.run_lengths
    slots_N = batch.expand(batch.grids[:, 0])
    return torch.stack([run_N.float().log2(), (t_N == 0).float(), (t_N + run_N == slots_N).float()], dim=1)
