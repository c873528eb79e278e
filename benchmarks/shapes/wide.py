# SPDX-License-Identifier: Apache-2.0
"""`mini` with more channels, then with its LIT, then LITs alone: a plan of stages in one process on one GPU.

    python benchmarks/shapes/wide.py PLAN.json --clips CLIPS --photos PHOTOS --test TEST --lpips FILE --out OUT

Clips, photographs and test sets are those of run.py. A plan is a list of stages; what a stage does not say is in
DEFAULTS. A stage begins from the networks the one before left, the first from the shipped weights (--weights names
their folder): channels that are new begin unread by the decoder and by the LIT. wide.json is what was recorded
(benchmarks/wide_h200_2026-11-16.json), longer.json what is to come: coarser steps, more weight on bits, more masks.

OUT/results.json holds, after every stage: settings, PSNR and LPIPS of every set at full rate, PSNR and entropy with
latents rounded to some steps, PSNR and LPIPS after the fill at the rates of the tables, and the log.
OUT/NAME.safetensors are averaged weights (fp16).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # runs from a checkout, nothing installed

from clips import Clips, Mixture, Sampler, TestSet
from fit import finish_work, numbers, set_rates
from run import load, psnr, set_up

from inlay.backbones import Mini, MiniConfig
from inlay.backbones.taef2 import load_taef2
from inlay.fill import Lit, hold, paper, plus
from inlay.masking import MaskConfig, keep_mask, keep_rate_of, nearest_tau
from inlay.measure.lpips import Lpips, load_lpips
from inlay.train.losses import log_mse, perceptual
from inlay.train.optim import Muon, average, muon_names
from inlay.train.recording import RecordedStep
from inlay.train.tasks import masks
from inlay.weightfile import load_weights, save_weights

Stage = dict[str, Any]
DEFAULTS: Stage = {
    "kind": "backbone",  # backbone, together, lit or paper
    "channels": 32,
    "seconds": 60.0,
    "steps": 10**9,
    "lr": 1.5e-3,
    "min_lr": 1e-5,
    "warmup": 100,
    "hold": 0.3,
    "batch": 16,
    "frames": 17,
    "size": 192,
    "seed": 0,
    "ema": 0.998,
    "weight_decay": 0.01,
    "step_most": 1.0,  # noise of a quantiser: steps from 0 to this, a step a clip
    "coarse": 0.0,  # share of clips with steps from there to `coarse_most`
    "coarse_most": 5.0,
    "rate": 0.5,  # weight of the bits a number; 1: as much as they are worth at the clip's step
    "score": 0.0,  # weight of what the mask would have gained by another choice
    "streams": 0.0,  # share of clips that a LIT alone meets as the middle of a longer video
    "masked": 0.5,  # share of clips that go through mask and fill
    "tau": [0.4, 3.0],  # in mean changes between neighbouring slots
    "latent": 0.1,  # weight of the latents' own error, of a LIT alone
    "lpips": 0.0,
    "lpips_frames": 2,
    "data": {"composed": 2, "motion_power": 0.5},
}
LEARN = {
    "backbone": ["backbone"],
    "together": ["backbone", "lit"],
    "lit": ["lit"],
    "paper": ["paper"],
    "taef2": ["lit"],
}
TINY = {"batch": 4, "frames": 9, "size": 64, "seconds": 600.0, "steps": 4, "data": {"composed": 1}}
RATES = {"davis": (0.62, 0.35), "bench": (0.32,)}
STEPS = (0.5, 1.0, 2.0, 4.0)
QUANTISER_SHARE = 0.1  # of the error at full rate that rounding to a step of 1 adds; it grows with the step's square
SOFTNESS = 0.3  # of the mask's edge, in taus, where it is looked at as if it were smooth

WARM = 16
RULE = MaskConfig()
LOOK_EVERY = 230.0  # seconds
BEGAN = time.monotonic()


def main() -> None:
    args = parse()
    device = set_up()
    plan = [DEFAULTS | s for s in json.loads(args.plan.read_text(encoding="utf-8"))]
    if args.tiny:
        plan = [s | TINY for s in plan]
    args.out.mkdir(parents=True, exist_ok=True)
    args.dav1d = args.dav1d or "dav1d"
    clips, tests = load(args, device)
    lpips = load_lpips(args.lpips, device) if args.lpips else None
    nets = begin(plan[0]["channels"], args.weights, tests, device, tiny=args.tiny)
    rows: list[dict[str, Any]] = []
    best: dict[str, Any] = {}
    for stage in plan:
        before = nets
        if stage["kind"] == "taef2":
            nets = begin_taef2(args.weights, tests, device, tiny=args.tiny)
        elif stage.get("trial"):
            nets = copy.deepcopy(nets)
        stage |= best.get("take", {}) if stage.get("as_trial") else {}
        trained = train(stage, nets, clips, tests, lpips, device, args.out)
        nets |= trained["nets"]
        found = measure(nets, stage["kind"], tests, lpips)
        rows.append({"stage": stage, **trained["row"], **found})
        (args.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        say(json.dumps({k: v for k, v in rows[-1].items() if k not in ("log", "stage", "clips")}))
        save(nets, stage, found, args.out)
        if stage.get("trial"):  # of two trials in a row the better goes on
            worth = sum(found[s][f"lit_{r}"] for s, of in RATES.items() if s in found for r in of)
            if not best or worth > best["worth"]:
                best = {"worth": worth, "nets": nets, "take": {"score": stage["score"]}, "name": stage["name"]}
            nets = best["nets"] if stage["trial"] == "last" else before
            say(f"{stage['name']}: worth {worth:.3f}; best so far {best['name']}")
        torch.cuda.empty_cache() if device == "cuda" else None


def begin_taef2(folder: Path, tests: dict[str, TestSet], device: str, *, tiny: bool) -> dict[str, nn.Module]:
    """TAEF2 as its maker ships it, and a new LIT."""
    backbone = load_taef2(folder, name="taef2", trust=True).to(device)
    lit = Lit.build(replace(plus(), channels=backbone.spec.channels, blocks=2 if tiny else 4))
    nets: dict[str, nn.Module] = {"backbone": backbone, "lit": lit.to(device)}
    set_statistics(backbone, tests, nets["lit"])
    return nets


def begin(channels: int, folder: Path, tests: dict[str, TestSet], device: str, *, tiny: bool) -> dict[str, nn.Module]:
    """The shipped networks, widened."""
    shape = MiniConfig(channels=channels)
    if tiny:
        shape = replace(shape, encoder_fine=16, encoder_coarse=32, decoder_coarse=32, decoder_fine=16)
    backbone = Mini(shape)
    if not tiny:
        widen_backbone(backbone, load_weights(folder / "mini.safetensors").tensors)
    nets: dict[str, nn.Module] = {"backbone": backbone.to(device).to(memory_format=torch.channels_last)}
    new = []
    for key, config, file in (("lit", plus(), "mini.lit"), ("paper", paper(), "mini.lit-paper")):
        lit = Lit.build(replace(config, channels=channels, blocks=2 if tiny else config.blocks))
        path = folder / f"{file}.safetensors"
        if path.is_file() and not tiny:
            widen_lit(lit, load_weights(path).tensors)
        nets[key] = lit.to(device)
        if not bool((lit.latent_std != 1).any()):
            new.append(nets[key])
    backbone.weight_hash = "in training"
    set_statistics(backbone, tests, *new)
    return nets


def widen_backbone(net: Mini, old: dict[str, Tensor]) -> None:
    want = net.state_dict()
    for key, value in old.items():
        if key not in want:
            continue
        if want[key].shape == value.shape:
            want[key].copy_(value)
        elif key == "decoder.conv_in.weight":
            want[key].zero_()
            want[key][:, : value.shape[1]] = value
        else:  # the encoder's last convolution: more outputs
            want[key][: len(value)] = value
    net.load_state_dict(want)


def widen_lit(lit: Lit, old: dict[str, Tensor]) -> None:
    want, was, now = lit.state_dict(), len(old["latent_mean"]), lit.config.channels
    for key, value in old.items():
        if want[key].shape == value.shape:
            want[key].copy_(value)
        elif key == "in_proj.weight":  # plus: hold, linear, four more; paper: latents
            want[key].zero_()
            want[key][:, :was] = value[:, :was]
            if lit.config.kind == "plus":
                want[key][:, now : now + was] = value[:, was : 2 * was]
                want[key][:, 2 * now :] = value[:, 2 * was :]
        elif key.startswith("out_proj"):
            want[key].zero_()
            want[key][:was] = value
    lit.load_state_dict(want)


@torch.no_grad()
def set_statistics(backbone: nn.Module, tests: dict[str, TestSet], *lits: nn.Module) -> None:
    """Mean and deviation of held-out clips' latents, for the backbone and LITs that have learnt nothing yet."""
    _, clips = tests.get("held") or next(iter(tests.values()))
    with torch.compiler.set_stance("force_eager"):
        z = torch.cat([backbone.eval().encode(to_x(u8)) for u8 in clips.split(4)])
    mean, std = z.mean((0, 2, 3, 4)), z.std((0, 2, 3, 4))
    backbone.latent_mean, backbone.latent_std = tuple(mean.tolist()), tuple(std.tolist())
    for lit in lits:
        lit.set_statistics(backbone.latent_mean, backbone.latent_std)


def to_x(u8_BTCHW: Tensor) -> Tensor:
    return (u8_BTCHW.float() / 127.5 - 1).transpose(1, 2)


def train(
    stage: Stage, nets: dict[str, nn.Module], clips: Clips, tests: dict[str, TestSet], lpips: Lpips | None,
    device: str, out: Path,
) -> dict[str, Any]:  # fmt: skip
    """One stage; returns the averaged networks that learnt, and its row."""
    torch.manual_seed(stage["seed"])
    names = LEARN[stage["kind"]]
    set_statistics(nets["backbone"], tests)
    for key, net in nets.items():
        net.requires_grad_(key in names).train(key in names)
    if stage["kind"] == "paper":
        nets["paper"].trained_on(stage["size"] // 8)
    live = nn.ModuleDict({n: nets[n] for n in names})
    ema = copy.deepcopy(live).requires_grad_(False)
    opts = optimizers(live, stage, device)
    step_of = Step(nets, stage, opts, list(live.parameters()), lpips, device)
    update: Any = step_of
    if device == "cuda":
        if stage["kind"] != "taef2":
            for half in (nets["backbone"].encoder, nets["backbone"].decoder):
                for name in ("fine", "coarse"):
                    for block in getattr(half, name):
                        block.compile(dynamic=False)
                half.norm_out.compile(dynamic=False)
        for block in nets["lit"].blocks:
            block.compile(dynamic=False)
        if stage["kind"] == "paper":
            for block in (*nets["paper"].spatial, *nets["paper"].temporal):
                block.compile(dynamic=False)
        update = RecordedStep(step_of, torch.device(device))
        update.stream = torch.cuda.current_stream()
    sampler = Sampler(clips, Mixture(**stage["data"]), **{k: stage[k] for k in ("batch", "frames", "size", "seed")})
    log: list[dict[str, float]] = []
    step, ready, looked = 0, time.monotonic(), 0.0
    while step < stage["steps"]:
        done = 0.0 if device == "cuda" and step < WARM else (time.monotonic() - ready) / stage["seconds"]
        if done >= 1:
            break
        part = min(max((done - stage["hold"]) / (1 - stage["hold"]), 0.0), 1.0)
        rate = stage["min_lr"] + (stage["lr"] - stage["min_lr"]) * 0.5 * (1 + math.cos(math.pi * part))
        set_rates(opts, rate * min(1.0, (step + 1) / stage["warmup"]), 0.0)
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
            if seconds > looked + LOOK_EVERY and "backbone" in names:
                looked = seconds
                finish_work(device)
                log[-1] |= {n: m["psnr"] for n, m in full_rate(ema["backbone"], tests).items()}
                if "lit" in names:
                    log[-1] |= look(ema["backbone"], ema["lit"], tests)
                torch.cuda.synchronize() if device == "cuda" else None
                ready += time.monotonic() - ready - seconds  # looking does not count
            if step % 500 == 0 or step == 1 or "davis" in log[-1]:
                say(f"{stage['name']}: {log[-1]}")
    finish_work(device)
    spent = time.monotonic() - ready
    for net in ema.values():
        net.eval()
    row = {
        "name": stage["name"],
        "steps": step,
        "seconds": round(spent, 1),
        "ms": round(spent / max(1, step - WARM) * 1e3, 2),
    }
    nets = {n: ema[n] for n in names}
    return {"nets": nets, "row": row | {"log": log}}


class Step:
    """Bytes to gradients to weights."""

    def __init__(
        self, nets: dict[str, nn.Module], stage: Stage, opts: list[torch.optim.Optimizer], learn: list[nn.Parameter],
        lpips: Lpips | None, device: str,
    ) -> None:  # fmt: skip
        self.nets, self.stage, self.opts, self.learn = nets, stage, opts, learn
        self.lpips, self.device = lpips, device

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
        s, backbone = self.stage, self.nets["backbone"]
        x = to_x(u8_BTCHW)
        alone = s["kind"] in ("lit", "paper", "taef2")
        through = len(x) if alone else round(s["masked"] * len(x)) if s["kind"] == "together" else 0
        terms: dict[str, Tensor] = {}
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            if alone:
                with torch.no_grad():
                    z = backbone.encode(x).float()
            else:
                z = backbone.encode(x)
            step_B = self.draw_steps(len(z), z.device)
            known = z + ((torch.rand_like(z, dtype=torch.float32) - 0.5) * step_B.view(-1, 1, 1, 1, 1)).to(z.dtype)
            if through:
                lit = self.nets["paper" if s["kind"] == "paper" else "lit"]
                low, high = s["tau"]
                with torch.no_grad():
                    draws = torch.rand(through, device=z.device)
                    tau_B = low * (high / low) ** draws * (z.detach().float().diff(dim=2).abs().mean())
                    keep = masks(
                        z[:through].detach().float(), tau_B, criterion=RULE.criterion, reference=RULE.reference
                    )
                filled = self.fill(lit, known[:through], keep, tau_B).to(known.dtype)
                if s["score"]:
                    filled = filled + s["score"] * what_if(z[:through], filled, keep, tau_B).to(filled.dtype)
                known = torch.cat([filled, known[through:]]) if through < len(x) else filled
                terms["keep"] = keep.float().mean()
                if alone and s["latent"]:
                    terms["latent"] = (filled.float() - z.float()).square().mean()
            x_hat = backbone.decode(known)
            if s["lpips"] and self.lpips is not None:
                terms["lpips"] = perceptual(self.lpips, x, x_hat, s["lpips_frames"])
        mse_BT = (x_hat.float() - x).square().mean(dim=(1, 3, 4))
        terms["pixel"] = log_mse(x, x_hat) if alone else (mse_BT + 1e-5).log().mean()
        total = terms["pixel"]
        if "latent" in terms:
            total = total + s["latent"] * terms["latent"]
        if "lpips" in terms:
            total = total + s["lpips"] * terms["lpips"]
        if not alone:
            bits_B = bits(z.float(), step_B.clamp_min(0.25))
            share_B = QUANTISER_SHARE * step_B.square()
            worth_B = 2 * math.log(2) * share_B / (1 + share_B)  # of a bit, in log MSE
            terms["bits"], terms["rate"] = bits_B.mean(), (worth_B * bits_B).mean()
            terms["std"] = z.float().std()
            total = total + s["rate"] * terms["rate"]
        return terms | {"total": total}

    def draw_steps(self, count: int, device: torch.device) -> Tensor:
        """[B]: a quantiser's step for each clip; most fine, some coarse."""
        s = self.stage
        if s["kind"] == "taef2":
            return torch.zeros(count, device=device)
        fine = s["step_most"] * torch.rand(count, device=device)
        coarse = s["step_most"] * (s["coarse_most"] / s["step_most"]) ** torch.rand(count, device=device)
        return torch.where(torch.rand(count, device=device) < s["coarse"], coarse, fine)

    def fill(self, lit: nn.Module, z_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor) -> Tensor:
        """The LIT's answer; the last clips may be the middle of a stream, whose past is one slot of what was kept."""
        n = len(z_BCTHW) - round(self.stage["streams"] * len(z_BCTHW))
        if n == len(z_BCTHW):
            return lit(z_BCTHW, keep_BTHW, tau_B)
        whole = lit(z_BCTHW[:n], keep_BTHW[:n], tau_B[:n])
        z, keep, cut = z_BCTHW[n:], keep_BTHW[n:], keep_BTHW.shape[1] // 2
        past = hold(z, keep)[:, :, cut - 1 : cut]
        led = torch.cat([past, z[:, :, cut:]], 2), torch.cat([torch.ones_like(keep[:, :1]), keep[:, cut:]], 1)
        rest = lit(*led, tau_B[n:])[:, :, 1:]
        return torch.cat([whole, torch.cat([z[:, :, :cut].to(rest.dtype), rest], 2)])


class Centred(torch.autograd.Function):
    """Passes x; takes the mean, weighted by w, from its gradient: what one cell gains another must give."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (w,) = ctx.saved_tensors
        return (grads[0] - (grads[0] * w).sum() / w.sum().clamp_min(1e-12)) * (w > 0), None


def what_if(z_BCTHW: Tensor, filled_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor) -> Tensor:
    """Zeros, with a gradient to the scores of dropped cells: up where one was worth more than the others.

    The mask is a step, which teaches nothing. Here its edge is smooth for the way back: the score of a dropped cell
    rises by what its true value would have gained, less the mean of that, so that as many cells stay kept.
    """
    z = z_BCTHW.float()
    before = hold(z, keep_BTHW)[:, :, :-1]
    score = (z[:, :, 1:] - before).abs().mean(1) / tau_B.view(-1, 1, 1, 1)
    soft = torch.sigmoid((score - 1) / SOFTNESS)
    dropped = ~keep_BTHW[:, 1:]
    soft = Centred.apply(soft, (soft * (1 - soft) * dropped).detach())
    gap = ((z[:, :, 1:] - filled_BCTHW[:, :, 1:].float()) * dropped[:, None]).detach()
    swing = (soft - soft.detach())[:, None] * gap
    return torch.cat([torch.zeros_like(swing[:, :, :1]), swing], 2)


def bits(z_BCTHW: Tensor, step_B: Tensor) -> Tensor:
    """[B] about what a number costs at these steps: what its neighbours to the left and above do not tell of it."""
    left = torch.cat([torch.zeros_like(z_BCTHW[..., :1]), z_BCTHW[..., :-1]], -1)
    above = torch.cat([torch.zeros_like(z_BCTHW[..., :1, :]), z_BCTHW[..., :-1, :]], -2)
    rest = (z_BCTHW - 0.45 * (left + above)) / step_B.view(-1, 1, 1, 1, 1)
    return (1 + rest.square() * 6).log2().mean((1, 2, 3, 4)) / 2


def optimizers(live: nn.ModuleDict, stage: Stage, device: str) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside, AdamW for the rest."""
    cuda = device == "cuda"
    matrices: set[str] = set()
    for prefix, net in live.items():
        matrices |= muon_names(list(net.named_parameters(prefix)))
    named = list(live.named_parameters())

    def rate() -> Any:
        return torch.tensor(stage["lr"], device=device) if cuda else stage["lr"]

    def group(chosen: Iterator[nn.Parameter], decay: float) -> dict[str, Any]:
        return {"params": list(chosen), "lr": rate(), "old": False, "weight_decay": decay}

    rest = [p for n, p in named if n not in matrices]
    muon = [group((p for n, p in named if n in matrices), stage["weight_decay"])]
    adam = [
        group((p for p in rest if p.ndim >= 2), stage["weight_decay"]),
        group((p for p in rest if p.ndim < 2), 0.0),
    ]
    return [
        Muon(muon, lr=stage["lr"], momentum=0.95, weight_decay=stage["weight_decay"]),
        torch.optim.AdamW(adam, lr=rate(), betas=(0.9, 0.95), fused=cuda, capturable=cuda),
    ]


@torch.no_grad()
def full_rate(backbone: nn.Module, tests: dict[str, TestSet]) -> dict[str, dict[str, Any]]:
    backbone.eval()
    out: dict[str, dict[str, Any]] = {}
    with torch.compiler.set_stance("force_eager"):
        for name, (names, clips) in tests.items():
            plain, motion = [], []
            for u8 in clips.split(4):
                plain += psnr(u8, backbone.decode(backbone.encode(to_x(u8))))
                motion += u8.float().diff(dim=1).abs().mean(dim=(1, 2, 3, 4)).tolist()
            fast = np.argsort(motion)[-max(1, len(motion) // 3) :]
            out[name] = {
                "psnr": round(float(np.mean(plain)), 3),
                "fast": round(float(np.mean([plain[k] for k in fast])), 3),
                "clips": dict(zip(names, [round(p, 3) for p in plain], strict=True)),
            }
    return out


@torch.no_grad()
def look(backbone: nn.Module, lit: nn.Module, tests: dict[str, TestSet]) -> dict[str, float]:
    """PSNR after the fill, at the rates of the tables."""
    found: dict[str, float] = {}
    with torch.compiler.set_stance("force_eager"):
        for name, (_, clips) in tests.items():
            for rate in RATES.get(name, ()):
                z = torch.cat([backbone.encode(to_x(u8)) for u8 in clips.split(4)])
                of = filled({"backbone": backbone, "lit": lit}, z, clips, rate, None, both=False)
                found[f"{name}_{rate}"] = of[f"lit_{rate}"]
    return found


@torch.no_grad()
def measure(nets: dict[str, nn.Module], kind: str, tests: dict[str, TestSet], lpips: Lpips | None) -> dict[str, Any]:
    """All there is to know of a stage, from averaged weights."""
    backbone = nets["backbone"]
    set_statistics(backbone, tests)
    found: dict[str, Any] = {"clips": {}}
    for name, values in full_rate(backbone, tests).items():
        found["clips"][name] = values.pop("clips")
        found[name] = values
    with torch.compiler.set_stance("force_eager"):
        for name, (_, clips) in tests.items():
            z = torch.cat([backbone.encode(to_x(u8)) for u8 in clips.split(4)])
            if lpips is not None and name in RATES:
                found[name]["lpips"] = lpips_of(backbone, z, clips, lpips)
            for step in STEPS:
                rounded = (z / step).round()
                found[name][f"psnr_{step}"] = psnr_of(backbone, rounded * step, clips)
                found[name][f"entropy_{step}"] = entropy(rounded)
            for rate in RATES.get(name, ()) if kind != "backbone" else ():
                found[name] |= filled(nets, z, clips, rate, lpips, both=kind in ("lit", "paper"))
        found["latent_std"] = [round(v, 3) for v in z.std((0, 2, 3, 4)).tolist()]
    return found


def filled(
    nets: dict[str, nn.Module], z: Tensor, clips: Tensor, rate: float, lpips: Lpips | None, *, both: bool
) -> dict[str, float]:
    def kept(tau: float) -> float:
        return keep_rate_of(keep_mask(z, MaskConfig(tau=tau)))

    tau = nearest_tau(kept, rate, start=float(z.diff(dim=2).abs().mean()), tolerance=1e-4).tau
    keep = keep_mask(z, MaskConfig(tau=tau))
    out = {f"tau_{rate}": tau}
    for name in ("lit", "paper") if both else ("lit",):
        lit = nets[name].eval()
        z_hat = torch.cat([lit(a, k, tau) for a, k in zip(z.split(2), keep.split(2), strict=True)])
        out[f"{name}_{rate}"] = psnr_of(nets["backbone"], z_hat, clips)
        if lpips is not None:
            out[f"{name}_{rate}_lpips"] = lpips_of(nets["backbone"], z_hat, clips, lpips)
    return out


def psnr_of(backbone: nn.Module, z: Tensor, clips: Tensor) -> float:
    pairs = zip(z.split(4), clips.split(4), strict=True)
    return round(float(np.mean([p for a, u8 in pairs for p in psnr(u8, backbone.decode(a))])), 3)


def lpips_of(backbone: nn.Module, z: Tensor, clips: Tensor, lpips: Lpips) -> float:
    """Every third frame: enough for a mean, at a third of the time."""
    values = []
    for a, u8 in zip(z.split(2), clips.split(2), strict=True):
        x, y = (v[:, :, ::3].transpose(1, 2).flatten(0, 1) for v in (to_x(u8), backbone.decode(a).clamp(-1, 1)))
        values += lpips(x, y).tolist()
    return round(float(np.mean(values)), 4)


def entropy(rounded_BCTHW: Tensor) -> float:
    """Bits a pixel of all numbers, each channel by its own histogram, nothing predicted."""
    total = 0.0
    for channel in rounded_BCTHW.unbind(1):
        share = channel.flatten().unique(return_counts=True)[1].double() / channel.numel()
        total += float(-(share * share.log2()).sum())
    return round(total / 256, 4)


def save(nets: dict[str, nn.Module], stage: Stage, found: dict[str, Any], out: Path) -> None:
    backbone = nets["backbone"]
    for name in LEARN[stage["kind"]]:
        net = nets[name]
        facts = {"config": asdict(net.config), "stage": stage["name"]}
        if name == "backbone":
            facts |= {"latent_mean": list(backbone.latent_mean), "latent_std": list(backbone.latent_std)}
        file = "taef2.lit" if stage["kind"] == "taef2" else name
        save_weights(out / f"{file}.safetensors", net.state_dict(), facts, stored="fp16")


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:7.1f}] {text}", flush=True)


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plan", type=Path)
    p.add_argument("--clips", type=Path, action="append", required=True)
    p.add_argument("--photos", type=Path, action="append", default=[])
    p.add_argument("--test", type=Path, required=True)
    p.add_argument("--lpips", type=Path)
    p.add_argument("--weights", type=Path, default=Path(__file__).parents[2] / "src/inlay/weights")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--dav1d", default="dav1d")
    p.add_argument("--limit", type=int)
    p.add_argument("--tiny", action="store_true")
    return p.parse_args()


if __name__ == "__main__":
    main()
