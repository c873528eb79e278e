# SPDX-License-Identifier: Apache-2.0
"""A network and the settings of a run in, the network trained out; on a GPU as a compiled, recorded step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from clips import Clips, Mixture, Sampler
from torch import Tensor, nn

from inlay.train.optim import Muon, average, muon_names
from inlay.train.recording import RecordedStep

Run = dict[str, Any]
Optimizers = list[torch.optim.Optimizer]
WARM = 16  # steps until compilation and recording are done


def fit(
    net: nn.Module, ema: nn.Module, run: Run, clips: Clips, old: set[str], stop_at: float, device: str
) -> dict[str, Any]:
    """Trains `net` until its time is over, or that of `stop_at` on the monotonic clock, and lets `ema` follow.

    `old` names the weights that were begun from. Returns steps, times and the log.
    """
    opts = optimizers(net, run, old, device)
    has_new = 0 < len(old) < len(dict(net.named_parameters()))
    sizes = {k: run[k] for k in ("batch", "frames", "size", "seed")}
    sampler = Sampler(clips, Mixture(**run["data"]), **sizes)
    update = prepare(net, run, opts, device)
    torch.manual_seed(run["seed"] + 1)
    log: list[dict[str, float]] = []
    step, warm, ready = 0, 0, time.monotonic()
    while step < run["steps"] and time.monotonic() < stop_at:
        # the schedule's clock starts when the recorded step runs: compilation differs between networks
        done = 0.0 if device == "cuda" and not warm else (time.monotonic() - ready) / run["seconds"]
        if done >= 1:
            break
        set_rates(opts, *rates(run, step, done, has_new))
        terms = update({"x": sampler(step)})
        step += 1
        if step % 4 == 0:
            average(ema, net, decay=run["ema"] ** 4, step=step)
        if step == WARM:
            finish_work(device)
            warm, ready = step, time.monotonic()
        if step % 100 == 0 or step == 1:
            log.append({"step": step, "seconds": round(time.monotonic() - ready, 2), **numbers(terms, step)})
            if step % 500 == 0 or step == 1:
                print(f"{run['name']}: {log[-1]}", flush=True)
    finish_work(device)
    spent = time.monotonic() - ready
    ms = round(spent / max(1, step - warm) * 1e3, 2)
    pixel = round(float(np.mean([r["pixel"] for r in log[-5:]])), 4) if log else None
    memory = round(torch.cuda.max_memory_allocated() / 2**30, 1) if device == "cuda" else 0
    times = {"steps": step, "seconds": round(spent, 1), "ms": ms}
    return {**times, "memory_gib": memory, "train_pixel": pixel, "log": log}


def finish_work(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def numbers(terms: dict[str, Tensor], step: int) -> dict[str, float]:
    values = {k: round(float(v), 4) for k, v in terms.items()}
    if not math.isfinite(values["total"]):
        raise ArithmeticError(f"the loss is {values['total']} at step {step}")
    return values


def prepare(
    net: nn.Module, run: Run, opts: Optimizers, device: str
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """The step as it is, or on a GPU compiled and recorded."""
    step = Step(net, run, opts, device)
    if device == "cpu":
        return step
    compile_blocks(net)
    recorded = RecordedStep(step, torch.device(device))
    recorded.stream = torch.cuda.current_stream()  # one for all: gradients stay on the stream they first appeared on
    return recorded


def compile_blocks(net: nn.Module) -> None:
    """Block by block: the same block is compiled once, in seconds where the whole network takes a minute."""
    for half in (net.encoder, net.decoder):
        for name in ("fine", "coarse", "frames"):
            for block in getattr(half, name, ()):
                block.compile(dynamic=False)
        for name in ("finish", "norm_out"):
            part = getattr(half, name, None)
            if part is not None:
                part.compile(dynamic=False)


class Step:
    """Bytes to gradients to weights; what the recording plays back."""

    def __init__(self, net: nn.Module, run: Run, opts: Optimizers, device: str) -> None:
        self.net, self.run, self.opts, self.device = net, run, opts, device
        self.parameters = list(net.parameters())

    def __call__(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        terms = self.loss(inputs["x"])
        terms["total"].backward()
        terms["total"] = terms["total"].detach()
        terms["norm"] = nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for o in self.opts:
            o.step()
            o.zero_grad(set_to_none=True)
        return terms

    def loss(self, u8_BTCHW: Tensor) -> dict[str, Tensor]:
        x = (u8_BTCHW.float() / 127.5 - 1).transpose(1, 2)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            z = self.net.encode(x)
            x_hat = self.net.decode(self.disturbed(z))
        mse_BT = (x_hat.float() - x).square().mean(dim=(1, 3, 4))
        pixel = (mse_BT + 1e-5).log().mean()
        total = pixel + self.run["latent_size"] * z.float().square().mean()
        return {"total": total, "pixel": pixel.detach(), "latent_std": z.detach().float().std()}

    def disturbed(self, z_BCTHW: Tensor) -> Tensor:
        """With noise, and with that of a quantiser: a step for each clip, from none to `quantiser` deviations."""
        z, run = z_BCTHW, self.run
        noisy = z + torch.randn_like(z) * run["noise"] if run["noise"] else z
        if run["quantiser"]:
            std = z.detach().float().std(dim=(0, 2, 3, 4), keepdim=True)
            step = run["quantiser"] * torch.rand(len(z), 1, 1, 1, 1, device=z.device) * std
            noisy = noisy + ((torch.rand_like(z, dtype=torch.float32) - 0.5) * step).to(z.dtype)
        return noisy


def optimizers(net: nn.Module, run: Run, old: set[str], device: str) -> Optimizers:
    """Muon for matrices and AdamW for the rest, with groups of their own for weights that were begun from."""
    named = list(net.named_parameters())
    cuda = device == "cuda"

    def rate() -> float | Tensor:  # a recorded step reads it from the device
        return torch.tensor(run["lr"], device=device) if cuda else run["lr"]

    def groups(names: set[str]) -> list[dict[str, Any]]:
        found = []
        for is_old in (True, False):
            for wide in (True, False):
                ps = [p for n, p in named if n in names and (n in old) == is_old and (p.ndim >= 2) == wide]
                decay = run["weight_decay"] if wide else 0.0
                if ps:
                    found.append({"params": ps, "lr": rate(), "old": is_old, "weight_decay": decay})
        return found

    matrices = muon_names(named)
    rest = {n for n, _ in named} - matrices
    muon = Muon(groups(matrices), lr=run["lr"], momentum=0.95, weight_decay=run["weight_decay"])
    return [muon, torch.optim.AdamW(groups(rest), lr=rate(), betas=(0.9, 0.95), fused=cuda, capturable=cuda)]


def rates(run: Run, step: int, done: float, has_new: bool) -> tuple[float, float]:
    """(for new weights, for those that were begun from): the old ones wait until the new ones make sense."""
    part = min(max((done - run["hold"]) / (1 - run["hold"]), 0.0), 1.0)
    rate = run["min_lr"] + (run["lr"] - run["min_lr"]) * 0.5 * (1 + math.cos(math.pi * part))
    new = rate * min(1.0, (step + 1) / run["warmup"])
    if not has_new:
        return new, new
    waited = (step - run["old_from"]) / max(1, run["old_full"] - run["old_from"])
    return new, rate * min(1.0, max(0.0, waited))


def set_rates(opts: Optimizers, new: float, old: float) -> None:
    for group in (g for o in opts for g in o.param_groups):
        value = old if group["old"] else new
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)  # in place: a recorded step reads it there
        else:
            group["lr"] = value
