# SPDX-License-Identifier: Apache-2.0
"""The transformer of OmniTokenizer, with the peculiarities its weights were trained with.

Kept on purpose, since published weights expect them: keys and values come from tokens that are not normalised; the
depthwise convolution before attention over time reads tokens in the order (b h w) t as if it were b t h w; biases that
checkpoints carry for attention are never added.

Legend: B batch, T slots, H W grid, N tokens of a row, D width, E width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 8.0  # of the products of unit-length queries and keys


class Norm(nn.Module):
    """Layer norm with a gain and no offset; checkpoints have the offset as a constant of zeros."""

    beta: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.register_buffer("beta", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.gamma, self.beta)


class PositionConv(nn.Module):
    """Depthwise 3x3x3, zeros outside; causal: two frames of zeros before the first."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.dsconv = nn.Conv3d(width, width, 3, groups=width)

    def forward(self, x: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
        v_BDTHW = x.reshape(*shape, -1).permute(0, 4, 1, 2, 3)
        time = (2, 0) if self.causal else (1, 1)
        y_BDTHW = self.dsconv(F.pad(v_BDTHW, (1, 1, 1, 1, *time)))
        return y_BDTHW.permute(0, 2, 3, 4, 1).reshape(x.shape)


class Attention(nn.Module):
    """Over all tokens of a row; queries and keys of unit length."""

    def __init__(self, width: int, heads: int, head_width: int, *, causal: bool, rope: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.rope = heads, causal, rope
        inner = heads * head_width
        self.norm = Norm(width)
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_kv = nn.Linear(width, 2 * inner, bias=False)
        self.q_scale = nn.Parameter(torch.ones(head_width))
        self.k_scale = nn.Parameter(torch.ones(head_width))
        self.to_out = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.to_q(self.norm(x)), *self.to_kv(x).chunk(2, dim=-1))
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)  # [rows, heads, N, E]
        if self.rope:
            cosine, sine = rope_2d(x.shape[1], q.shape[-1], x.device)
            q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        q = F.normalize(q, dim=-1) * self.q_scale
        k = F.normalize(k, dim=-1) * self.k_scale
        h = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=SCALE)
        return self.to_out(h.transpose(1, 2).flatten(2))


def rope_2d(tokens: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine [N, E/2] for a square of tokens; pairs of features turn by x and by y in turn."""
    side = int(tokens**0.5)
    place = torch.arange(tokens, device=device)
    speed = 10000.0 ** -(torch.arange(0, width, 4, device=device)[: width // 4].float() / width)
    x, y = torch.outer((place % side).float(), speed), torch.outer((place // side).float(), speed)
    angle = torch.stack([x, y], dim=-1).flatten(1)
    return angle.cos(), angle.sin()


def rotate(h: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    a, b = h.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cosine - b * sine, a * sine + b * cosine], dim=-1).flatten(-2).to(h.dtype)


class WindowAttention(nn.Module):
    """Over windows of a square of tokens, with a learnt bias for every distance."""

    index: Tensor

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = Norm(width)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        place = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None] + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        w, side = self.window, int(x.shape[1] ** 0.5)
        n = side // w
        tiles = self.norm(x).reshape(-1, n, w, n, w, x.shape[-1]).transpose(2, 3).reshape(-1, w * w, x.shape[-1])
        q, k, v = self.qkv(tiles).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.relative_position_bias_table[self.index].permute(2, 0, 1)[None].to(q.dtype)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        return self.proj(h).reshape(-1, n, n, w, w, x.shape[-1]).transpose(2, 3).reshape(x.shape)


class GatedGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return F.gelu(gate) * value


def feed_forward(width: int, mult: float) -> nn.Sequential:
    inner = int(mult * (2 / 3) * width)
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 2 * inner, bias=False),
        GatedGelu(),
        nn.Identity(),  # dropout stands here in training, so the last layer has the name 4
        nn.Linear(inner, width, bias=False),
    )


class Transformer(nn.Module):
    """`blocks` has a letter a layer: t looks at all tokens of a row, w at windows."""

    def __init__(
        self, blocks: str, *, width: int, heads: int, head_width: int, ff_mult: float, window: int, causal: bool,
        causal_conv: bool, rope: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = nn.ModuleList()
        for letter in blocks:
            layer = nn.ModuleDict({"3": feed_forward(width, ff_mult)})
            if letter == "t":
                layer["0"] = PositionConv(width, causal=causal_conv)
                layer["1"] = Attention(width, heads, head_width, causal=causal, rope=rope)
            else:
                layer["1"] = WindowAttention(width, heads, window)
            self.layers.append(layer)
        self.norm_out = Norm(width)

    def forward(self, x: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
        for layer in self.layers:
            parts: dict[str, nn.Module] = dict(layer.items())  # type: ignore[operator]
            if "0" in parts:
                x = parts["0"](x, shape) + x
            x = parts["1"](x) + x
            x = parts["3"](x) + x
        return self.norm_out(x)
