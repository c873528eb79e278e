# SPDX-License-Identifier: Apache-2.0
"""AdamW, Muon, the learning-rate schedule, averaged weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from inlay.train.config import OptimConfig


def make_optimizers(module: nn.Module, config: OptimConfig, *, recorded: bool = False) -> list[torch.optim.Optimizer]:
    """One optimiser, or two when matrices go to Muon and the rest to AdamW.

    A `recorded` step reads its learning rate from the device: a number would be frozen into the recording.
    """
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    if config.optimizer == "adamw":
        return [_adamw([p for _, p in named], config, recorded=recorded)]
    networks = module.items() if isinstance(module, nn.ModuleDict) else [("", module)]
    matrices = set()  # each network of several side by side has a first and a last matrix of its own
    for prefix, network in networks:
        own = [(n, p) for n, p in network.named_parameters(prefix) if p.requires_grad]
        matrices |= muon_names(own)
    by_muon = [p for n, p in named if n in matrices]
    rest = [p for n, p in named if n not in matrices]
    rate = torch.tensor(config.lr, device=named[0][1].device) if recorded else config.lr
    muon = [Muon(by_muon, lr=rate, momentum=config.momentum, weight_decay=config.weight_decay)] if by_muon else []
    return [*muon, *([_adamw(rest, config, recorded=recorded)] if rest else [])]


def muon_names(named: list[tuple[str, nn.Parameter]], *, smallest: int = 32) -> set[str]:
    """Names of the weights Muon takes: matrices inside the network, big enough to have directions to balance.

    The first and last matrix, and those at a narrow latent, touch data whose directions are not alike; depthwise
    kernels are no matrices.
    """
    wide = [(n, p) for n, p in named if p.ndim >= 2]
    edges = {wide[0][0], wide[-1][0]} if wide else set()
    return {n for n, p in wide if n not in edges and min(p.shape[:2]) >= smallest}


def _adamw(parameters: list[nn.Parameter], config: OptimConfig, *, recorded: bool) -> torch.optim.AdamW:
    groups: list[dict[str, Any]] = [{"params": parameters, "weight_decay": config.weight_decay}]
    if not config.decay_all:
        matrices = [p for p in parameters if p.ndim >= 2]
        vectors = [p for p in parameters if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
    fused = bool(parameters) and parameters[0].is_cuda
    rate = torch.tensor(config.lr, device=parameters[0].device) if recorded else config.lr
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=rate, betas=config.betas, fused=fused, capturable=recorded
    )


class Muon(torch.optim.Optimizer):
    """Momentum whose update is replaced by the nearest orthogonal matrix, so that every direction moves alike.

    Updates are scaled to the size AdamW's would have (0.2 sqrt(longer side)), so both share one learning rate.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float | Tensor,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            batches: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    batches[(p.shape[0], p.numel() // p.shape[0])].append(p)
            for shape, parameters in batches.items():
                self._step_alike(parameters, shape, **{k: group[k] for k in ("lr", "momentum", "weight_decay")})

    def _step_alike(
        self,
        parameters: list[nn.Parameter],
        shape: tuple[int, int],
        *,
        lr: float | Tensor,
        momentum: float,
        weight_decay: float,
    ) -> None:
        """One step for parameters of one shape, their matrices orthogonalised together."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = [self._buffer(p) for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, buffers, momentum)  # Nesterov: look one momentum step further
        update_NRC = orthogonal(torch.stack([g.reshape(shape) for g in ahead])).to(parameters[0].dtype)
        update_NRC = update_NRC * (-0.2 * math.sqrt(max(shape)) * lr)
        updates = [u.view_as(p) for u, p in zip(update_NRC.unbind(), parameters, strict=True)]
        torch._foreach_mul_([*parameters], 1 - lr * weight_decay)  # type: ignore[arg-type]
        torch._foreach_add_([*parameters], updates)

    def _buffer(self, p: nn.Parameter) -> Tensor:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        return state["momentum"]


def orthogonal(g_NRC: Tensor, *, steps: int = 5) -> Tensor:
    """The nearest matrix with all singular values near 1, by Newton-Schulz in bfloat16: no SVD, matmuls only.

    The quintic is tuned to lift small singular values quickly; they end between about 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g_NRC.shape[-2] > g_NRC.shape[-1]
    x = (g_NRC.mT if tall else g_NRC).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def rate_at(config: OptimConfig, *, step: int, progress: float) -> float:
    """Learning rate at a step, `progress` in [0, 1] being the part of the run that is done."""
    done = min(max(progress, 0.0), 1.0)
    falls = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}
    rate = config.min_lr + (config.lr - config.min_lr) * falls[config.schedule]
    return rate * min(1.0, (step + 1) / config.warmup) if config.warmup else rate


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place: a recorded step reads it there
            else:
                group["lr"] = rate


@torch.no_grad()
def average(ema: nn.Module, module: nn.Module, *, decay: float, step: int) -> None:
    """Move the averaged weights towards the weights; early on faster, so that the first weights are forgotten."""
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(ema.parameters()), list(module.parameters()), 1 - decay)
    for kept, fresh in zip(ema.buffers(), module.buffers(), strict=True):
        kept.copy_(fresh)
