# SPDX-License-Identifier: Apache-2.0
"""One stage of a plan: networks that learn for some seconds, and their average.

    x ── encode ── z ── a quantiser's noise ──┬── a share of the clips: mask, fill ──┬── decode ── x^
                                              └── the rest as they are ──────────────┘

The loss is log MSE of each frame, or of the frames of a slot together, LPIPS, and the bits of the latents at the weight
they have: where rounding adds a share s of the error, a bit a number is worth 2 ln 2 s / (1 + s). Steps are drawn for
each clip, most fine, some coarse, so that one encoder serves all of them; fine ones are noise, coarse ones round. A LIT
meets some masks that looked twice and key slots that were thinned out, and alone it meets some clips as the middle of a
stream.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from clips import Clips, Mixture, Sampler
from torch import Tensor, nn

from inlay.backbones.mini import TIME
from inlay.fill import hold
from inlay.masking import SECOND_LOOK, MaskConfig, look_again
from inlay.masking.thin import completed, thinned
from inlay.measure.lpips import Lpips
from inlay.train.losses import log_mse, perceptual
from inlay.train.optim import Muon, average, muon_names
from inlay.train.recording import RecordedStep
from inlay.train.tasks import masks

Stage = dict[str, Any]
Nets = dict[str, nn.Module]
LEARN = {  # kind of a stage -> the networks that learn
    "backbone": ["backbone"],
    "together": ["backbone", "lit"],
    "lit": ["lit"],
    "paper": ["paper"],
    "taef2": ["lit"],
}
DEFAULTS: Stage = {
    "kind": "backbone",  # of LEARN
    "seconds": 60.0,
    "steps": 10**9,
    "lr": 1.5e-3,
    "min_lr": 1e-5,
    "warmup": 100,
    "hold": 0.3,  # share of the time before the rate begins to fall
    "batch": 16,
    "frames": 17,
    "size": 192,
    "seed": 0,
    "ema": 0.998,
    "weight_decay": 0.01,
    "step_most": 1.0,  # noise of a quantiser: steps from 0 to this, a step a clip
    "coarse": 0.0,  # share of clips that are rounded to steps from there to `coarse_most`
    "coarse_most": 24.0,
    "rate": 1.0,  # weight of the bits a number; 1: as much as they are worth at the clip's step
    "streams": 0.0,  # share of clips that a LIT alone meets as the middle of a longer video
    "masked": 0.5,  # share of clips that go through mask and fill
    "looked": 0.0,  # share of these whose mask looks twice
    "thin": 0.0,  # share of these whose key slot is thinned out
    "tau": [0.4, 3.0],  # in mean changes between neighbouring slots
    "latent": 0.1,  # weight of the latents' own error, of a LIT alone
    "even": False,  # whether frames of a slot share one error; each by itself, its logarithm favours one of the four
    "lpips": 0.0,
    "lpips_frames": 2,
    "data": {"composed": 3, "motion_power": 0.5},  # fields of clips.Mixture
}
TINY: Stage = {"batch": 4, "frames": 9, "size": 64, "seconds": 600.0, "steps": 4, "data": {"composed": 1}}
QUANTISER_SHARE = 0.04  # of the error at full rate that rounding to a step of 1 adds; it grows with the step's square
FINEST = 0.25  # step at which bits are counted where it is finer
WARM = 16  # steps before the clock starts: compilers and recordings
LOOK_EVERY = 230.0  # seconds
RECOMPILE_LIMIT = 64  # shapes of one piece of code
RULE = MaskConfig()
BEGAN = time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """What a stage leaves: the averaged networks that learnt, and its row of the record."""

    nets: Nets
    row: dict[str, Any]


def train(
    stage: Stage, nets: Nets, clips: Clips, lpips: Lpips | None, device: str, look: Callable[[Nets], dict[str, float]]
) -> Learnt:
    """One stage.

    Args:
        look: measures the averaged networks now and then, for the log; the clock stands meanwhile.
    """
    torch.manual_seed(stage["seed"])
    names = LEARN[stage["kind"]]
    for key, net in nets.items():
        net.requires_grad_(key in names).train(key in names)
    live = nn.ModuleDict({n: nets[n] for n in names})
    ema = copy.deepcopy(live).requires_grad_(False)
    opts = optimizers(live, stage, device)
    update: Callable[[dict[str, Tensor]], dict[str, Tensor]] = Step(nets, stage, opts, lpips, device)
    if device == "cuda":
        compile_blocks(nets, stage["kind"])
        update = RecordedStep(update, torch.device(device))
        update.stream = torch.cuda.current_stream()
    sampler = Sampler(clips, Mixture(**stage["data"]), **{k: stage[k] for k in ("batch", "frames", "size", "seed")})
    log: list[dict[str, float]] = []
    step, ready, looked = 0, time.monotonic(), 0.0
    while step < stage["steps"]:
        done = 0.0 if device == "cuda" and step < WARM else (time.monotonic() - ready) / stage["seconds"]
        if done >= 1:
            break
        set_rates(opts, rate_at(stage, step, done))
        terms = update({"x": sampler(step)})
        step += 1
        if step % 4 == 0:
            average(ema, live, decay=stage["ema"] ** 4, step=step)
        if step == WARM:
            finish_work(device)
            ready = time.monotonic()
        if step % 100 == 0 or step == 1:
            seconds = time.monotonic() - ready
            log.append({"step": step, "seconds": round(seconds, 2), **numbers(terms, step)})
            looks = seconds > looked + LOOK_EVERY
            if looks:
                looked = seconds
                finish_work(device)
                log[-1] |= look(nets | dict(ema.items()))
                finish_work(device)
                ready = time.monotonic() - seconds  # looking does not count
            if step % 500 == 0 or step == 1 or looks:
                say(f"{stage['name']}: {log[-1]}")
    finish_work(device)
    spent = time.monotonic() - ready
    ema.eval()
    a_step = round(spent / max(1, step - WARM) * 1e3, 2)
    row = {"name": stage["name"], "steps": step, "seconds": round(spent, 1), "ms": a_step, "log": log}
    return Learnt(nets=dict(ema.items()), row=row)


def compile_blocks(nets: Nets, kind: str) -> None:
    """The parts that repeat: a graph of each is compiled once.

    They share their code, so torch counts every shape of every stage as one more recompilation of it. Past its limit,
    8, it runs them uncompiled and only warns: a step then takes twice as long.
    """
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    blocks: list[nn.Module] = list(nets["lit"].blocks)
    if kind != "taef2":
        for half in (nets["backbone"].encoder, nets["backbone"].decoder):
            blocks += [*half.fine, *half.coarse, half.norm_out]
    if kind == "paper":
        blocks += [*nets["paper"].spatial, *nets["paper"].temporal]
    for block in blocks:
        block.compile(dynamic=False)


def rate_at(stage: Stage, step: int, done: float) -> float:
    """Up over the first steps, level for a while, down along a cosine."""
    part = min(max((done - stage["hold"]) / (1 - stage["hold"]), 0.0), 1.0)
    rate = stage["min_lr"] + (stage["lr"] - stage["min_lr"]) * 0.5 * (1 + math.cos(math.pi * part))
    return rate * min(1.0, (step + 1) / stage["warmup"])


class Step:
    """Bytes to gradients to weights."""

    def __init__(
        self, nets: Nets, stage: Stage, opts: list[torch.optim.Optimizer], lpips: Lpips | None, device: str
    ) -> None:
        self.nets, self.stage, self.opts, self.lpips, self.device = nets, stage, opts, lpips, device
        self.learn = [p for name in LEARN[stage["kind"]] for p in nets[name].parameters()]

    def __call__(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        terms = self.loss(inputs["x"])
        terms["total"].backward()
        terms = {k: v.detach() for k, v in terms.items()}
        terms["norm"] = nn.utils.clip_grad_norm_(self.learn, 1.0)
        for o in self.opts:
            o.step()
            o.zero_grad(set_to_none=True)
        return terms

    def loss(self, u8_BTCHW: Tensor) -> dict[str, Tensor]:
        s, backbone, x = self.stage, self.nets["backbone"], to_x(u8_BTCHW)
        alone = "backbone" not in LEARN[s["kind"]]
        through = len(x) if alone else round(s["masked"] * len(x)) if s["kind"] == "together" else 0
        terms: dict[str, Tensor] = {}
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            with torch.set_grad_enabled(not alone):
                z = backbone.encode(x)
            z = z.float() if alone else z
            step_B = self.draw_steps(len(z), z.device)
            known = z + self.error(z.detach().float(), step_B).to(z.dtype)
            if through:
                keep, tau_B = self.draw_masks(z[:through].detach().float())
                given = self.thin(known[:through], z[:through].detach().float(), tau_B)
                filled = self.fill(given, keep, tau_B).to(known.dtype)
                known = torch.cat([filled, known[through:]])
                terms["keep"] = keep.float().mean()
                if alone and s["latent"]:
                    terms["latent"] = (filled.float() - z).square().mean()
            x_hat = backbone.decode(known)
            if s["lpips"] and self.lpips is not None:
                terms["lpips"] = perceptual(self.lpips, x, x_hat, s["lpips_frames"])
        mse_BT = (x_hat.float() - x).square().mean(dim=(1, 3, 4))
        mse_BT = shared_by_slot(mse_BT) if s["even"] else mse_BT
        terms["pixel"] = log_mse(x, x_hat) if alone else (mse_BT + 1e-5).log().mean()
        if not alone:
            bits_B = bits(z.float(), step_B.clamp_min(FINEST))
            share_B = QUANTISER_SHARE * step_B.square()
            worth_B = 2 * math.log(2) * share_B / (1 + share_B)
            terms["bits"], terms["rate"] = bits_B.mean(), (worth_B * bits_B).mean()
            terms["std"] = z.float().std()
        weights = {"pixel": 1.0, "latent": s["latent"], "lpips": s["lpips"], "rate": s["rate"]}
        return terms | {"total": sum(w * terms[name] for name, w in weights.items() if name in terms)}

    def draw_steps(self, count: int, device: torch.device) -> Tensor:
        """[B]: a quantiser's step for each clip; none for latents that were never meant to be rounded."""
        s = self.stage
        if s["kind"] == "taef2":
            return torch.zeros(count, device=device)
        fine = s["step_most"] * torch.rand(count, device=device)
        coarse = s["step_most"] * (s["coarse_most"] / s["step_most"]) ** torch.rand(count, device=device)
        return torch.where(torch.rand(count, device=device) < s["coarse"], coarse, fine)

    def error(self, z_BCTHW: Tensor, step_B: Tensor) -> Tensor:
        """What a quantiser adds: as noise, which teaches best, or as it is, where a step is so coarse that most numbers
        become zero and noise would be another thing."""
        step = step_B.view(-1, 1, 1, 1, 1)
        noise = (torch.rand_like(z_BCTHW) - 0.5) * step
        coarse = step.clamp_min(self.stage["step_most"])
        return torch.where(step > self.stage["step_most"], (z_BCTHW / coarse).round() * coarse - z_BCTHW, noise)

    @torch.no_grad()
    def draw_masks(self, z_BCTHW: Tensor) -> tuple[Tensor, Tensor]:
        """Masks at a tau for each clip, log-uniform, in mean changes: larger latents do not escape the threshold."""
        low, high = self.stage["tau"]
        draws = torch.rand(len(z_BCTHW), device=z_BCTHW.device)
        tau_B = low * (high / low) ** draws * z_BCTHW.diff(dim=2).abs().mean()
        keep_BTHW = masks(z_BCTHW, tau_B, criterion=RULE.criterion, reference=RULE.reference)
        if self.stage["looked"]:
            chosen_B = torch.rand_like(tau_B) < self.stage["looked"]
            # no graph of its own for a pass without gradients, and the kernels' own precision
            with torch.compiler.set_stance("force_eager"), torch.autocast(self.device, enabled=False):
                filled = self.lit(z_BCTHW, keep_BTHW, tau_B)
            more = look_again(z_BCTHW, filled, SECOND_LOOK * tau_B)
            keep_BTHW = keep_BTHW | (more & chosen_B.view(-1, 1, 1, 1))
        return keep_BTHW, tau_B

    def thin(self, known_BCTHW: Tensor, z_BCTHW: Tensor, tau_B: Tensor) -> Tensor:
        """With the key slots of some clips thinned out and put back, as a decoder has them."""
        if not self.stage["thin"]:
            return known_BCTHW
        chosen_B = torch.rand_like(tau_B) < self.stage["thin"]
        keep_BHW = thinned(z_BCTHW[:, :, 0], RULE.distance, tau_B.view(-1, 1, 1))[0] | ~chosen_B.view(-1, 1, 1)
        first = completed(known_BCTHW[:, :, 0], keep_BHW)
        return torch.cat([first[:, :, None], known_BCTHW[:, :, 1:]], dim=2)

    @property
    def lit(self) -> nn.Module:
        return self.nets["paper" if self.stage["kind"] == "paper" else "lit"]

    def fill(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor) -> Tensor:
        """The LIT's answer; the last clips may be the middle of a stream, whose past is one slot of what was kept."""
        lit = self.lit
        n = len(z_BCTHW) - round(self.stage["streams"] * len(z_BCTHW))
        if n == len(z_BCTHW):
            return lit(z_BCTHW, keep_BTHW, tau_B)
        whole = lit(z_BCTHW[:n], keep_BTHW[:n], tau_B[:n])
        z, keep, cut = z_BCTHW[n:], keep_BTHW[n:], keep_BTHW.shape[1] // 2
        past = hold(z, keep)[:, :, cut - 1 : cut]
        led = torch.cat([past, z[:, :, cut:]], 2), torch.cat([torch.ones_like(keep[:, :1]), keep[:, cut:]], 1)
        rest = lit(*led, tau_B[n:])[:, :, 1:]
        return torch.cat([whole, torch.cat([z[:, :, :cut].to(rest.dtype), rest], 2)])


def shared_by_slot(mse_BT: Tensor) -> Tensor:
    """Each frame's error as the mean of its slot; the first slot is one frame."""
    slots = mse_BT[:, 1:].unflatten(1, (-1, TIME)).mean(2)
    return torch.cat([mse_BT[:, :1], slots.repeat_interleave(TIME, dim=1)], dim=1)


def to_x(u8_BTCHW: Tensor) -> Tensor:
    return (u8_BTCHW.float() / 127.5 - 1).transpose(1, 2)


def bits(z_BCTHW: Tensor, step_B: Tensor) -> Tensor:
    """[B] about what a number costs at these steps: what its neighbours to the left and above do not tell of it, or the
    slot before, whichever tells more of the cell."""
    left = torch.cat([torch.zeros_like(z_BCTHW[..., :1]), z_BCTHW[..., :-1]], -1)
    above = torch.cat([torch.zeros_like(z_BCTHW[..., :1, :]), z_BCTHW[..., :-1, :]], -2)
    before = torch.cat([torch.zeros_like(z_BCTHW[:, :, :1]), z_BCTHW[:, :, :-1]], 2)
    step = step_B.view(-1, 1, 1, 1, 1)
    by_space, by_time = (
        (1 + ((z_BCTHW - guess) / step).square() * 6).log2().mean(1) / 2 for guess in (0.45 * (left + above), before)
    )
    return torch.minimum(by_space, by_time).mean((1, 2, 3))


def optimizers(live: nn.ModuleDict, stage: Stage, device: str) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside, AdamW for the rest."""
    cuda = device == "cuda"
    matrices: set[str] = set()
    for prefix, net in live.items():
        matrices |= muon_names(list(net.named_parameters(prefix)))
    named = list(live.named_parameters())

    def group(chosen: Iterator[nn.Parameter], decay: float) -> dict[str, Any]:
        rate = torch.tensor(stage["lr"], device=device) if cuda else stage["lr"]
        return {"params": list(chosen), "lr": rate, "weight_decay": decay}

    rest = [p for n, p in named if n not in matrices]
    muon = [group((p for n, p in named if n in matrices), stage["weight_decay"])]
    adam = [
        group((p for p in rest if p.ndim >= 2), stage["weight_decay"]),
        group((p for p in rest if p.ndim < 2), 0.0),
    ]
    return [
        Muon(muon, lr=stage["lr"], momentum=0.95, weight_decay=stage["weight_decay"]),
        torch.optim.AdamW(adam, lr=stage["lr"], betas=(0.9, 0.95), fused=cuda, capturable=cuda),
    ]


def set_rates(opts: list[torch.optim.Optimizer], rate: float) -> None:
    for group in (g for o in opts for g in o.param_groups):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: a recorded step reads it there
        else:
            group["lr"] = rate


def numbers(terms: dict[str, Tensor], step: int) -> dict[str, float]:
    values = {k: round(float(v), 4) for k, v in terms.items()}
    if not math.isfinite(values["total"]):
        raise ArithmeticError(f"the loss is {values['total']} at step {step}")
    return values


def finish_work(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def say(text: str) -> None:
    sys.stdout.write(f"[{time.monotonic() - BEGAN:7.1f}] {text}\n")
    sys.stdout.flush()
