# SPDX-License-Identifier: Apache-2.0
"""Optimisers, schedule and averaged weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inlay.train import Muon, OptimConfig
from inlay.train.checkpoint import pack_optimizers, unpack_optimizers
from inlay.train.optim import average, make_optimizers, muon_names, orthogonal, rate_at


@pytest.mark.parametrize("shape", [(3, 48, 48), (2, 32, 96), (1, 96, 32)])
def test_newton_schulz_balances_all_directions(shape: tuple[int, ...]) -> None:
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    g = left @ torch.diag(torch.linspace(0.05, 1, left.shape[-1])) @ right
    values = torch.linalg.svdvals(orthogonal(g).float())
    assert values.min() > 0.6
    assert values.max() < 1.3
    whole = orthogonal(g)
    one = orthogonal(g[:1])
    assert torch.equal(whole[:1], one), "a matrix does not depend on its neighbours in the batch"


def quadratic(make, rate: float, steps: int = 50) -> float:  # type: ignore[no-untyped-def]
    """Fit a matrix seen through directions that differ a hundredfold in strength; the loss that is left."""
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(32, 32)).Q
    seen_through = turn @ torch.diag(torch.logspace(0, -2, 32)) @ turn.T
    target, weight = torch.randn(32, 32), nn.Parameter(torch.zeros(32, 32))
    optimizer = make([weight], lr=rate)
    loss = torch.zeros(())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimizer.zero_grad()
        loss = ((weight - target) @ seen_through).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_muon_lowers_an_uneven_quadratic_as_well_as_adam() -> None:
    muon = min(quadratic(Muon, rate) for rate in (0.4, 0.8, 1.6))
    adam = min(quadratic(torch.optim.Adam, rate) for rate in (0.4, 0.8, 1.6))
    assert muon < 1e-3
    assert muon <= 1.2 * adam


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 64)
        self.conv = nn.Conv2d(64, 64, 3)
        self.depthwise = nn.Conv2d(64, 64, 3, groups=64)
        self.norm = nn.LayerNorm(64)
        self.last = nn.Linear(64, 64)


def test_muon_takes_inner_matrices_and_adam_the_rest() -> None:
    net = Net()
    assert muon_names(list(net.named_parameters())) == {"conv.weight"}
    muon, adam = make_optimizers(net, OptimConfig(optimizer="muon"))
    assert isinstance(muon, Muon)
    count = sum(len(g["params"]) for o in (muon, adam) for g in o.param_groups)
    assert count == len(list(net.parameters()))


def test_decay_on_matrices_only() -> None:
    (adam,) = make_optimizers(Net(), OptimConfig(weight_decay=0.1, decay_all=False))
    assert [(g["weight_decay"], {p.ndim for p in g["params"]}) for g in adam.param_groups] == [
        (0.1, {2, 4}),
        (0.0, {1}),
    ]
    (plain,) = make_optimizers(Net(), OptimConfig(weight_decay=1e-4))
    assert [g["weight_decay"] for g in plain.param_groups] == [1e-4]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_optimizer_state_comes_back_bit_for_bit(kind: str) -> None:
    def run(steps: int, state=None):  # type: ignore[no-untyped-def]
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 40))
        optimizers = make_optimizers(net, OptimConfig(optimizer=kind))
        if state:
            net.load_state_dict(state[0])
            unpack_optimizers(optimizers, state[1])
        for _ in range(steps):
            net(torch.ones(4, 40)).square().mean().backward()
            for o in optimizers:
                o.step()
                o.zero_grad()
        return {k: v.clone() for k, v in net.state_dict().items()}, pack_optimizers(optimizers)

    whole, half = run(4), run(2)
    again = run(2, half)
    assert all(torch.equal(whole[0][k], again[0][k]) for k in whole[0])
    assert set(whole[1]) == set(again[1])
    assert all(torch.equal(whole[1][k], again[1][k]) for k in whole[1])


def test_restored_state_has_the_parameters_memory_layout() -> None:
    conv = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    (adam,) = make_optimizers(conv, OptimConfig())
    conv(torch.ones(1, 4, 5, 5)).sum().backward()
    adam.step()
    unpack_optimizers([adam], {k: t.contiguous() for k, t in pack_optimizers([adam]).items()})
    assert adam.state[conv.weight]["exp_avg"].stride() == conv.weight.stride()


def test_the_rate_rises_and_falls() -> None:
    c = OptimConfig(lr=1.0, min_lr=0.1, warmup=4)
    assert [rate_at(c, step=s, progress=0.0) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    cosine = OptimConfig(lr=1.0, min_lr=0.1)
    assert rate_at(cosine, step=0, progress=0.0) == pytest.approx(1.0)
    assert rate_at(cosine, step=9, progress=0.5) == pytest.approx(0.55)
    assert rate_at(cosine, step=9, progress=1.0) == pytest.approx(0.1)
    assert rate_at(OptimConfig(lr=1.0, min_lr=0.0, schedule="linear"), step=9, progress=0.25) == pytest.approx(0.75)


def test_averaged_weights_forget_their_beginning() -> None:
    net, ema = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.constant_(ema.weight, 100.0)
    nn.init.constant_(net.weight, 1.0)
    for step in range(1, 200):
        average(ema, net, decay=0.9, step=step)
    assert ema.weight.item() == pytest.approx(1.0, abs=1e-3)
