# SPDX-License-Identifier: Apache-2.0
"""The next slots of packed clips: a small transformer over the cells of the past, however many each clip has.

At every place of the grid one cell is the last: in dense latents that of the last slot, among tokens the one kept last.
What becomes of a place is read there, as a change of that cell. So nothing is added to the sequence, and a network
that changes nothing repeats the last slot.

Legend: N cells of all clips, D width, B clips, K slots to predict, C channels, H W grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.pack import Packed, RopeConfig, attend, rope_angles, rotate


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    channels: int
    future: int  # slots to predict
    width: int = 512
    depth: int = 6
    heads: int = 8
    attention: str = "nested"
    dropout: float = 0.0


class WorldModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, D = config, config.width
        self.rope = RopeConfig(head_dim=D // config.heads, base=100.0)  # grids are small
        self.embed, self.tell = nn.Linear(config.channels, D), nn.Linear(2, D)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, config.future * config.channels)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, past: Packed) -> Tensor:
        """[B, C, K, H, W]; all clips have one grid."""
        t, y, x = past.positions.unbind(1)
        slots_N = past.expand(past.grids[:, 0])
        last_N = t + past.run_lengths == slots_N
        told = torch.stack(
            [(slots_N - t).float().log2(), last_N.float()], dim=1
        )  # how old a cell is; whether it is last
        h_ND = self.embed(past.values) + self.tell(told)
        angles = rope_angles(past.positions, self.rope)
        for block in self.blocks:
            h_ND = block(h_ND, angles, past)
        change = self.head(self.norm(h_ND[last_N])).unflatten(1, (self.config.future, -1))
        found = past.values[last_N, None] + change
        _, H, W = past.grids[0].tolist()
        z_BHWKC = found.new_zeros(len(past), H, W, *found.shape[1:])
        z_BHWKC[past.clip_ids[last_N], y[last_N], x[last_N]] = found
        return z_BHWKC.permute(0, 4, 3, 1, 2)


class Block(nn.Module):
    """Attention among the cells of a clip, and a feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.heads, self.attention = config.width, config.heads, config.attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, h_ND: Tensor, angles: Tensor, past: Packed) -> Tensor:
        q, k, v = self.qkv(self.norm1(h_ND)).unflatten(1, (3, self.heads, -1)).unbind(1)
        seen = attend(rotate(q, angles), rotate(k, angles), v.contiguous(), past, how=self.attention)
        h_ND = h_ND + self.dropout(self.proj(seen.flatten(1)))
        return h_ND + self.dropout(self.down(F.gelu(self.up(self.norm2(h_ND)))))
