# SPDX-License-Identifier: Apache-2.0
"""FVD, and KVD with an interval: distances between the I3D features of two sets of videos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inlay.errors import ShapeError, UsageError
from inlay.measure.base import MeasureConfig, full_precision, recall
from inlay.measure.weights import find_weights, load_network

Triple = tuple[int, int, int]
ONE: Triple = (1, 1, 1)
MIN_FRAMES = 9  # fewer leave the last average pool, two steps long, with one step
SIDE = 224
SUBSETS = 1000


def same_pad(x: Tensor, kernel: Triple, stride: Triple, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME: as much on both sides as makes the output ceil(n / stride), the odd one at the end."""
    pad: list[int] = []
    for size, k, s in zip(reversed(x.shape[2:]), reversed(kernel), reversed(stride), strict=True):
        total = max((-(-size // s) - 1) * s + k - size, 0)
        pad += [total // 2, total - total // 2]
    return F.pad(x, pad, value=value)


class Unit(nn.Module):
    """Convolution, batch normalisation by stored statistics without a scale, ReLU."""

    mean: Tensor
    var: Tensor

    def __init__(self, before: int, after: int, kernel: Triple = ONE, stride: Triple = ONE) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.weight = nn.Parameter(torch.empty(after, before, *kernel))
        self.bias = nn.Parameter(torch.zeros(after))
        self.register_buffer("mean", torch.zeros(after))
        self.register_buffer("var", torch.ones(after))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv3d(same_pad(x, self.kernel, self.stride), self.weight, stride=self.stride)
        return F.relu(F.batch_norm(x, self.mean, self.var, bias=self.bias, eps=1e-3))


class Pool(nn.Module):
    def __init__(self, kernel: Triple, stride: Triple) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool3d(same_pad(x, self.kernel, self.stride, -torch.inf), self.kernel, self.stride)


class Mixed(nn.Module):
    """Four branches side by side: 1x1, 1x1 then 3x3 twice over, and pool then 1x1."""

    def __init__(self, before: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        b0, b1a, b1b, b2a, b2b, b3 = widths
        self.b0 = Unit(before, b0)
        self.b1a, self.b1b = Unit(before, b1a), Unit(b1a, b1b, (3, 3, 3))
        self.b2a, self.b2b = Unit(before, b2a), Unit(b2a, b2b, (3, 3, 3))
        self.pool, self.b3 = Pool((3, 3, 3), ONE), Unit(before, b3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3(self.pool(x))], 1)


MIXED = {
    "Mixed_3b": (192, (64, 96, 128, 16, 32, 32)),
    "Mixed_3c": (256, (128, 128, 192, 32, 96, 64)),
    "Mixed_4b": (480, (192, 96, 208, 16, 48, 64)),
    "Mixed_4c": (512, (160, 112, 224, 24, 64, 64)),
    "Mixed_4d": (512, (128, 128, 256, 24, 64, 64)),
    "Mixed_4e": (512, (112, 144, 288, 32, 64, 64)),
    "Mixed_4f": (528, (256, 160, 320, 32, 128, 128)),
    "Mixed_5b": (832, (256, 160, 320, 32, 128, 128)),
    "Mixed_5c": (832, (384, 192, 384, 48, 128, 128)),
}
POOL_BEFORE = {"Mixed_4b": Pool((3, 3, 3), (2, 2, 2)), "Mixed_5b": Pool((2, 2, 2), (2, 2, 2))}


class I3d(nn.Module):
    """Clips [B, 3, T, 224, 224] in [-1, 1], T >= 9, to logits [B, 400]."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv3d_1a_7x7 = Unit(3, 64, (7, 7, 7), (2, 2, 2))
        self.Conv3d_2b_1x1 = Unit(64, 64)
        self.Conv3d_2c_3x3 = Unit(64, 192, (3, 3, 3))
        self.pool = Pool((1, 3, 3), (1, 2, 2))
        self.body = nn.ModuleDict({name: Mixed(before, widths) for name, (before, widths) in MIXED.items()})
        self.Logits = nn.Conv3d(1024, 400, 1)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        x = self.pool(self.Conv3d_1a_7x7(x_BCTHW))
        x = self.pool(self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x)))
        for name, block in self.body.items():
            if name in POOL_BEFORE:
                x = POOL_BEFORE[name](x)
            x = block(x)
        return self.Logits(F.avg_pool3d(x, (2, 7, 7), 1)).mean((2, 3, 4))


@lru_cache(maxsize=2)
def load_i3d(path: Path, device: str = "cpu") -> I3d:
    """The network with its weights, frozen."""
    net = I3d()
    load_network(net, path)
    return net.eval().requires_grad_(False).to(device)


class FeatureGauge:
    """The I3D features of both videos, from their first frames."""

    def __init__(self, config: MeasureConfig) -> None:
        self.net = load_i3d(find_weights("i3d"), config.device)
        self.device, self.limit = config.device, config.fvd_frames
        self.reference: list[Tensor] = []  # pieces [3, T, 224, 224]
        self.other: list[Tensor] = []
        self.source: Tensor | None = None  # the reference as it came, where it came in one piece
        self.frames = 0

    def update(self, reference_THWC: Tensor, other_THWC: Tensor) -> None:
        left = self.limit - self.frames
        if left <= 0:
            return
        self.source = None if self.frames or len(reference_THWC) > left else reference_THWC
        self.reference.append(crop_224(reference_THWC[:left].to(self.device)))
        self.other.append(crop_224(other_THWC[:left].to(self.device)))
        self.frames += self.reference[-1].shape[1]

    def finish(self) -> dict[str, Tensor]:
        """`features` [2, 400] float64: of the reference and of the other."""
        if self.frames < MIN_FRAMES:
            raise ShapeError(f"I3D reads clips of at least {MIN_FRAMES} frames; this one has {self.frames}")
        with torch.no_grad(), full_precision(self.device):
            # one at a time: a batch of both would double the memory of a long video
            other = _row(self.net, self.other)
            if self.source is None:
                reference = _row(self.net, self.reference)
            else:  # one reference meets many others
                reference = recall(self.source, self.net, lambda: _row(self.net, self.reference))
        return {"features": torch.stack([reference, other]).double()}


def _row(net: I3d, pieces: Sequence[Tensor]) -> Tensor:
    """[400] the feature of one clip."""
    return net(torch.cat(list(pieces), 1)[None])[0].cpu()


def crop_224(x_THWC: Tensor) -> Tensor:
    """uint8 frames -> [3, T, 224, 224] in [-1, 1]: short side to 224 (bilinear, no antialias), centre crop."""
    _, height, width, _ = x_THWC.shape
    scale = SIDE / min(height, width)
    size = (SIDE, math.ceil(width * scale)) if height < width else (math.ceil(height * scale), SIDE)
    pieces = []
    for x in x_THWC.split(max(1, 2**22 // (height * width))):
        x_TCHW = F.interpolate(x.permute(0, 3, 1, 2).float(), size, mode="bilinear", align_corners=False)
        top, left = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
        pieces.append(x_TCHW[..., top : top + SIDE, left : left + SIDE].div(127.5).sub(1))
    return torch.cat(pieces).permute(1, 0, 2, 3)


def frechet_distance(a_ND: Tensor, b_MD: Tensor) -> float:
    """Squared Frechet distance of the Gaussians fitted to two sets of features, in float64.

    With centred rows A, B the trace of (S_a S_b)^(1/2) is the sum of the singular values of A B^T / sqrt((n-1)(m-1)):
    no matrix root, no squaring, and exact where fewer clips than features leave the covariances without full rank.
    """
    a_ND, b_MD = a_ND.double(), b_MD.double()
    if min(len(a_ND), len(b_MD)) < 2:
        raise UsageError(f"FVD compares sets of at least 2 videos; got {len(a_ND)} and {len(b_MD)}")
    root_a, root_b = _root(a_ND), _root(b_MD)
    cross = torch.linalg.svdvals(root_a @ root_b.T).sum()
    spread = root_a.square().sum() + root_b.square().sum() - 2 * cross
    offset = (a_ND.mean(0) - b_MD.mean(0)).square().sum()
    return max(0.0, float(offset + spread))


def _root(x_ND: Tensor) -> Tensor:
    """R with R^T R the covariance, of no more rows than needed."""
    centred = (x_ND - x_ND.mean(0)) / math.sqrt(len(x_ND) - 1)
    return torch.linalg.qr(centred, mode="r").R if len(x_ND) > x_ND.shape[1] else centred


def kernel_distance(a_ND: Tensor, b_MD: Tensor, *, paired: bool = False) -> float:
    """Squared maximum mean discrepancy under the kernel (x.y / D + 1)^3, unbiased (so it can fall below zero).

    paired: row i of both sets comes from the same clip, and the cross terms (i, i) are left out; with them in, sets
    that depend on each other pair by pair would look closer than they are. Two equal sets then give exactly 0.
    """
    a_ND, b_MD = a_ND.double(), b_MD.double()
    n, m = len(a_ND), len(b_MD)
    if min(n, m) < 2:
        raise UsageError(f"KVD compares sets of at least 2 videos; got {n} and {m}")
    if paired and n != m:
        raise UsageError(f"paired sets have as many videos each; got {n} and {m}")
    aa, bb, ab = _kernel(a_ND, a_ND), _kernel(b_MD, b_MD), _kernel(a_ND, b_MD)
    own = _off_diagonal(aa) / (n * (n - 1)) + _off_diagonal(bb) / (m * (m - 1))
    across = _off_diagonal(ab) / (n * (n - 1)) if paired else ab.sum() / (n * m)
    return float(own - 2 * across)


def _kernel(a_ND: Tensor, b_MD: Tensor) -> Tensor:
    return (a_ND @ b_MD.T / a_ND.shape[1] + 1) ** 3


def _off_diagonal(k_NN: Tensor) -> Tensor:
    return k_NN.sum() - k_NN.diagonal().sum()


def kernel_interval(a_ND: Tensor, b_ND: Tensor, *, subsets: int = SUBSETS, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the paired distance from half-samples.

    Halves are drawn without replacement: a bootstrap would repeat clips, and a repeated clip is a false match. The
    spread of half-samples about the whole is the spread of the whole about the truth (delete-half jackknife).
    """
    n = len(a_ND)
    if n < 4:
        raise UsageError(f"an interval of KVD needs at least 4 videos; got {n}")
    a_ND, b_ND = a_ND.double(), b_ND.double()
    k_NN = _kernel(a_ND, a_ND) + _kernel(b_ND, b_ND) - _kernel(a_ND, b_ND) - _kernel(a_ND, b_ND).T
    k_NN.fill_diagonal_(0)
    half = n // 2
    random = torch.Generator().manual_seed(seed)
    chosen_SN = torch.zeros(subsets, n, dtype=torch.float64)
    order_SN = torch.rand(subsets, n, generator=random).argsort(1)
    chosen_SN.scatter_(1, order_SN[:, :half], 1.0)
    values_S = torch.einsum("sn,nm,sm->s", chosen_SN, k_NN.cpu(), chosen_SN) / (half * (half - 1))
    scale = math.sqrt(half / (n - half))
    whole = float(k_NN.sum()) / (n * (n - 1))
    low, high = torch.quantile(values_S, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return whole + scale * (low - whole), whole + scale * (high - whole)


def _sets(readings: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    both_N2D = torch.stack(list(readings))
    return both_N2D[:, 0], both_N2D[:, 1]


def summarise_fvd(readings: Sequence[Tensor], config: MeasureConfig) -> tuple[float, None, None]:
    return frechet_distance(*_sets(readings)), None, None


def summarise_kvd(readings: Sequence[Tensor], config: MeasureConfig) -> tuple[float, float | None, float | None]:
    a_ND, b_ND = _sets(readings)
    value = kernel_distance(a_ND, b_ND, paired=True)
    if len(a_ND) < 4:
        return value, None, None
    return value, *kernel_interval(a_ND, b_ND, seed=config.seed)
